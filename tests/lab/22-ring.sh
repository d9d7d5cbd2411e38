#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Three processes in a ring, 64 queue pairs to each neighbour, MRs that come and go; then one killed and restarted.
. "$(dirname "$0")/lib.sh"
need_library
ring=$LAB_BUILD/tests/clients/ring
clear.sh

turn() {
	local what=$1
	shift
	rm -f "$out/$what".*.json
	env DUALPORT_CONF="$out/dualport.conf" DUALPORT_BOND_WAIT=20s DUALPORT_DIAG_JSON="$out/$what.%p.json" \
		LD_PRELOAD="$library" timeout -k 2 170 "$ring" --devs ra0,rb0 --timeout 160 "$@" > "$out/$what.out" 2>&1
	check "$what: status" "$?" == 0
	grep '^{' "$out/$what.out" | tail -n 1
	check "$what: splits" "$(number "$what" splits)" ">" 0
}

turn steady --qps 64 --seconds 10 --size 65536
check "steady: bonds of 3 processes" "$(number steady bonds)" ">=" $((3 * 2 * 64))
turn killed --qps 16 --seconds 15 --size 65536 --kill
check "killed: bonds" "$(number killed bonds)" ">" 0
finish
