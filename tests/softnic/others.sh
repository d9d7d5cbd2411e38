# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# Programs of others on queue pairs that are bonded, in the build directory: each ends and reports as without the library,
# what is bulk is split, and both ports carry. perftest in both ways of posting, rdma-core's examples, UCX, qperf, libfabric,
# MPI. What is not installed, or has nothing to run on, is named. OTHERS chooses among them, and ONLY, a
# regular expression, among their command lines:
all="perftest pingpong qperf ucx fabric fio openmpi mpich"
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
softnic=$top/scripts/softnic
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0 ran=0

chosen() { [[ " ${OTHERS:-$all} " == *" $1 "* ]]; }
there()
{
	chosen "$1" || return 1
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
	for ((n = 0; n < 8; n++)); do
		rm -f "$out"/*.json
		# shellcheck disable=SC2086 # several options
		DUALPORT_DIAG_JSON=$out/%p.json "$softnic" --build . --ports 4 --cards 2 $1 -- \
			bash "$top/tests/softnic/pair.sh" "$out" "$2" "$3" && return
		# perftest compares two clocks, and reports nothing where the machine is too busy for that; nothing else is repeated
		grep -q "Can't produce a report" "$out/server" "$out/client" || return 1
		echo "again, since its clocks differed: $3"
	done
	return 1
}

# What a program reports that is no measurement: sizes and iterations, a line each (with $timed, sizes); kinds of tests; success.
told()
{
	awk -v timed="${timed:-}" '$1 ~ /^[0-9]+(\.[0-9]+)?[kmg]?$/ && NF >= 4 { print $1, timed ? "" : $2 }
		$1 == "Final:" { print $2 } /^[a-z_]+:$/ || /^success$/ { print $1 } /^sum / { print }' "$1"
}

# Some process has sent from both ports of its card, by neither less than a quarter of what the other carried.
carried()
{
	local f
	for f in "$out"/*.json; do
		grep -o '"port":"[^"]*","tx_bytes":[0-9]*,"tx_msgs"' "$f" | awk -F'"tx_bytes":' '
			{ v = $2 + 0 } v > 0 { n++; if (v > most) most = v; if (n == 1 || v < least) least = v }
			END { exit !(n == 2 && 4 * least >= most) }' && return
	done
	return 1
}

# alike SPLITS OPTIONS SERVER CLIENT: $name without the library, then with it. $as names what was told without it before.
declare -A known
alike()
{
	local want=$1 options=$2 what="${2:+$2 }${DUALPORT_ORDERING:+$DUALPORT_ORDERING }$name" bonds splits t=$SECONDS
	shift 2
	[[ $what =~ ${ONLY:-} ]] || return
	ran=$((ran + 1))
	: > "$out/without"
	if [ -n "${as:-}" ] && [ -n "${known[$as]:-}" ]; then
		echo "${known[$as]}" > "$out/without"
	elif ! both "$options" "$@"; then
		echo "FAILED: $what: without the library"
	else
		told "$out/client" > "$out/without"
		[ -s "$out/without" ] || echo "FAILED: $what: reports nothing without the library"
		[ -z "${as:-}" ] || known[$as]=$(cat "$out/without")
	fi
	if [ -s "$out/without" ]; then
		if ! both "$options --dualport" "$@"; then
			echo "FAILED: $what"
		elif ! diff "$out/without" <(told "$out/client"); then
			echo "FAILED: $what: reports something else"
		else
			bonds=$(number "$out/" bonds) splits=$(number "$out/" splits)
			if [ "$bonds" -lt "${least:-1}" ] || [ "$splits" -lt "$want" ]; then
				echo "FAILED: $what: $bonds bonds, $splits splits"
			elif [ "$want" -gt 0 ] && ! carried; then
				echo "FAILED: $what: one port carried it"
				cat "$out"/*.json
			else
				echo "ok: $what: $bonds bonds, $splits splits ($((SECONDS - t)) s)"
				return
			fi
		fi
	fi
	tail -n 12 "$out/server" "$out/client"
	failed=1
}

# -u 20: nobody gives up because the machine is busy. What is told does not depend on how it is posted.
lib="$PWD/tests/softnic/lib"
clock="export LD_PRELOAD=\${LD_PRELOAD:+\$LD_PRELOAD:}$lib/softnic-clock.so;" alarm=
perftest()
{
	as="${*:2}" name="${alarm:+interrupted: }${*:2}" alike "$1" "$options" \
		"$clock exec $2 -F -p \$port -d mlx5_0 -u 20 ${*:3}" \
		"$clock $alarm exec $2 -F -p \$port -d mlx5_2 -u 20 ${*:3} 127.0.0.1"
}
unbonded() { least=0 perftest 0 "$@"; }

# A client that never ends is ended when it has reported three times. No counters then, but a line that it was bonded.
endless()
{
	local tool="$clock stdbuf -oL $1 -F -p \$port -u 20 -s 65536 -D 1 --run_infinitely" dualport
	# shellcheck disable=SC2016 # for the shell that runs it
	local reports='[ $(grep -c "^ *65536 .*[0-9]" '"$out/client"') -ge 3 ]'

	[[ "${options:+$options }$1 --run_infinitely" =~ ${ONLY:-} ]] || return
	ran=$((ran + 1))
	for dualport in "" "--dualport"; do
		DUALPORT_DIAG=1 both "$options $dualport" "$tool -d mlx5_0; true" "$tool -d mlx5_2 127.0.0.1 &
			for ((i = 0; i < 600; i++)); do $reports && break; sleep 0.1; done
			kill -0 \$! && kill \$! && $reports" && grep -q "${dualport:+bonded over}" "$out/client" &&
			echo "ok: $options $dualport: $1 --run_infinitely" && continue
		echo "FAILED: $options $dualport: $1 --run_infinitely"
		tail -n 12 "$out/server" "$out/client"
		failed=1
	done
}

if there perftest ib_send_bw perftest; then
	# with a ConnectX, perftest takes ibv_wr_*
	for options in "" "--part-id 0x1017"; do
		for tool in ib_write_bw ib_read_bw; do
			perftest 200 $tool -s 65536 -n 200
			perftest 400 $tool -s 65536 -n 100 -q 4
			perftest 100 $tool -a -n 10
			perftest 200 $tool -s 65536 -n 200 -Q 1
			perftest 200 $tool -s 65536 -n 200 -l 8 -t 64
			timed=yes perftest 20 $tool -s 65536 -D 3 -f 1
			endless $tool
		done
		# by a handler that takes memory, as perftest's own with -D, where one port takes none
		alarm="export LD_PRELOAD=\$LD_PRELOAD:$lib/softnic-alarm.so;"
		timed=yes perftest 20 ib_read_bw -s 65536 -D 3 -f 1
		DUALPORT_ORDERING=rc timed=yes perftest 20 ib_write_bw -s 65536 -D 3 -f 1
		alarm=
		perftest 800 ib_write_bw -s 65536 -n 100 -q 4 -b
		perftest 400 ib_read_bw -s 65536 -n 200 -b
		perftest 200 ib_read_bw -s 65536 -n 200 -e
		perftest 0 ib_write_bw -s 64 -n 200 -I 64
		perftest 0 ib_send_bw -a -n 10
		perftest 0 ib_send_bw -s 65536 -n 200 -e -b
		perftest 0 ib_send_bw -s 4096 -n 200 --use-srq -q 4
		perftest 0 ib_send_bw -s 4096 -n 200 -l 8 -t 64 -Q 8
		perftest 0 ib_send_bw -s 64 -n 200 -I 64 -q 2
		timed=yes perftest 0 ib_send_bw -s 4096 -D 3 -f 1
		# who grants atomics alone stays native: there is nothing that a twin may carry
		unbonded ib_atomic_bw -n 200 -q 2
		unbonded ib_atomic_bw -n 200 -b -A CMP_AND_SWAP
		unbonded ib_atomic_bw -n 200 -e
		unbonded ib_atomic_lat -n 100
		perftest 0 ib_write_lat -n 100
		perftest 0 ib_write_lat -n 100 -s 64 -I 64
		perftest 100 ib_write_lat -s 65536 -n 100
		perftest 100 ib_write_lat -a -n 10
		perftest 100 ib_read_lat -s 65536 -n 100
		perftest 100 ib_read_lat -a -n 10
		perftest 0 ib_send_lat -a -n 10
		perftest 0 ib_send_lat -n 100 --use-srq -e
		perftest 0 ib_send_lat -n 100 -s 200 -I 200
		for tool in ib_write_bw ib_send_bw ib_write_lat ib_send_lat; do
			unbonded $tool -c UC -s 4096 -n 200
		done
		for tool in ib_write_bw ib_read_bw ib_send_bw ib_write_lat ib_read_lat ib_send_lat; do
			unbonded $tool -c XRC -s 65536 -n 200
		done
		unbonded ib_send_bw -c XRC -s 4096 -n 200 -q 4 -b
		unbonded ib_send_bw -c XRC -s 4096 -n 200 -e
		unbonded ib_atomic_bw -c XRC -n 200
		unbonded ib_send_bw -c UD -s 2048 -n 200 -r 512
		unbonded ib_send_lat -c UD -s 2048 -n 200 -e
		unbonded ib_send_lat -c UD -s 100 -n 200 --use-srq
	done
	echo "not run: ib_read_lat -e: it posts at a full queue when an event comes before its completion, see doc/design.md"
	echo "not run: ib_atomic_bw -e -Q 1: waits for ever on softnic, without the library, too"
	echo "not run: raw_ethernet_*: softnic has no raw packets; -R: no rdma_cm"
fi

if there pingpong ibv_rc_pingpong ibverbs-utils; then
	# they allow their peers no remote access, so that nothing of theirs could be split, and are not bonded
	pingpong()
	{
		least=0 name="$*" alike 0 "" "exec $1 -p \$port -d mlx5_0 -g 1 ${*:2}" "exec $1 -p \$port -d mlx5_2 -g 1 ${*:2} 127.0.0.1"
	}
	for args in "" "-N" "-t" "-e" "-s 65536"; do
		# shellcheck disable=SC2086 # perhaps none
		pingpong ibv_rc_pingpong $args
	done
	for args in "" "-e" "-s 65536"; do
		# shellcheck disable=SC2086
		pingpong ibv_srq_pingpong $args
	done
	for args in uc "uc -e" ud "ud -e" xsrq "xsrq -e"; do
		# shellcheck disable=SC2086
		set -- $args
		pingpong "ibv_$1_pingpong" "${@:2}"
	done
fi

# It names its peer by LID alone, so on RoCE it does not run at all, and on InfiniBand its queue pairs stay native. With -n,
# which few of its tests heed, the others never end.
if there qperf qperf qperf; then
	ran=$((ran + 1))
	for options in "" "--dualport"; do
		both "--link ib $options" "exec qperf -lp \$port" "
			q=\"qperf 127.0.0.1 -lp \$port -li mlx5_0 -ri mlx5_2\" status=0
			for poll in 0 1; do
				\$q -cp \$poll -t 1 -m 65536 rc_bw rc_bi_bw uc_bw rc_lat rc_rdma_write_lat || status=1
			done
			\$q -t 1 -m 65536 rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw uc_lat || status=1
			\$q -t 1 -m 2048 ud_lat || status=1
			\$q -t 1 ver_rc_compare_swap ver_rc_fetch_add rc_compare_swap_mr rc_fetch_add_mr || status=1
			qperf 127.0.0.1 -lp \$port quit
			exit \$status" && [ "$(told "$out/client" | wc -l)" -ge 20 ] && echo "ok: qperf $options" && continue
		echo "FAILED: qperf $options"
		tail -n 12 "$out/server" "$out/client"
		failed=1
	done
fi

if chosen ucx || chosen openmpi || chosen mpich; then
	export UCX_TLS=rc_verbs,ud_verbs,self # the first needs the second to connect
	# UCX connects by what its program polls for, so that both ends that wait wait in vain
	export DUALPORT_BOND_WAIT=1s
fi

if there ucx ucx_perftest ucx-utils; then
	ucx()
	{
		name="ucx_perftest ${*:2}" alike "$1" --sysfs "env UCX_NET_DEVICES=mlx5_0:1 ucx_perftest -p \$port -n 200 -t ${*:2}" \
			"env UCX_NET_DEVICES=mlx5_2:1 ucx_perftest 127.0.0.1 -p \$port -n 200 -t ${*:2}"
	}
	for test in ucp_put_bw ucp_put_lat ucp_get ucp_am_lat tag_lat ucp_add ucp_fadd ucp_cswap stream_bw; do
		ucx 0 $test -s 8
	done
	# the first ones go before the peer's keys are known
	for test in ucp_put_bw ucp_get ucp_am_bw tag_bw; do
		ucx 100 $test -s 1000000
		ucx 300 $test -s 100000 -T 8
	done
	ucx 50 ucp_put_lat -s 100000
	# each READ is behind a SEND that asks for no completion
	ucx 0 tag_lat -s 100000
fi

# Its RC endpoints, and fio's, want the kernel's connection manager; UD does not.
if there fabric fi_pingpong libfabric-bin; then
	for size in 64 10000 100000; do
		least=0 name="fi_pingpong $size" alike 0 "" "exec fi_pingpong -B \$port -p 'verbs;ofi_rxd' -e rdm -I 100 -S $size" \
			"exec fi_pingpong -P \$port -p 'verbs;ofi_rxd' -e rdm -I 100 -S $size 127.0.0.1"
	done
	echo "not run: fi_pingpong with -e msg and 'verbs;ofi_rxm': they want rdma_cm, and softnic has none"
fi
chosen fio && echo "not run: fio's engine rdma wants rdma_cm, and softnic has none"

# mpi SPLITS COMPILER LAUNCHER: two processes; the server of the pair only waits until they are done
mpi()
{
	local name=$2
	$2 -o "$out/mpi" "$top/tests/softnic/mpi.c" || { echo "FAILED: $2"; failed=1; return; }
	alike "$1" --sysfs "exec python3 -c 'import socket,sys
s = socket.create_server((\"127.0.0.1\", int(sys.argv[1])))
s.accept()' \$port" "exec 3<> /dev/tcp/127.0.0.1/\$port
		$3 -np 1 ${of_each/\%/mlx5_0:1} $out/mpi : -np 1 ${of_each/\%/mlx5_2:1} $out/mpi"
}

export UCX_RNDV_THRESH=16k
if there openmpi mpirun.openmpi openmpi-bin && there openmpi mpicc.openmpi libopenmpi-dev; then
	of_each="-x UCX_NET_DEVICES=%" mpi 20 mpicc.openmpi "mpirun.openmpi --allow-run-as-root --oversubscribe --mca pml ucx \
		--mca btl ^openib,vader,tcp --mca osc ucx -x UCX_TLS -x UCX_RNDV_THRESH"
fi

# Debian's is built for UCX. Two processes of a host would share memory. UCX asks no completion of the SEND before its READ, so
# the library cannot know in the default mode when the READ may go, and leaves it on one port.
if there mpich mpiexec.mpich mpich && there mpich mpicc.mpich libmpich-dev; then
	export MPIR_CVAR_NOLOCAL=1
	of_each="-env UCX_NET_DEVICES %"
	mpi 0 mpicc.mpich mpiexec.mpich
	DUALPORT_ORDERING=signal mpi 20 mpicc.mpich mpiexec.mpich
fi

echo "$ran ran"
[ $ran -gt 0 ] || exit 77
exit $failed
