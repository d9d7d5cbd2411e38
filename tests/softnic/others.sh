# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# Programs of others on queue pairs that are bonded, in the build directory: each ends and reports as without the library,
# and what is bulk is split. perftest in both ways of posting, UCX, qperf, MPI. What is not installed is named.
# OTHERS="perftest qperf ucx mpi" chooses among them.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
softnic=$top/scripts/softnic
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0 ran=0

there()
{
	[[ " ${OTHERS:-perftest qperf ucx mpi} " == *" $1 "* ]] || return 1
	command -v "$2" > /dev/null && return
	echo "not run: $2 is not there: the package $3"
	return 1
}

# shellcheck source=tests/clients/number.sh
. "$top/tests/clients/number.sh"

# both OPTIONS SERVER CLIENT: both ends of something, as shell commands, on two hosts of two ports
both()
{
	local n
	for ((n = 0; n < 5; n++)); do
		rm -f "$out"/*.json
		# shellcheck disable=SC2086 # several options
		DUALPORT_DIAG_JSON=$out/%p.json "$softnic" --build . --ports 4 --cards 2 $1 -- \
			bash "$top/tests/softnic/pair.sh" "$out" "$2" "$3" && return
		# perftest compares two clocks first, and gives up where the machine is too busy for that
		grep -q "Can't produce a report" "$out/server" "$out/client" || return 1
	done
	return 1
}

# What a program reports that is no measurement: sizes and iterations, a line each; kinds of tests.
told() { awk '$1 ~ /^[0-9]+$/ && NF >= 4 { print $1, $2 } $1 == "Final:" { print $2 } /^[a-z_]+:$/ { print $1 } /^sum / { print }' "$1"; }

# alike SPLITS OPTIONS SERVER CLIENT: without the library, then with it
alike()
{
	local want=$1 options=$2 what="$2: $4"
	shift 2
	ran=$((ran + 1))
	if ! both "$options" "$@"; then
		echo "FAILED: $what: without the library"
	elif ! told "$out/client" > "$out/without" || ! [ -s "$out/without" ]; then
		echo "FAILED: $what: reports nothing without the library"
	elif ! both "$options --dualport" "$@"; then
		echo "FAILED: $what"
	elif ! diff "$out/without" <(told "$out/client"); then
		echo "FAILED: $what: reports something else"
	elif [ "$(number "$out/" bonds)" -lt "${least:-1}" ] || [ "$(number "$out/" splits)" -lt "$want" ]; then
		echo "FAILED: $what: $(number "$out/" bonds) bonds, $(number "$out/" splits) splits"
	else
		echo "ok: $what: $(number "$out/" bonds) bonds, $(number "$out/" splits) splits"
		return
	fi
	tail -n 5 "$out/server" "$out/client"
	failed=1
}

# -u 20: nobody gives up because the machine is busy
perftest() { alike "$1" "$options" "exec $2 -p \$port -d mlx5_0 -u 20 ${*:3}" "exec $2 -p \$port -d mlx5_2 -u 20 ${*:3} 127.0.0.1"; }

if there perftest ib_send_bw perftest; then
	# with a ConnectX, perftest takes ibv_wr_*
	for options in "" "--part-id 0x1017"; do
		for tool in ib_write_bw ib_read_bw; do
			perftest 200 $tool -s 65536 -n 200
			perftest 400 $tool -s 65536 -n 100 -q 4
			perftest 100 $tool -a -n 10
		done
		perftest 800 ib_write_bw -s 65536 -n 100 -q 4 -b
		perftest 200 ib_read_bw -s 65536 -n 200 -e
		perftest 0 ib_send_bw -a -n 10
		perftest 0 ib_send_bw -s 65536 -n 200 -e -b
		perftest 0 ib_send_bw -s 4096 -n 200 --use-srq -q 4
		# who grants atomics alone stays native: there is nothing that a twin may carry
		least=0 perftest 0 ib_atomic_bw -n 200 -q 2
		least=0 perftest 0 ib_atomic_bw -n 200 -b -A CMP_AND_SWAP
		least=0 perftest 0 ib_atomic_lat -n 100
		perftest 0 ib_write_lat -n 100
		perftest 100 ib_write_lat -s 65536 -n 100
		perftest 100 ib_read_lat -s 65536 -n 100 -e
		perftest 0 ib_send_lat -a -n 10
		perftest 0 ib_send_lat -n 100 --use-srq -e
	done
fi

# It names its peer by LID alone, so on RoCE it does not run at all, and on InfiniBand its queue pairs stay native.
if there qperf qperf qperf; then
	ran=$((ran + 1))
	for options in "" "--dualport"; do
		both "--link ib $options" "exec qperf -lp \$port" "
			q=\"qperf 127.0.0.1 -lp \$port -li mlx5_0 -ri mlx5_2\" status=0
			for poll in 0 1; do
				\$q -cp \$poll -n 100 -m 65536 rc_bw rc_lat rc_bi_bw rc_rdma_read_bw rc_rdma_read_lat \
					rc_rdma_write_bw rc_rdma_write_lat uc_bw uc_lat || status=1
				\$q -cp \$poll -n 100 -m 2048 ud_lat || status=1
			done
			\$q -t 1 ver_rc_compare_swap ver_rc_fetch_add rc_compare_swap_mr rc_fetch_add_mr || status=1
			qperf 127.0.0.1 -lp \$port quit
			exit \$status" && [ "$(told "$out/client" | wc -l)" -ge 24 ] && echo "ok: qperf $options" && continue
		echo "FAILED: qperf $options"
		tail -n 5 "$out/server" "$out/client"
		failed=1
	done
fi

if there ucx ucx_perftest ucx-utils; then
	export UCX_TLS=rc_verbs,ud_verbs # the first needs the second to connect
	ucx()
	{
		alike "$1" --sysfs "env UCX_NET_DEVICES=mlx5_0:1 ucx_perftest -p \$port -n 200 -t ${*:2}" \
			"env UCX_NET_DEVICES=mlx5_2:1 ucx_perftest 127.0.0.1 -p \$port -n 200 -t ${*:2}"
	}
	ucx 0 ucp_put_bw -s 8
	ucx 0 ucp_add -s 8
	# the first ones go before the peer's keys are known
	for test in ucp_put_bw ucp_get ucp_am_bw tag_bw; do
		ucx 100 $test -s 1000000
		ucx 800 $test -s 100000 -T 8
	done
fi

if there mpi mpirun.openmpi openmpi-bin && there mpi mpicc.openmpi libopenmpi-dev; then
	if mpicc.openmpi -o "$out/mpi" "$top/tests/softnic/mpi.c"; then
		mpi="mpirun.openmpi --allow-run-as-root --oversubscribe --mca pml ucx --mca btl ^openib,vader,tcp --mca osc ucx \
			-x UCX_TLS=rc_verbs,ud_verbs,self -x UCX_RNDV_THRESH=16k"
		# one process of its own for the pair; the other end of it only waits
		alike 20 --sysfs "exec python3 -c 'import socket,sys
s = socket.create_server((\"127.0.0.1\", int(sys.argv[1])))
s.accept()' \$port" "exec 3<> /dev/tcp/127.0.0.1/\$port
			exec $mpi -np 1 -x UCX_NET_DEVICES=mlx5_0:1 $out/mpi : -np 1 -x UCX_NET_DEVICES=mlx5_2:1 $out/mpi"
	else
		echo "FAILED: mpicc.openmpi"
		failed=1
	fi
fi

echo "$ran ran"
[ $ran -gt 0 ] || exit 77
exit $failed
