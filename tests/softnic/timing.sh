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
exit $failed
