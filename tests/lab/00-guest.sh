#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# The lab itself: devices, rates, delays, cut links, counters. What other tests measure means nothing without.
. "$(dirname "$0")/lib.sh"

check "soft-RoCE ports that are active" "$(rdma link | grep -c 'state ACTIVE')" == 4

# The guest's clock against the host's, which stamps the files that are shared.
: > "$out/clock"
host=$(stat -c %.9Y "$out/clock") guest=$EPOCHREALTIME
nap 3
touch "$out/clock2"
ratio=$(calc "($EPOCHREALTIME - $guest) / ($(stat -c %.9Y "$out/clock2") - $host)")
check "rate of the guest's clock" "$ratio" ">" 0.5
check "rate of the guest's clock" "$ratio" "<" 2

write() { pair plain "$@" ib_write_bw -s 65536 -n 200; }

# Two directions at once, without a packet out of order: the first thing to go wrong when links are emulated.
order() { cat /sys/class/infiniband/r*/ports/1/hw_counters/{out_of_seq_request,rcvd_seq_err} | awk '{ n += $1 } END { print n }'; }
was=$(order)
shape.sh 40mbit
pair plain both 0 18515 ib_write_bw -b -s 65536 -n 128 -u 18
timed "packets out of order" "$(($(order) - was))" "<=" 0 100000

shape.sh 100mbit
mark
write link0 0 18515
timed "MB/s of link 0 at 100 Mbit/s" "$(mbps link0)" ">=" 12.2 2
check "MB/s of link 0 at 100 Mbit/s" "$(mbps link0)" "<=" 12.5
check "percent of the bytes on link 1" "$(share)" "<" 1
mark
write link1 1 18515
timed "MB/s of link 1 at 100 Mbit/s" "$(mbps link1)" ">=" 12.2 2
check "percent of the bytes on link 1" "$(share)" ">" 99

latency() { pair plain "$1" "$2" 18515 ib_write_lat -s 8 -n 50 && column "$1" 6; }
clear.sh
timed "us one way without delay" "$(latency direct 1)" "<" 2000 1000000
delay.sh 1 5ms
check "us one way with 5 ms of delay" "$(latency late 1)" ">" 5000
timed "us one way with 5 ms of delay" "$(latency late 1)" "<" 9000 1000000
timed "us one way on the other link" "$(latency other 0)" "<" 2000 1000000
shape.sh 100mbit
check "us one way with delay and rate" "$(latency late-shaped 1)" ">" 5000
clear.sh

for end in a b; do
	link.sh 1 down $end
	nap 0.5
	check "host $end's port of a link that is down" "$(rdma link show "r${end}1/1" | grep -c 'state DOWN')" == 1
	link.sh 1 up
	nap 0.5
	write "back-$end" 1 18515
done
gid=$(< /sys/class/infiniband/ra1/ports/1/gids/1)
[[ $gid == *:ffff:0a63:0101 ]] || fail "GID 1 of ra1 after the link's return: $gid"
finish
