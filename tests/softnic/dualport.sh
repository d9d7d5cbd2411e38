# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# The library on softnic, in the build directory: two ports carry more than one can, never more than both can, and the
# table says so. How much it is on a machine with nothing else to do: bench/softnic-ports.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
command -v ib_write_bw > /dev/null || { echo "ib_write_bw is not there: the package perftest is needed"; exit 77; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Ports of 100 Mbit/s, so that the machine has time; the average in MiB/s.
speed()
{
	local tool="ib_write_bw -p \$port -d mlx5_0 -s 1048576 -n 100 -t 8"

	DUALPORT_DIAG=1 "$top/scripts/softnic" --build . --rate 100Mbit --delay 20us "$@" -- \
		bash "$top/tests/softnic/pair.sh" "$out" "$tool" "$tool 127.0.0.1"
	awk '$1 == 1048576 { print $4 + 0; exit }' "$out/client"
}

for _ in 1 2 3 4 5; do
	one=$(speed) two=$(speed --dualport)
	echo "one port ${one:-nothing} MiB/s, two ports ${two:-nothing} MiB/s"
	grep -E 'mlx5_|splits|fall-backs' "$out/client"
	# 100 Mbit/s are 11.92 MiB/s
	awk -v a="${one:-0}" -v b="${two:-0}" 'BEGIN { exit !(a <= 11.98 && b <= 2 * 11.98) }' || break
	awk -v a="${one:-0}" -v b="${two:-0}" 'BEGIN { exit !(a > 0 && b > 1.1 * 11.98) }' &&
		grep -q 'splits  *100$' "$out/client" && exit 0
done
cat "$out/client"
exit 1
