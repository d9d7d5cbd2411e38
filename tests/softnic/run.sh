# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Runs softnic's own tests in the build directory.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
failed=0
for t in rc errors states ex srq xrc mw import datagram fork threads gpu; do
	"$top/scripts/softnic" --build . -- "tests/softnic/test_$t" || failed=1
done
echo "InfiniBand"
for t in rc errors datagram xrc; do
	"$top/scripts/softnic" --build . --link ib -- "tests/softnic/test_$t" || failed=1
done
echo "bonds"
"$top/scripts/softnic" --build . --ports 2 --cards 2 --lag 2 -- tests/softnic/test_lag || failed=1
exit $failed
