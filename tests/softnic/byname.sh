#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#
# What the library does for objects that it knows by name: which devices NVSHMEM's IBRC transport sees, what NVSHMEM's
# host library reads from its environment, and that NCCL is left alone. With fake objects of these names.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
dir=$PWD/tests/softnic/byname
conf=$(mktemp)
trap 'rm -f "$conf" "$conf.err"' EXIT
failed=0
ibrc=$dir/nvshmem_transport_ibrc.so.3 host=$dir/libnvshmem_host.so.3 nccl=$dir/libnccl.so.2 other=$dir/libother.so.1
deepep=$dir/deep_ep_cpp.cpython-311-x86_64-linux-gnu.so

# like NVSHMEM, the fakes free no list
export ASAN_OPTIONS=detect_leaks=0:${ASAN_OPTIONS:-}
unset "${!NVSHMEM_@}" "${!DUALPORT_@}" CUDA_VISIBLE_DEVICES LOCAL_RANK OMPI_COMM_WORLD_LOCAL_RANK SLURM_LOCALID

# expect NAME EXPECTED ERROR-PATTERN [VAR=value...] -- argument of byname_main...: what it prints, lines as "a|b"
expect()
{
	local name=$1 expected=$2 pattern=$3 vars=() got
	shift 3
	while [ "$1" != -- ]; do
		vars+=("$1")
		shift
	done
	shift
	got=$(env DUALPORT_CONF="$conf" "${vars[@]}" timeout 60 "$top/scripts/softnic" --build . --ports 6 --cards 3 \
		--dualport -- \
		"$PWD/tests/softnic/byname_main" "$@" 2>"$conf.err" | paste -sd'|')
	if [ "$got" != "$expected" ]; then
		echo "FAILED: $name: '$got', not '$expected': $(cat "$conf.err")"
		failed=1
	elif [ -n "$pattern" ] && [ "$(grep -Ec "$pattern" "$conf.err")" != 1 ]; then
		echo "FAILED: $name: not one line of '$pattern': $(cat "$conf.err")"
		failed=1
	else
		echo "ok: $name"
	fi
}

cat >"$conf" <<'END'
gpus = ( { gpu = 0; ports = [ "mlx5_0:1", "mlx5_1:1" ]; },
         { gpu = 1; ports = [ "mlx5_3:1", "mlx5_2:1" ]; },
         { gpu = 2; ports = [ "mlx5_4:1", "mlx5_5:1", "mlx5_9:1" ]; } );
END
all="mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5"
file=(DUALPORT_DEBUG=INFO)
expect "IBRC sees the ports of its GPU, first one first" "mlx5_3 mlx5_2" "sees 2 of 6 devices, mlx5_3 first" \
	"${file[@]}" DUALPORT_GPU=1 -- "$ibrc" devices
expect "by local rank" "mlx5_0 mlx5_1" "" "${file[@]}" LOCAL_RANK=0 -- "$ibrc" devices
expect "another object of the process sees all" "$all" "" "${file[@]}" DUALPORT_GPU=1 -- -w "$ibrc" "$other" devices
expect "the first only" "mlx5_3" "" "${file[@]}" DUALPORT_GPU=1 DUALPORT_NVSHMEM_DEVICES=first -- "$ibrc" devices
expect "all" "$all" "" "${file[@]}" DUALPORT_GPU=1 DUALPORT_NVSHMEM_DEVICES=all -- "$ibrc" devices
expect "asked twice" "mlx5_3 mlx5_2|mlx5_3 mlx5_2" "" "${file[@]}" DUALPORT_GPU=1 -- "$ibrc" devices devices
expect "GPU unknown" "$all" "all 6 devices: no port group names" "${file[@]}" -- "$ibrc" devices
expect "GPU in no group" "$all" "all 6 devices: no port group names" "${file[@]}" DUALPORT_GPU=7 -- "$ibrc" devices
expect "a device of the group is missing" "$all" "not every device" "${file[@]}" DUALPORT_GPU=2 -- "$ibrc" devices
expect "the user names devices" "$all" "all 6 devices: NVSHMEM_HCA_LIST is set" "${file[@]}" DUALPORT_GPU=1 \
	NVSHMEM_HCA_LIST=mlx5_4:1 -- "$ibrc" devices
expect "the user maps devices" "$all" "all 6 devices: NVSHMEM_HCA_PE_MAPPING is set" "${file[@]}" DUALPORT_GPU=1 \
	NVSHMEM_HCA_PE_MAPPING=mlx5_4:1:1 -- "$ibrc" devices
expect "switched off" "$all" "" DUALPORT_ENABLE=0 DUALPORT_GPU=1 -- "$ibrc" devices

vars=(NVSHMEM_IB_ENABLE_IBGDA NVSHMEM_REMOTE_TRANSPORT NVSHMEM_GPUNETIO_ENABLE_GDAKI NVSHMEM_QP_DEPTH)
force=(DUALPORT_NVSHMEM_FORCE_IBRC=1 DUALPORT_DEBUG=INFO NVSHMEM_IB_ENABLE_IBGDA=1 NVSHMEM_QP_DEPTH=77)
expect "IBRC is forced" "0|ibrc|0|77" "told to use IBRC" "${force[@]}" -- "$host" "${vars[@]}"
expect "for NVSHMEM's host library only" "1|unset|unset|77" "" "${force[@]}" -- -w "$host" "$other" "${vars[@]}"
expect "not forced by default" "1|unset|unset|77" "" "${force[@]}" DUALPORT_NVSHMEM_FORCE_IBRC=0 -- "$host" "${vars[@]}"
expect "refused: DeepEP with IBGDA" "1|unset|unset|77" "force_ibrc is not followed: DeepEP" "${force[@]}" \
	-- -w "$deepep" "$host" "${vars[@]}"
expect "DeepEP without IBGDA" "0|ibrc|0|77" "told to use IBRC" "${force[@]}" NVSHMEM_IB_ENABLE_IBGDA=0 \
	-- -w "$deepep" "$host" "${vars[@]}"

expect "NCCL is left alone" "native|$all" "" -- "$nccl" pd devices
expect "NCCL opted in" "hooked" "" DUALPORT_NCCL=1 -- "$nccl" pd
expect "others are served" "hooked" "" -- "$other" pd

exit $failed
