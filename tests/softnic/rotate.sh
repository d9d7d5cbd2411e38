# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# Cuts are rounded, so a request of three pages is two of them on one port and one on the other. Between two processes that is
# always the same port, and between others perhaps another one: as often the second as the first, over all.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
command -v ib_write_bw > /dev/null || { echo "ib_write_bw is not there: the package perftest is needed"; exit 77; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# bytes PORT: that the sender's library counted there
bytes() { cat "$out"/*.json | grep -o "\"port\":\"$1\",\"tx_bytes\":[0-9]*" | awk -F: '$NF > m { m = $NF } END { print m + 0 }'; }

tool="ib_write_bw -p \$port -d mlx5_0 -s 12288 -n 200 -q 2"
first=0 second=0
# if it were one and the same always, or drawn badly, 40 runs would hardly hide it
for ((n = 1; n <= 40 && (first == 0 || second == 0); n++)); do
	rm -f "$out"/*.json
	DUALPORT_DIAG_JSON=$out/%p.json "$top/scripts/softnic" --build . --dualport -- bash "$top/tests/softnic/pair.sh" "$out" \
		"$tool" "$tool 127.0.0.1" || { cat "$out/client"; continue; }
	a=$(bytes mlx5_0:1) b=$(bytes mlx5_1:1)
	# 2 queue pairs, 200 requests each: what went whole, before keys were known, hides nothing of a third
	if ((a > b * 3 / 2)); then
		first=$((first + 1))
	elif ((b > a * 3 / 2)); then
		second=$((second + 1))
	else
		echo "FAILED: $a and $b bytes are not twice and once"
		exit 1
	fi
done
echo "the longer part went over the first port $first times, over the second $second times"
((first > 0 && second > 0))
