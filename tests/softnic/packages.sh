# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# More programs of others, in the build directory: transports, shared queues, InfiniBand, ibv_wr_* with rdma-core's
# examples and perftest; rdma-core's own tests; UCX and libfabric. What is not installed is named.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
softnic=$top/scripts/softnic
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0 ran=0

fail()
{
	echo "FAILED: $*"
	failed=1
}

there()
{
	command -v "$1" > /dev/null && return
	echo "not run: $1 is not there: the package $2"
	return 1
}

# both OPTIONS SERVER CLIENT: both ends of something, as shell commands
both()
{
	# shellcheck disable=SC2086 # several options
	"$softnic" --build . $1 -- bash "$top/tests/softnic/pair.sh" "$out" "exec $2" "exec $3"
}

# pair OPTIONS TOOL ARG...: of perftest's nobody gives up because the machine is busy, and two clocks that differ are no failure
pair()
{
	local options=$1 tool=$2 n
	shift 2
	[[ $tool != ib_* ]] || tool="env LD_PRELOAD=\${LD_PRELOAD:+\$LD_PRELOAD:}$PWD/tests/softnic/lib/softnic-clock.so $tool -F -u 20"
	ran=$((ran + 1))
	for ((n = 0; n < 4; n++)); do
		both "$options" "$tool -p \$port -d mlx5_0 $*" "$tool -p \$port -d mlx5_1 $* 127.0.0.1" && return
		grep -q "Can't produce a report" "$out/server" "$out/client" || break
	done
	fail "$options: $tool $*"
	# what goes to stderr is ahead of what was buffered
	head -n 3 "$out/server" "$out/client"
	tail -n 5 "$out/server" "$out/client"
}

if there ibv_rc_pingpong ibverbs-utils; then
	for link in roce ib; do
		gid=
		[ $link = ib ] || gid="-g 1"
		for tool in "rc" "rc -N" "rc -t" "rc -e" "uc" "uc -e" "ud" "ud -e" "srq" "srq -e" "xsrq" "xsrq -e"; do
			# shellcheck disable=SC2086 # name and options
			set -- $tool $gid
			pair "--link $link" "ibv_$1_pingpong" "${@:2}"
		done
	done
fi

if there ib_send_bw perftest; then
	# with a ConnectX, perftest takes ibv_wr_*
	for options in "" "--link ib" "--part-id 0x1017"; do
		for tool in ib_write_bw ib_send_bw ib_write_lat ib_send_lat; do
			pair "$options" $tool -c UC -n 200
		done
		pair "$options" ib_send_bw -c UD -n 200 -s 2048 -r 512
		pair "$options" ib_send_lat -c UD -n 200 -s 2048 -e
		pair "$options" ib_send_bw --use-srq -n 200 -q 4 -s 1024
		pair "$options" ib_send_lat -c UD --use-srq -n 200 -s 100
		pair "$options" ib_write_bw -I 64 -s 64 -n 200
		pair "$options" ib_send_lat -I 200 -s 200 -n 200
		pair "$options" ib_send_bw -e -b -n 200
		pair "$options" ib_atomic_lat -A CMP_AND_SWAP -n 200
		pair "$options" ib_read_bw -o 4 -q 2 -n 200
		for tool in "ib_send_bw -q 4 -s 1024" "ib_send_lat" "ib_write_lat -s 4096" "ib_read_bw" "ib_atomic_bw"; do
			# shellcheck disable=SC2086 # name and options
			pair "$options" $tool -c XRC -n 200
		done
	done
fi

