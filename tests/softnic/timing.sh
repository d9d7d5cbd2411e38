# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# Runs softnic's own tests of time, hostility and faults in the build directory, each under its options.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
failed=0
faults=$(mktemp)
trap 'rm -f "$faults"' EXIT

under()
{
	local test=$1
	shift
	"$top/scripts/softnic" --build . "$@" -- "tests/softnic/$test" || failed=1
}

under test_shape --rate 20MB --delay 2ms
under test_adverse --ports 4
for seed in 1 2 3; do
	under test_adverse --ports 4 --adverse --seed $seed
done
# The same seed, the same luck; another, another; and devices differ.
lots() { "$top/scripts/softnic" --build . --adverse --seed "$1" -- tests/softnic/test_seed | grep '^lot:' > "$faults.$2"; }
lots 7 first
lots 7 again
lots 8 other
if [ "$(wc -l < "$faults.first")" = 128 ] && cmp "$faults.first" "$faults.again" &&
	[ "$(diff "$faults.first" "$faults.other" | grep -c '^>')" -gt 80 ] &&
	[ "$(sed 's/.*message//' "$faults.first" | sort -u | wc -l)" -gt 100 ]; then
	echo "ok: the same seed, the same luck"
else
	echo "FAILED: seeds"
	failed=1
fi
rm -f "$faults".*
# Hostile, but right.
under test_rc --adverse --seed 4
under test_errors --adverse --seed 5
under test_threads --adverse --seed 6

under test_place --ports 4 --cards 3 --placement late
under test_rc --placement late

under test_crowd --ports 32 --cards 8
# Many at once do not meet.
for n in 1 2 3 4; do
	("$top/scripts/softnic" --build . -- tests/softnic/test_rc > "$faults.$n" 2>&1 || echo "FAILED: one of many") &
done | grep . && failed=1
wait
rm -f "$faults".[1-4]

# faults TEST LINE...
faults()
{
	local test=$1
	shift
	printf '%s\n' "$@" > "$faults"
	"$top/scripts/softnic" --build . --faults "$faults" -- tests/softnic/test_faults "$test" || failed=1
}

faults down-up "50p mlx5_1 down" "+600ms mlx5_1 up"
faults silence "50p mlx5_1 silence" "+3s 1 up"
faults after-packets "100p mlx5_0 down"
faults qp-error "50p mlx5_1 qp-error 0x40" "# a comment" "+1s mlx5_1 qp-error all"
faults spurious "2s mlx5_0 event PORT_ACTIVE" "2s mlx5_0 event PORT_ACTIVE" "2010ms mlx5_0 event GID_CHANGE"
faults gid-move "50p mlx5_1 gid-move 1 3"
# What is wrong in the file is told with its line, and there are no devices.
for wrong in "250ms mlx5_7 down" "+250ms mlx5_0 down" "+10p mlx5_0 down"; do
	echo "$wrong" > "$faults"
	"$top/scripts/softnic" --build . --faults "$faults" -- tests/softnic/test_faults spurious 2>&1 |
		grep -q ":1: not AT PORT WHAT" || failed=1
done
exit $failed
