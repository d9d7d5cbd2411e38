# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# control WHAT STDOUT COMMAND...: the control of a test of order. What must not hold in mode relaxed does not, so the client sees
# what it claims to see. COMMAND runs it, for $seed, and sets $status and $splits; what it prints is in STDOUT. By chance the
# order may hold for a whole run, but not in five.
control()
{
	local what=$1 stdout=$2 first=$seed try violations
	shift 2
	for ((try = 0; try < 5; try++)); do
		seed=$((first + 1000 * try))
		"$@"
		violations=$(grep -o '"violations":[0-9]*' "$stdout" | awk -F: '{ s += $2 } END { print s + 0 }')
		# shellcheck disable=SC2154 # COMMAND sets status and splits
		if [ "$status $violations" != "0 0" ] || [ "$splits" = 0 ]; then break; fi
	done
	if [ "$status" != 0 ] && [ "$violations" -gt 0 ] && [ "$splits" -gt 0 ]; then
		echo "ok: seed $seed, $what: $violations violations in mode relaxed"
	else
		fail "seed $seed, $what: status $status, $violations violations, $splits splits"
	fi
	seed=$first
}
