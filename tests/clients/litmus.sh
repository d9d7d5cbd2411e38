# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# Patterns of arrival on hostile devices, in the build directory, in each mode that promises them; and where the mode does not,
# a flag is seen before its data. CLIENTS_ROUNDS: rounds of each pattern (60).
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
seed=${CLIENTS_SEED:-$RANDOM}

number() { cat "$out"/*.json 2> /dev/null | grep -o "\"$1\": *[0-9]*" | awk -F: '{ s += $2 } END { print s + 0 }'; }

# run ORDERING COUNT PATIENCE
run()
{
	rm -f "$out"/*.json
	DUALPORT_PATIENCE=$3 DUALPORT_ORDERING=$1 DUALPORT_DIAG_JSON=$out/%p.json timeout -k 5 100 "$top/scripts/softnic" --build . --ports 4 \
		--cards 2 --adverse --seed "$seed" --dualport -- "$PWD/tests/clients/litmus" --dev mlx5_0 --peer-dev mlx5_2 \
		--count "$2" > "$out/client" 2>&1
	status=$? splits=$(number splits) waited=$(number signals_waited)
}

for ordering in rc strict signal strict-auto rc-auto; do
	[ $ordering = signal ] && export SKIP=seqlock
	case $ordering in
	*-auto) patience=auto ;;
	*) patience=always ;;
	esac
	run ${ordering%-auto} "${CLIENTS_ROUNDS:-60}" $patience
	unset SKIP
	if [ $status = 0 ] && [ "$splits" -gt 0 ] && [ "$waited" -gt 0 ]; then
		echo "ok: $ordering: $splits splits, $waited signals waited"
	else
		echo "FAILED: $ordering: seed $seed, status $status, $splits splits, $waited signals waited"
		grep -m 4 -E 'FAILED|dualport' "$out/client"
		failed=1
	fi
done
LITMUS=flag run relaxed 300 always
if [ $status = 1 ] && [ "$splits" -gt 0 ] && grep -q 'flag: [1-9][0-9]* violations' "$out/client"; then
	echo "ok: control: $(grep -o 'flag: .*violations' "$out/client" | head -n 1) in mode relaxed"
else
	echo "FAILED: control: seed $seed, status $status, $splits splits: no flag before its data in mode relaxed"
	tail -n 4 "$out/client"
	failed=1
fi
exit $failed
