# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# Acknowledged is not visible, in the build directory: over the ports of two cards, whose writes wait on their way to memory,
# no flag is seen before its data, and it is without flushes. Over the ports of one card there is nothing to flush.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
seed=${CLIENTS_SEED:-$RANDOM}
devices=(--placement late)

# shellcheck source=tests/clients/number.sh
. "$top/tests/clients/number.sh"

# run CARDS FLUSH ORDERING ARG...
run()
{
	client "$1" "$2" "$3" dataflag --timeout 90 "${@:4}"
}

# client CARDS FLUSH ORDERING CLIENT ARG...
client()
{
	rm -f "$out"/*.json
	DUALPORT_PORTS=mlx5_0:1,mlx5_1:1 DUALPORT_FLUSH=$2 DUALPORT_ORDERING=$3 DUALPORT_DIAG_JSON=$out/%p.json \
		timeout -k 5 100 "$top/scripts/softnic" --build . --cards "$1" --seed "$seed" "${devices[@]}" --dualport -- \
		"$PWD/tests/clients/$4" "${@:5}" --dev mlx5_0 > "$out/client" 2>&1
	status=$? splits=$(number "$out/" splits) flushes=$(number "$out/" flushes) waits=$(number "$out/" flush_waits)
	# shellcheck disable=SC2034 # in conditions of expect()
	acks=$(number "$out/" flush_acks) renewed=$(number "$out/" spares_renewed)
}

# expect WHAT CONDITION
expect()
{
	if [ "$splits" -gt 0 ] && (($2)); then
		echo "ok: $1: splits $splits, flushes $flushes, waited for $waits"
	else
		echo "FAILED: $1: seed $seed, status $status, splits $splits, flushes $flushes, waited for $waits"
		grep -m 4 -E 'VIOLATION|GUARD|dataflag:|dualport' "$out/client"
		failed=1
	fi
}

for ordering in strict signal; do
	for flush in auto read; do
		run 2 $flush $ordering --rounds 60 --reads 3
		expect "two cards, flush = $flush, $ordering" "status == 0 && flushes > 0 && waits > 0"
	done
	# a flag that is seen before its data needs some luck
	for ((i = 0; i < 5; i++)); do
		run 2 ack $ordering --rounds 60
		[ $status = 0 ] || break
	done
	grep -q VIOLATION "$out/client" || status=0
	expect "control: two cards, flush = ack, $ordering: a flag before its data" "status == 1 && flushes == 0"
	run 1 auto $ordering --rounds 60
	expect "one card, flush = auto, $ordering" "status == 0 && flushes == 0"
done
# what siblings write after rail 0 had its acknowledgement: ranges that overlap, cut elsewhere
for ordering in strict signal rc; do
	run 2 auto $ordering --rounds 60 --overlap 30
	expect "two cards, ranges that overlap, $ordering" "status == 0 && flushes > 0 && acks == 0"
done
for ((i = 0; i < 5; i++)); do
	run 2 ack signal --rounds 60 --overlap 30
	! grep -q 'still not right' "$out/client" || break
done
grep -q 'still not right' "$out/client" || status=0
expect "control: two cards, flush = ack, ranges that overlap: old bytes for good" "status == 1 && flushes == 0"
run 2 auto signal --rounds 30 --overlap 30 --qps 4 --threads 2 --cq all --bidir
expect "two cards, four queue pairs, ranges that overlap" "status == 0 && flushes > 0 && acks == 0"
# many queue pairs and threads
run 2 auto signal --rounds 30 --qps 4 --threads 2 --cq all --bidir
expect "two cards, four queue pairs" "status == 0 && flushes > 0"
# keys of regions that begin elsewhere for the program than in memory
for reg in iova iova2; do
	run 2 auto signal --rounds 40 --overlap 30 --reg $reg
	expect "two cards, $reg" "status == 0 && flushes > 0 && acks == 0"
done
# a program that flushes its own device, by a READ on a queue pair connected to itself: every port, since others wrote
client 2 ack strict pushed loop --settle-ms 1000
expect "two cards, flush = ack, the program's own flush" "status == 0 && $(grep -o '"early":[1-9][0-9]*' "$out/client" | wc -l) == 1"
# the spare breaks (the first queue pair after the two programs'): there is a new one
echo '400p mlx5_0 qp-error 0x42' > "$out/faults"
devices=(--faults "$out/faults")
run 2 auto strict --rounds 60 --overlap 30 --bidir
expect "two cards, a spare breaks" "status == 0 && flushes > 0 && renewed > 0 && $(grep -c 'one port from here on' "$out/client") == 0"
devices=(--placement late)
# a sibling is lost with acknowledged bytes that were not flushed: the flag behind them ends, with an error
echo '5000ms mlx5_1 silence' > "$out/faults"
devices=(--faults "$out/faults")
DUALPORT_BOND_WAIT=0 client 2 auto strict unflushed lost --settle-ms 2000
expect "two cards, a sibling is lost" "status == 0 && flushes > 0 && $(grep -c 'ended with status [1-9]' "$out/client") == 1"
devices=(--placement late)
# a region that is registered elsewhere under its old key
DUALPORT_BOND_WAIT=0 client 2 auto signal unflushed rereg --settle-ms 2000
expect "two cards, a region registered anew" "status == 0 && flushes > 0 && $(grep -c 'one port from here on' "$out/client") == 0"
# regions that are deregistered right after their flag, while they are being flushed: both ports are used to the end
for ordering in strict signal rc; do
	DUALPORT_BOND_WAIT=0 client 2 auto $ordering unflushed drop --settle-ms 2000
	expect "two cards, $ordering, regions that go" "status == 0 && splits == 40 && renewed > 0 && $(grep -c 'one port from here on' "$out/client") == 0"
done
# regions that allow no READs: said once for siblings and once for the program's port, counted, acknowledgements count
client 2 auto strict pushed noread --settle-ms 1000
expect "two cards, no REMOTE_READ" "status == 0 && flushes == 0 && acks > 1 && $(grep -c 'does not allow READs' "$out/client") == 2"
# relaxed ordering: a WRITE as flag, all data over the other port of the same card, is flushed for. (dataflag has data on its
# flags' port, too, which these may overtake without the library: it then tells and waits, and on a busy machine not in time.)
export DUALPORT_WEIGHTS=1,65535
client 1 auto strict pushed relaxed --settle-ms 1000
[ "$splits" = 0 ] && splits=$(number "$out/" spreads)
expect "one card, relaxed ordering, data over the other port" "status == 0 && flushes > 0 && waits > 0"
client 1 ack strict pushed relaxed --settle-ms 1000
[ "$splits" = 0 ] && splits=$(number "$out/" spreads)
grep -q 'a flag before its data' "$out/client" || status=0
expect "control: one card, relaxed ordering, flush = ack: a flag before its data" "status == 1 && flushes == 0"
exit $failed
