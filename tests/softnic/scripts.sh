# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# Scripts of verbs by chance, in the build directory: what a program sees is with the library as without it, on devices that are
# late against each other. SCRIPTS_SEEDS: how many (12); CLIENTS_SEED: the first (5000); SCRIPTS_STEPS: of each (24).
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
first=${CLIENTS_SEED:-5000}
orderings=(strict rc signal)
flushes=(ack read)

# shellcheck source=tests/clients/number.sh
. "$top/tests/clients/number.sh"

# script SEED NAME SOFTNIC_OPTION...: sets $status
script()
{
	local seed=$1 name=$2 late
	shift 2
	case $((seed % 4)) in
	2) late=(--delay 1ms) ;;
	3) late=(--rate '400MB,40MB,400MB,40MB') ;;
	*) late=(--adverse) ;;
	esac
	DUALPORT_BOND_WAIT=0 DUALPORT_DIAG_JSON=$out/$name.%p.json timeout -k 5 150 "$top/scripts/softnic" --build . --ports 4 \
		--cards 2 --seed "$seed" "${late[@]}" "$@" -- tests/clients/scripts --dev mlx5_0 --peer-dev mlx5_2 --seed "$seed" \
		--count "${SCRIPTS_STEPS:-24}" --timeout 140 > "$out/$name" 2> "$out/$name.err"
	status=$?
}

# both SEED NAME: one port each time, unless $status is not 0; sets $status, and $differs
both()
{
	script "$1" "$2.plain"
	[ $status = 0 ] || return
	script "$1" "$2.loaded" --dualport
	differs=0
	diff "$out/$2.plain" "$out/$2.loaded" > "$out/$2.diff" || differs=1
}

for ((seed = first; seed < first + ${SCRIPTS_SEEDS:-12}; seed++)); do
	# data that has to wait is cut, too
	export DUALPORT_ORDERING=${orderings[seed / 4 % 3]} DUALPORT_FLUSH=${flushes[seed / 3 % 2]} DUALPORT_PATIENCE=always
	both $seed $seed
	if [ $status != 0 ]; then
		echo "FAILED: seed $seed: status $status: $(tail -n 1 "$out/$seed.plain.err") $(tail -n 2 "$out/$seed.loaded.err" 2> /dev/null)"
		failed=1
	elif [ $differs = 1 ]; then
		echo "FAILED: seed $seed, $DUALPORT_ORDERING: differs"
		head -n 8 "$out/$seed.diff"
		failed=1
	else
		echo "ok: seed $seed, $DUALPORT_ORDERING: $(wc -l < "$out/$seed.plain") lines, $(number "$out/$seed." splits) splits," \
			"$(number "$out/$seed." signals_waited) signals waited, $(number "$out/$seed." held) held"
	fi
done
if [ "$(number "$out/" splits)" = 0 ] || [ "$(number "$out/" signals_waited)" = 0 ] || [ "$(number "$out/" held)" = 0 ]; then
	echo "FAILED: nothing was split, or nothing waited, or no completion was held"
	failed=1
fi

# The control: where short WRITEs may overtake bulk a difference is seen, if not in one seed then in another.
export DUALPORT_ORDERING=relaxed
for ((seed = first + 4 - first % 4; seed < first + 40; seed += 4)); do
	both $seed control
	if [ $status != 0 ] || [ $differs = 1 ]; then break; fi
done
if [ $seed -lt $((first + 40)) ]; then
	echo "ok: seed $seed, control: differs in mode relaxed"
else
	echo "FAILED: control: no difference in mode relaxed"
	failed=1
fi
exit $failed
