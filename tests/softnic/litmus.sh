# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# The litmus tests of doc/ordering.md on hostile devices, in the build directory: what a mode forbids is never seen; what it
# allows is seen, so that the tests can see. LITMUS_SEEDS: how many (2); LITMUS_ROUNDS: of each pattern (15).
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
seed=${LITMUS_SEED:-$RANDOM}

diff <(sed -n '/^| pattern /,/^$/p' "$top/doc/ordering.md" | grep .) <(tests/clients/litmus --list) ||
	{ echo "FAILED: doc/ordering.md has another table"; failed=1; }

# shellcheck source=tests/clients/number.sh
. "$top/tests/clients/number.sh"

# run WHAT MODE SOFTNIC-OPTION... -- ARG...
run()
{
	local what=$1 mode=$2 opts=()
	shift 2
	while [ "$1" != -- ]; do opts+=("$1"); shift; done
	shift
	rm -f "$out"/*.json
	if DUALPORT_ORDERING=$mode DUALPORT_DIAG_JSON=$out/%p.json timeout -k 5 250 "$top/scripts/softnic" --build . --ports 4 \
		--cards 2 --seed "$seed" "${opts[@]}" -- tests/clients/litmus --dev mlx5_0 --peer-dev mlx5_2 --timeout 240 \
		--count "${LITMUS_ROUNDS:-15}" "$@" > "$out/log" 2>&1; then
		echo "ok: seed $seed, $what: $(grep -c ' seen in ' "$out/log") patterns, $(number "$out/" splits) splits," \
			"$(number "$out/" signals_waited) signals waited"
	else
		echo "FAILED: seed $seed, $what"
		grep -E 'FAILED|litmus:|seen in [1-9].*forbidden' "$out/log" | head -n 8
		failed=1
	fi
}

split()
{
	[ "$(number "$out/" splits)" -gt 0 ] && [ "$(number "$out/" signals_waited)" -gt 0 ] && return
	echo "FAILED: nothing was split, or nothing waited"
	failed=1
}

run "one port" rc --adverse --
for ((n = 0; n < ${LITMUS_SEEDS:-2}; n++)); do
	for mode in rc strict signal relaxed; do
		run "$mode" $mode --adverse --dualport --
		split
	done
	# as programs run it: what does not wait goes whole on one port
	for mode in rc strict; do
		DUALPORT_PATIENCE=auto run "$mode, patience auto" $mode --adverse --dualport --
	done
	# the controls
	run "relaxed, to be seen" relaxed --adverse --dualport -- --count 1000 --must \
		--only data-inline,data-flags,unsignalled-flag,flag-in-the-middle,flag-at-the-end,overwrite-shifted,read-shifted,read-ends
	run "signal, to be seen" signal --adverse --dualport -- --count 1000 --must --only inline-data,faa-data
	run "strict, to be seen" strict --adverse --dualport -- --count 1000 --must --only data-data,tail
	seed=$((seed + 1))
done
exit $failed
