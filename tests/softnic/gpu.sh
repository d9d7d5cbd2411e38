#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#
# The process's GPU decides which ports its queue pairs use, seen from the bonds of a client that uses one device: by
# CUDA context (a fake driver), by local rank, by DUALPORT_GPU.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
driver=$PWD/tests/unit/fakecuda/libcuda.so.1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
unset "${!DUALPORT_@}" CUDA_VISIBLE_DEVICES LOCAL_RANK OMPI_COMM_WORLD_LOCAL_RANK SLURM_LOCALID FAKECUDA

cat >"$work/conf" <<'END'
gpus = ( { gpu = "0000:10:00.0"; ports = [ "mlx5_0:1", "mlx5_1:1" ]; },
         { gpu = "GPU-22222222"; ports = [ "mlx5_2:1", "mlx5_0:1" ]; },
         { gpu = 77; ports = [ "mlx5_0:1", "mlx5_3:1" ]; } );
END

# without the last, whose index cannot be compared with what the driver says
cat >"$work/named" <<'END'
gpus = ( { gpu = "0000:10:00.0"; ports = [ "mlx5_0:1", "mlx5_1:1" ]; },
         { gpu = "GPU-22222222"; ports = [ "mlx5_2:1", "mlx5_0:1" ]; } );
END

# ports NAME EXPECTED VAR=value...: the ports that loopback's bonds are over, each once; "" for none
ports()
{
	local name=$1 expected=$2 got preload=
	shift 2
	case " $*" in *" FAKECUDA="*) preload=$driver ;; esac
	env "$@" LD_PRELOAD="$preload" DUALPORT_CONF="${conf:-$work/conf}" DUALPORT_DIAG=1 DUALPORT_DEBUG=INFO timeout 100 \
		"$top/scripts/softnic" --build . --ports 4 --dualport -- "$PWD/tests/clients/loopback" --dev mlx5_0 --peer-dev mlx5_0 --settle-ms 150 >"$work/out" 2>&1 || {
		echo "FAILED: $name: $(tail -n 5 "$work/out")"
		failed=1
		return
	}
	got=$(sed -n 's/.*: bonded over //p' "$work/out" | sort -u | paste -sd'|')
	if [ "$got" = "$expected" ]; then
		echo "ok: $name"
	else
		echo "FAILED: $name: bonded over '$got', not '$expected': $(grep dualport "$work/out" | head -n 5)"
		failed=1
	fi
}

ports "CUDA context, group by PCI address" "mlx5_0:1 + mlx5_1:1" FAKECUDA=0
ports "CUDA context, group by UUID" "mlx5_0:1 + mlx5_2:1" FAKECUDA=1
ports "CUDA context wins over a rank" "mlx5_0:1 + mlx5_2:1" FAKECUDA=1 LOCAL_RANK=77
conf=$work/named ports "a GPU that has no group" "" FAKECUDA=3
grep -q 'mlx5_0: one port: the gpu of this process is in no port group' "$work/out" || { cat "$work/out"; failed=1; }
ports "no context yet, local rank" "mlx5_0:1 + mlx5_3:1" FAKECUDA=late LOCAL_RANK=77
ports "no driver, visible device" "mlx5_0:1 + mlx5_3:1" LOCAL_RANK=0 CUDA_VISIBLE_DEVICES=77
ports "DUALPORT_GPU wins" "mlx5_0:1 + mlx5_3:1" FAKECUDA=1 DUALPORT_GPU=77
ports "nothing known: the first group that has the port" "mlx5_0:1 + mlx5_1:1"

exit $failed
