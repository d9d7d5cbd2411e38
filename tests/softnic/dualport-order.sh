# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# The library on hostile devices, in the build directory: no flag before its data, with 20 seeds, every kind of flag in
# each run, loaded in every way, posted in lists and singly, waited for by polling and by channels; in mode relaxed there
# must be some. ORDER_SEEDS: how many (20).
#
# With --long [ROUNDS [SEED]] instead: so many rounds (a million), half of them in strict and half in signal, eight queue pairs
# at once, each run of some seconds with the next seed.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0 broken=0 tried=0 n=0
loads=(link dlsym dlvsym) posts=(chain single random) waits=(poll event fd) modes=(strict signal rc)

# run SEED ORDERING ARG...
run()
{
	local seed=$1
	rm -f "$out"/*.json "$out/late"
	SOFTNIC_SLOW_COUNT=$out/late DUALPORT_ORDERING=$2 DUALPORT_DIAG_JSON=$out/%p.json "$top/scripts/softnic" --build . --ports 4 --cards 2 \
		--adverse --seed "$seed" --dualport -- timeout 100 tests/clients/dataflag --dev mlx5_0 \
		--peer-dev mlx5_2 --rounds 42 --timeout 90 "${@:3}" > "$out/client" 2>&1
}

if [ "${1:-}" = --long ]; then
	rounds=${2:-1000000} seed=${3:-$RANDOM} begin=$SECONDS done=0
	echo "long run: $rounds rounds from seed $seed"
	while [ $done -lt "$rounds" ] && [ $failed = 0 ]; do
		ordering=${modes[n++ % 2]}
		# the time limits are for a busy machine
		SOFTNIC_SLOW_COUNT=$out/late DUALPORT_ORDERING=$ordering DUALPORT_DIAG_JSON=$out/%p.json timeout 600 \
			"$top/scripts/softnic" --build . --ports 4 --cards 2 --adverse --seed "$seed" --dualport -- \
			tests/clients/dataflag --dev mlx5_0 --peer-dev mlx5_2 --qps 8 --threads 2 --rounds 250 --window 8 \
			--overlap 10 --wait "${waits[n / 2 % 3]}" --timeout 590 > "$out/client" 2>&1
		status=$?
		splits=$(cat "$out"/*.json | grep -o '"splits":[0-9]*' | awk -F: '{ s += $2 } END { print s + 0 }')
		rm -f "$out"/*.json
		if [ $status != 0 ] || [ "$splits" = 0 ]; then
			echo "FAILED: $ordering, seed $seed, status $status, $splits splits"
			tail -n 8 "$out/client"
			failed=1
		fi
		done=$((done + 2000)) seed=$((seed + 1))
		[ $((n % 20)) != 0 ] || echo "$done rounds, $((SECONDS - begin)) s, seeds to $((seed - 1))"
	done
	echo "$done rounds, $((SECONDS - begin)) s, seeds to $((seed - 1)): $([ $failed = 0 ] && echo none || echo SOME) violated"
	exit $failed
fi

# All 27 ways come up within 9 seeds, each in all modes within 27.
for ((seed = 1; seed <= ${ORDER_SEEDS:-20}; seed++)); do
	for ((k = 0; k < 3; k++, n++)); do
		how="--load ${loads[n % 3]} --post ${posts[n / 3 % 3]} --wait ${waits[n / 9 % 3]}"
		ordering=${modes[(n + n / 27) % 3]}
		# shellcheck disable=SC2086 # options
		if run $seed $ordering --window 8 $how && cat "$out"/*.json | grep -q '"splits":[1-9]' &&
			cat "$out"/*.json | grep -q '"signals_waited":[1-9]' && [ -s "$out/late" ]; then
			echo "ok: $ordering, seed $seed, $how, $(awk '{ s += $1 } END { print s }' "$out/late") messages late"
		else
			echo "FAILED: $ordering, seed $seed, $how"
			tail -n 8 "$out/client"
			failed=1
		fi
	done
	[ $seed -le 5 ] || continue
	tried=$((tried + 1))
	run $seed relaxed --window 4 --flags inline
	[ $? = 1 ] && grep -q VIOLATION "$out/client" && broken=$((broken + 1))
	# another ordering for this peer
	if ! DUALPORT_PEER_ORDERING="10.0.0.0/8 relaxed, ::/0 strict" run $seed relaxed --window 4 --flags inline ||
		! cat "$out"/*.json | grep -q '"signals_waited":[1-9]'; then
		echo "FAILED: seed $seed, ordering strict for the peer alone"
		tail -n 8 "$out/client"
		failed=1
	fi
done
# more outstanding than is searched for overlaps: all of the rest is waited for, in the modes that look at ranges
for ordering in strict signal rc; do
	long="--rounds 100 --overlap 30 --window 32 --writes 8 --depth 512 --min 8k --max 16k --signal-every 64"
	# shellcheck disable=SC2086 # options
	if DUALPORT_PATIENCE=always run 1 $ordering $long && { [ $ordering = rc ] ||
		cat "$out"/*.json | grep -q '"full_waits":[1-9]'; } && cat "$out"/*.json | grep -q '"splits":[1-9]'; then
		echo "ok: $ordering, long queues: $(cat "$out"/*.json | grep -o '"full_waits":[1-9][0-9]*')"
	else
		echo "FAILED: $ordering, long queues"
		tail -n 8 "$out/client"
		failed=1
	fi
done
echo "relaxed: a flag before its data with $broken of $tried seeds"
[ $broken -ge $((tried - 1)) ] || failed=1
exit $failed
