# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# dualport report on what real processes wrote: which rail is slow, and what arrived at which port.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
command -v ib_write_bw > /dev/null || { echo "ib_write_bw is not there: the package perftest is needed"; exit 77; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0

# run TOOL SOFTNIC-OPTION...: what report says of it is in $out/report
run()
{
	local tool="$1 -p \$port -s 65536 -n ${n:-20} -q 4"
	shift
	for _ in 1 2 3; do
		rm -f "$out"/*.json
		DUALPORT_DIAG_JSON=$out/%p.json "$top/scripts/softnic" --build . --ports 4 --cards 2 "$@" --dualport -- \
			bash "$top/tests/softnic/pair.sh" "$out" "$tool -d mlx5_0" "$tool -d mlx5_2 127.0.0.1" && break
	done
	tools/dualport report "$out"/*.json > "$out/report"
}

# want WHAT PATTERN
want()
{
	if grep -Eq "$2" "$out/report"; then
		echo "ok: $1: $(grep -Em 1 "$2" "$out/report")"
	else
		echo "FAILED: $1"
		cat "$out/report"
		failed=1
	fi
}

# Rates that any machine can keep up with, and far apart: only the ports' own clocks matter.
n=10 run ib_write_bw --rate 16Mbit,4Mbit
want "a slow rail" '^slow: .*: from mlx5_3:1 to mlx5_1:1 of 127\.'
want "the slowest first" '^127\..* mlx5_3:1 +mlx5_1:1 +0\.0'
grep -A 1 '^slowest' "$out/report" | grep -q 'mlx5_3:1' || { echo "FAILED: not the first line"; failed=1; }
n=10 run ib_write_bw --rate 4Mbit,16Mbit
want "the program's own port slow" '^slow: .*: from mlx5_2:1 to mlx5_0:1 of 127\.'
# what is written arrives at the other end's ports, what is read at one's own
run ib_write_bw
to=$(sed -n '/^received/,/^slowest/s/^127\.[0-9.]* *\(mlx5_[0-9]:1\) *2621440 .*/\1/p' "$out/report" | paste -sd' ')
[ "$to" = "mlx5_0:1 mlx5_1:1" ] || { echo "FAILED: WRITEs arrive at '$to'"; cat "$out/report"; failed=1; }
run ib_read_bw
to=$(sed -n '/^received/,/^slowest/s/^127\.[0-9.]* *\(mlx5_[0-9]:1\) *[0-9]* .*/\1/p' "$out/report" | paste -sd' ')
[ "$to" = "mlx5_2:1 mlx5_3:1" ] || { echo "FAILED: READs arrive at '$to'"; cat "$out/report"; failed=1; }
exit $failed
