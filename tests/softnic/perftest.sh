# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Programs of others on softnic, in the build directory: rdma-core's examples and perftest.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
softnic=$top/scripts/softnic
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0

fail()
{
	echo "FAILED: $*"
	failed=1
}

for tool in ibv_devinfo ibv_rc_pingpong ib_write_bw ib_read_bw ib_send_bw ib_atomic_bw ib_write_lat ib_send_lat; do
	command -v $tool > /dev/null && continue
	echo "$tool is not there: the packages ibverbs-utils and perftest are needed"
	exit 77
done

# pair OPTIONS TOOL SERVER-DEVICE CLIENT-DEVICE ARG...
pair()
{
	local options=$1 tool=$2 server_dev=$3 client_dev=$4
	shift 4
	# shellcheck disable=SC2086 # several options
	if ! "$softnic" --build . $options -- bash "$top/tests/softnic/pair.sh" "$out" \
		"exec $tool -p \$port -d $server_dev $*" "exec $tool -p \$port -d $client_dev $* 127.0.0.1"; then
		fail "$options: $tool $*"
		tail -n 5 "$out/server" "$out/client"
		return 1
	fi
}

# The average in MiB/s, or the typical time in us, of the last pair.
result()
{
	awk '$1 ~ /^[0-9]+$/ && NF >= 5 { print $4; exit }' "$out/client"
}

within()
{
	awk -v v="${2:-0}" -v lo="$3" -v hi="$4" 'BEGIN { exit !(v >= lo && v <= hi) }' && echo "ok: $1: $2" && return
	echo "$1: ${2:-nothing}, not in $3 to $4"
	return 1
}

"$softnic" --build . --ports 4 --cards 2 -- ibv_devinfo > "$out/devinfo" || fail ibv_devinfo
[ "$(grep -c '^hca_id' "$out/devinfo")" = 4 ] || fail "ibv_devinfo: not 4 devices"
[ "$(grep sys_image_guid "$out/devinfo" | sort -u | wc -l)" = 2 ] || fail "ibv_devinfo: not 2 cards"

pair '' ibv_rc_pingpong mlx5_0 mlx5_1 -g 1
pair '' ibv_rc_pingpong mlx5_0 mlx5_1 -g 1 -e
for args in "" "-q 4" "-b" "-b -q 4 -s 100"; do
	for tool in ib_write_bw ib_read_bw ib_send_bw ib_atomic_bw; do
		# shellcheck disable=SC2086
		[ "$tool $args" = "ib_atomic_bw -b -q 4 -s 100" ] || pair '' $tool mlx5_0 mlx5_1 -n 500 $args
	done
done
for tool in ib_read_bw ib_send_bw ib_send_lat; do
	pair '' $tool mlx5_0 mlx5_1 -n 500 -e
done
pair '' ib_write_lat mlx5_0 mlx5_1 -n 500
for tool in ib_write_bw ib_read_bw ib_send_bw; do
	pair '' $tool mlx5_0 mlx5_1 -a -n 20
done

# A port has its rate: never more. 100 Mbit/s are 11.92 MiB/s. How near it comes: bench/softnic-rate.
for op in "ib_write_bw -s 65536" "ib_read_bw -s 65536" "ib_send_bw -s 8192"; do
	# shellcheck disable=SC2086
	set -- $op
	pair "--rate 100Mbit --delay 100us" "$1" mlx5_0 mlx5_1 "${@:2}" -n $((8000000 / $3)) || continue
	within "$op at 100 Mbit/s" "$(result)" 0.5 11.98 || fail "rate of $op"
done

# One way twice: a round trip of ib_send_lat, which it halves. Never less.
if pair "--delay 5ms" ib_send_lat mlx5_0 mlx5_1 -n 50; then
	within "5 ms one way" "$(awk '$1 == 2 { print $3 }' "$out/client")" 5000 10000000 || fail "delay"
fi

exit $failed
