#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#
# usage: bench/deepep.sh [OPTION...]
#
# What flags cost: DeepEP's wire pattern (bench/deepep.c) over softnic, for one port, for a drain that blocks before each atomic,
# for the library's modes, and for two ports without flags, which is the ceiling. Medians, everything in turns.
#
#   --build DIR      the build directory (.)
#   --peers LIST     ("1 2 4 8 16")
#   --size BYTES     of a WRITE (64k)
#   --rate RATE --delay TIME   of each port (1Gbit), one way (250us)
#   --rounds N       for 8 peers; more for fewer (60)
#   --window N       rounds in flight for each peer (16)
#   --repeat N       (3)
#   --modes LIST     ("one drain rc strict signal ceiling")
#   --check          ends with 1 if signal is under 0.95 or strict under 0.80 of the ceiling at 8 peers, signal under 2.5 times
#                    the blocking drain there, or any mode under 0.97 of one port at any number of peers
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
build=. peers="1 2 4 8 16" size=64k rate=1Gbit delay=250us rounds=60 window=16 repeat=3 check=no
modes="one drain rc strict signal ceiling"
while [ $# -gt 0 ]; do
	case $1 in
	--check) check=yes && shift && continue ;;
	--build | --peers | --size | --rate | --delay | --rounds | --window | --repeat | --modes)
		declare "${1#--}=$2" && shift 2
		;;
	*) sed -n '4,/^set /{ /^#/s/^# \?//p; }' "$0" && exit 2 ;;
	esac
done
cd "$build" || exit 2
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# one MODE PEERS: its line
one()
{
	local lib=--dualport ordering=$1 flags=atomic n=$((rounds * 8 / $2))
	case $1 in
	one) lib='' ordering=strict ;;
	drain) ordering=signal flags=drain ;;
	ceiling) ordering=signal flags=none ;;
	esac
	[ $n -gt $((rounds * 3)) ] && n=$((rounds * 3))
	# shellcheck disable=SC2086 # nothing, or an option
	DUALPORT_PATIENCE=auto DUALPORT_ORDERING=$ordering "$top/scripts/softnic" --build . --rate "$rate" --delay "$delay" $lib -- \
		bench/deepep --size "$size" --peers "$2" --rounds "$n" --window "$window" --flags $flags 2>> "$out/errors"
}

median() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
field() { sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p" "$2"; }

failed=0
# verdict TEXT VALUE LEAST
verdict()
{
	awk -v v="$2" -v l="$3" 'BEGIN { exit !(v < l) }' || return
	echo "below: $1 is $2, not $3"
	failed=1
}

for p in $peers; do
	for ((i = 0; i < repeat; i++)); do
		for m in $modes; do
			one "$m" "$p" >> "$out/$m.$p" || { echo "FAILED: $m, $p peers" && tail -n 3 "$out/errors" && exit 1; }
		done
	done
	declare -A mb=()
	for m in $modes; do
		mb[$m]=$(field mb_per_s "$out/$m.$p" | median)
	done
	first=${modes%% *}
	rtt=$(field rtt_us "$out/$first.$p" | median)
	bytes=$(field size "$out/$first.$p" | head -n 1)
	printf '%2d peers, %d bytes, RTT %s us' "$p" "$bytes" "$rtt"
	if [ -n "${mb[ceiling]:-}" ]; then
		# half of a WRITE on one of the two ports
		awk -v b="$bytes" -v c="${mb[ceiling]}" 'BEGIN { printf ", T %.0f us", b / c }'
	fi
	echo
	for m in $modes; do
		awk -v m="$m" -v v="${mb[$m]}" -v c="${mb[ceiling]:-0}" -v o="${mb[one]:-0}" -v d="${mb[drain]:-0}" 'BEGIN {
			printf "  %-8s %8.1f MB/s", m, v
			if (c) printf "  %5.2f of the ceiling", v / c
			if (o) printf "  %5.2f of one port", v / o
			if (d) printf "  %5.2f of the blocking drain", v / d
			print "" }'
	done
	ratio() { awk -v a="${mb[$1]}" -v b="${mb[$2]}" 'BEGIN { printf "%.3f", a / b }'; }
	[ $check = yes ] || continue
	for m in rc strict signal; do
		verdict "$m over one port, $p peers" "$(ratio $m one)" 0.97
	done
	[ "$p" = 8 ] || continue
	verdict "signal over the ceiling" "$(ratio signal ceiling)" 0.95
	verdict "strict over the ceiling" "$(ratio strict ceiling)" 0.80
	verdict "signal over the blocking drain" "$(ratio signal drain)" 2.5
done
exit $failed
