# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Runs softnic's own tests of time, hostility and faults in the build directory, each under its options.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
failed=0

under()
{
	local test=$1
	shift
	"$top/scripts/softnic" --build . "$@" -- "tests/softnic/$test" || failed=1
}

under test_shape --rate 40MB --delay 2ms
under test_adverse --ports 4
for seed in 1 2 3; do
	under test_adverse --ports 4 --adverse --seed $seed
done
# Hostile, but right.
under test_rc --adverse --seed 4
under test_errors --adverse --seed 5

under test_place --ports 4 --cards 3 --placement late
under test_rc --placement late
exit $failed
