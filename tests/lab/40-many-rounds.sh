#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# No flag before its data through ibv_wr_* and ibv_cq_ex, 32 queue pairs at once, one link 20 ms late. By default two runs,
# with "run-all --full" 100,000 rounds (or LAB_MANY), each run of another seed, with shorter WRITEs: what counts there are the
# rounds, and the guest's processors limit the bytes.
. "$(dirname "$0")/lib.sh"
need_library
want=${LAB_MANY:-$([[ -n ${LAB_FULL:-} ]] && echo 100000 || echo 640)}
each=10 # of each queue pair in one run
sizes=(--max 32k)
[[ -z ${LAB_FULL:-} ]] || { each=200 sizes=(--max 8k --writes 4); export DUALPORT_SPLIT_MIN=4k; }
seed=${LAB_SEED:-1}

# run NAME ROUNDS ORDERING ARG...: sets $status. Of soft-RoCE: no time stamps, and its ibv_wr_set_sge_list of rdma-core 44
# adds the lengths up wrongly, without any library, so each WR has one SGE.
run() {
	local what=$1 rounds=$2 ordering=$3
	shift 3
	rm -f "$out/$what".*
	env DUALPORT_CONF="$out/dualport.conf" DUALPORT_BOND_WAIT=20s DUALPORT_ORDERING="$ordering" DUALPORT_PATIENCE=always \
		DUALPORT_DIAG_JSON="$out/$what.%p.json" LD_PRELOAD="$library" \
		timeout -k 2 400 "$LAB_BUILD/tests/clients/dataflag" --dev ra0 --peer-dev rb0 --rounds "$rounds" --timeout 380 \
		--wr --cq-ex --no-stamps --sges 1 "${sizes[@]}" --cq all --window 4 "$@" > "$out/$what.out" 2>&1
	status=$?
}

delay.sh 1 20ms
done_rounds=0
while ((done_rounds < want)); do
	what=seed$seed
	case $((seed % 4)) in
	0) run "$what" "$each" strict --qps 32 --seed "$seed" --threads 2 --wait fd ;;
	1) run "$what" "$each" strict --qps 32 --seed "$seed" --reads 2 ;;
	2) run "$what" "$each" signal --qps 32 --seed "$seed" --wait event --overlap 30 --fence 20 ;;
	3) run "$what" "$each" rc --qps 32 --seed "$seed" --threads 2 ;;
	esac
	bonds=$(number "$what" bonds) splits=$(number "$what" splits) waited=$(number "$what" signals_waited)
	if [[ $status -ne 0 || $bonds -lt 64 || $splits -eq 0 || $waited -eq 0 ]]; then
		fail "seed $seed: status $status, $bonds bonds, $splits splits, $waited signals waited:" \
			"$(grep -m 2 -E 'VIOLATION|GUARD|dataflag:' "$out/$what.out")"
		((failures < 3)) || break
	else
		rm -f "$out/$what".*
	fi
	done_rounds=$((done_rounds + 32 * each)) seed=$((seed + 1))
	((seed % 10 > 0)) || echo "$done_rounds rounds, $splits splits and $waited signals that waited in the last run"
done
echo "$done_rounds rounds of $want, one link 20 ms late, 32 queue pairs"

# The control: what must not hold in mode relaxed does not, so the client sees what it claims to see.
run control 10 relaxed --qps 32 --flags inline
check "control: status" "$status" == 1
check "control: violations" "$(grep -o '"violations":[0-9]*' "$out/control.out" | awk -F: '{ s += $2 } END { print s + 0 }')" ">" 0
check "control: splits" "$(number control splits)" ">" 0
finish
