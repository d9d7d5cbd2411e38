# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# Programs of others that post through ibv_wr_*, with the library, in the build directory: bulk is split, the rest works.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0

for tool in ibv_rc_pingpong ib_write_bw ib_read_bw ib_send_bw ib_write_lat ib_send_lat; do
	command -v $tool > /dev/null && continue
	echo "$tool is not there: the packages ibverbs-utils and perftest are needed"
	exit 77
done

# shellcheck source=tests/clients/number.sh
. "$top/tests/clients/number.sh"

# both TOOL ARG...: with a ConnectX, perftest takes ibv_wr_*
both()
{
	local tool=$1
	shift
	for _ in 1 2 3 4 5; do
		rm -f "$out"/*.json
		DUALPORT_DIAG_JSON=$out/%p.json "$top/scripts/softnic" --build . --ports 4 --cards 2 --part-id 0x1017 \
			--dualport -- bash "$top/tests/softnic/pair.sh" "$out" "exec $tool -p \$port -d mlx5_0 $*" \
			"exec $tool -p \$port -d mlx5_2 $* 127.0.0.1" && return
		# perftest compares two clocks first, and gives up where the machine is too busy for that
		grep -q "Can't produce a report" "$out/server" "$out/client" || return 1
	done
	return 1
}

# pair SPLITS TOOL ARG...: at least so many splits, of both ends
pair()
{
	local want=$1
	shift
	if both "$@" && [ "$(number "$out/" splits)" -ge "$want" ] && [ "$(number "$out/" qp-ex)" = 0 ] && [ "$(number "$out/" cq-ex)" = 0 ]; then
		echo "ok: $*: $(number "$out/" bonds) bonds, $(number "$out/" splits) splits"
	else
		echo "FAILED: $*: $(number "$out/" bonds) bonds, $(number "$out/" splits) splits, $(number "$out/" qp-ex) $(number "$out/" cq-ex)"
		cat "$out/server" "$out/client"
		failed=1
	fi
}

# -u 20: nobody gives up because the machine is busy
pair 300 ib_write_bw -u 20 -s 65536 -n 300
pair 300 ib_read_bw -u 20 -s 65536 -n 300
pair 1600 ib_write_bw -u 20 -s 65536 -n 200 -b -q 4
pair 100 ib_write_bw -u 20 -a -n 10
pair 0 ib_send_bw -u 20 -s 65536 -n 300 -e
pair 0 ib_send_lat -u 20 -n 200 -e
pair 0 ib_write_lat -u 20 -n 200
# new and old way of posting, with time stamps of its CQ
for args in "" "-N" "-N -e" "-t" "-N -t"; do
	# shellcheck disable=SC2086 # several options
	pair 0 ibv_rc_pingpong -g 1 -n 300 $args
done
exit $failed
