# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# One side's probe of the second port is not answered, the other side's is: that one uses both ports, for which the first
# side's twins have to stay, and the first side uses one.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
command -v ib_write_bw > /dev/null || { echo "ib_write_bw is not there: the package perftest is needed"; exit 77; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# longer than a probe is waited for (3 s); -u 20: the deaf port goes on asking
tool="exec ib_write_bw -p \$port -u 20 -s 65536 -D 6 -b"
echo '0ms mlx5_1 deaf' > "$out/faults"
DUALPORT_BOND_WAIT=0 DUALPORT_DIAG_JSON=$out/%p.json "$top/scripts/softnic" --build . --ports 4 --cards 2 --faults "$out/faults" \
	--dualport -- bash "$top/tests/softnic/pair.sh" "$out" "$tool -d mlx5_0" "$tool -d mlx5_2 127.0.0.1"
status=$?
one=$(cat "$out"/*.json | grep -c '"bonds":0.*"splits":0,.*"probe-failed":1')
two=$(cat "$out"/*.json | grep -c '"bonds":1.*"splits":[1-9]')
# without an end of the program: what goes to a twin that is not there is sent again for long
stuck=$(cat "$out/server" "$out/client" | grep -c 'dualport.*: waits for ')
echo "status $status, sides with one port $one, with two $two, reports of what waits $stuck"
grep -h 'dualport' "$out/server" "$out/client"
[ $status = 0 ] && [ "$one" = 1 ] && [ "$two" = 1 ] && [ "$stuck" = 0 ]
