#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# The patterns of doc/ordering.md with either link 5 ms late: what a mode forbids is not seen; a control must see.
. "$(dirname "$0")/lib.sh"
need_library
client=$LAB_BUILD/tests/clients/litmus

# run NAME MODE ARG...: sets $status
run() {
	local what=$1
	# shellcheck disable=SC2154 # library, out: lib.sh
	env DUALPORT_CONF="$out/dualport.conf" DUALPORT_BOND_WAIT=10s DUALPORT_ORDERING="$2" DUALPORT_PATIENCE=always \
		DUALPORT_DIAG_JSON="$out/$what.%p.json" LD_PRELOAD="$library" timeout -k 2 110 "$client" --dev ra0 --peer-dev rb0 \
		--timeout 100 "${@:3}" > "$out/$what.out" 2>&1
	status=$?
}

for late in 1 0; do
	clear.sh
	delay.sh "$late" 5ms
	for mode in rc strict signal relaxed; do
		what=late$late-$mode
		run "$what" $mode --count "${LAB_ROUNDS:-8}"
		splits=$(number "$what" splits) waited=$(number "$what" signals_waited)
		if [[ $status -eq 0 && $splits -gt 0 && $waited -gt 0 ]]; then
			echo "   ok: $what: $splits splits, $waited signals waited"
		else
			fail "$what: status $status, $splits splits, $waited signals waited: $(grep -m 3 -E 'FAILED|litmus:' "$out/$what.out")"
		fi
	done
done
clear.sh
delay.sh 1 5ms
run control relaxed --count 40 --must --only data-inline,data-flags,flag-at-the-end
check "control: status" "$status" == 0
check "control: splits" "$(number control splits)" ">" 0
finish