# Those that need other devices, or the kernel, skip themselves; the rest must pass. The module is for Debian's python.
suite=/usr/share/doc/rdma-core/tests
if there /usr/bin/python3 python3 && /usr/bin/python3 -c 'import pyverbs' 2> /dev/null && [ -d $suite ]; then
	cp -r $suite "$out/tests"
	gunzip -f "$out"/tests/*.gz
	modules=
	for m in device mr pd cq cqex cq_events qp qpex addr atomic parent_domain relaxed_ordering fork odp flow shared_pd; do
		modules+=" tests.test_$m"
	done
	# suite OPTION...: into $out/suite
	suite()
	{
		ran=$((ran + 1))
		# shellcheck disable=SC2086
		(build=$PWD && cd "$out" && "$softnic" --build "$build" "$@" -- timeout 300 /usr/bin/python3 \
			tests/run_tests.py -v $modules) > "$out/suite" 2>&1 ||
			{ fail "rdma-core's tests, $*"; grep -A 12 -E '^(FAIL|ERROR)' "$out/suite"; }
		echo "rdma-core's tests, $*: $(grep -E '^Ran ' "$out/suite"): $(grep -E '^(OK|FAILED)' "$out/suite")"
	}
	# each test and how it ended; why it was skipped, too
	ended() { awk -f "$top/tests/clients/ended.awk" "$1"; }
	for link in roce ib; do
		suite --link $link
		n=$(sed -n 's/^Ran \([0-9]*\) tests.*/\1/p' "$out/suite")
		skipped=$(sed -n 's/^OK (skipped=\([0-9]*\))/\1/p' "$out/suite")
		[ $((${n:-0} - ${skipped:-0})) -ge 75 ] || fail "rdma-core's tests: most did not run"
		[ "$(grep -c '^test_[a-z_]*xrc.* ok$' "$out/suite")" -ge 7 ] || fail "rdma-core's tests: XRC did not run"
		mv "$out/suite" "$out/suite.without"
		# the library changes nothing; small messages are cut, too
		rm -f "$out"/*.json
		DUALPORT_SPLIT_MIN=256 DUALPORT_SPREAD_MIN=256 DUALPORT_ALIGN=128 DUALPORT_DIAG_JSON=$out/%p.json \
			suite --link $link --ports 2 --dualport
		diff <(ended "$out/suite.without") <(ended "$out/suite") || fail "rdma-core's tests, $link: differ with the library"
		cat "$out"/*.json | grep -q '"bonds": *[1-9]' || fail "rdma-core's tests, $link: nothing was bonded"
	done
else
	echo "not run: rdma-core's tests are not there: the package python3-pyverbs"
fi

if there ucx_perftest ucx-utils; then
	export UCX_TLS=rc_verbs,ud_verbs # the first needs the second to connect
	for args in "ucp_put_bw -s 8" "ucp_put_lat -s 8" "ucp_get -s 8" "ucp_am_bw -s 8" "tag_lat -s 8" "ucp_add -s 8" \
		"ucp_cswap -s 8" "stream_bw -s 8" "tag_bw -s 100000" "ucp_put_bw -s 1000000" "ucp_get -s 1000000"; do
		ran=$((ran + 1))
		both --sysfs "env UCX_NET_DEVICES=mlx5_0:1 ucx_perftest -p \$port -n 300 -t $args" \
			"env UCX_NET_DEVICES=mlx5_1:1 ucx_perftest 127.0.0.1 -p \$port -n 300 -t $args" &&
			grep -q 'Final:' "$out/client" && continue
		fail "UCX: $args"
		tail -n 5 "$out/server" "$out/client"
	done
fi

# Its RC wants the kernel's connection manager; UD does not.
if there fi_pingpong libfabric-bin; then
	ran=$((ran + 1))
	both '' "fi_pingpong -B \$port -p 'verbs;ofi_rxd' -e rdm -I 100 -S 10000" \
		"fi_pingpong -P \$port -p 'verbs;ofi_rxd' -e rdm -I 100 -S 10000 127.0.0.1" ||
		{ fail "libfabric"; tail -n 5 "$out/server" "$out/client"; }
	"$softnic" --build . -- fi_info -p verbs > "$out/info"
	grep -q 'FI_PROTO_RDMA_CM_IB_RC' "$out/info" || fail "fi_info"
fi

echo "$ran ran"
[ $ran -gt 0 ] || exit 77
exit $failed
