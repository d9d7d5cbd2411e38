# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# The library on hostile devices, in the build directory: no flag before its data; in mode relaxed there must be some.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0 broken=0

# run SEED ORDERING ARG...
run()
{
	local seed=$1
	rm -f "$out"/*.json "$out/late"
	SOFTNIC_SLOW_COUNT=$out/late DUALPORT_ORDERING=$2 DUALPORT_DIAG_JSON=$out/%p.json "$top/scripts/softnic" --build . --ports 4 --cards 2 \
		--adverse --seed "$seed" --dualport -- timeout 100 tests/clients/dataflag --dev mlx5_0 \
		--peer-dev mlx5_2 --rounds 42 --timeout 90 "${@:3}" > "$out/client" 2>&1
}

for seed in 1 2 3 4 5; do
	for ordering in strict signal rc; do
		if run $seed $ordering --window 8 && cat "$out"/*.json | grep -q '"splits":[1-9]' &&
			[ -s "$out/late" ]; then
			echo "ok: $ordering, seed $seed, $(awk '{ s += $1 } END { print s }' "$out/late") messages late"
		else
			echo "FAILED: $ordering, seed $seed"
			tail -n 8 "$out/client"
			failed=1
		fi
	done
	run $seed relaxed --window 4 --flags inline
	[ $? = 1 ] && grep -q VIOLATION "$out/client" && broken=$((broken + 1))
done
echo "relaxed: a flag before its data with $broken of 5 seeds"
[ $broken -ge 4 ] || failed=1
exit $failed
