#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# No flag before its data, whatever the flag, with either link 5 ms late; the control must break.
. "$(dirname "$0")/lib.sh"
need_library
client=$LAB_BUILD/tests/clients/dataflag
rounds=${LAB_ROUNDS:-42}

# run NAME ORDERING ARG...: both ends with the library; sets $status.
run() {
	local what=$1 ordering=$2
	shift 2
	rm -f "$out/$what".*.json
	# shellcheck disable=SC2154 # library, out: lib.sh
	env DUALPORT_CONF="$out/dualport.conf" DUALPORT_BOND_WAIT=10s DUALPORT_ORDERING="$ordering" DUALPORT_PATIENCE=always \
		DUALPORT_DIAG_JSON="$out/$what.%p.json" LD_PRELOAD="$library" \
		timeout -k 2 60 "${program:-$client}" --dev ra0 --peer-dev rb0 --rounds "$rounds" --timeout 50 "$@" \
		> "$out/$what.out" 2>&1
	status=$?
}

# good NAME ORDERING ARG...: ends well, and something was split and something waited, or it proves nothing.
good() {
	run "$@"
	local splits waited
	splits=$(number "$1" splits) waited=$(number "$1" signals_waited)
	if [[ $status -eq 0 && $splits -gt 0 && $waited -gt 0 ]]; then
		echo "   ok: $1: $splits splits, $waited signals waited"
	else
		fail "$1: status $status, $splits splits, $waited signals waited: $(grep -m 2 -E 'VIOLATION|GUARD|dataflag:' "$out/$1.out")"
	fi
}

for late in 1 0; do
	clear.sh
	delay.sh "$late" 5ms
	for wait in poll event fd; do
		good "late$late-strict-one-$wait" strict --window 1 --wait "$wait" --reads 4
		good "late$late-strict-many-$wait" strict --window 8 --wait "$wait"
		good "late$late-signal-many-$wait" signal --window 8 --wait "$wait" --reads 4
	done
	good "late$late-rc" rc --window 4
	good "late$late-overlap-fence" signal --window 4 --overlap 50 --fence 30 --read-back 50 --reads 4 --mixed
	good "late$late-both-ways" strict --window 4 --bidir --qps 4 --threads 2 --cq all
done

# Loaded in every way that programs use.
clear.sh
delay.sh 1 5ms
good load-dlsym strict --load dlsym
good load-dlvsym strict --load dlvsym
# the one that is in use: with LAB_CORE not the system's
good load-absolute strict --load dlsym --lib "$(readlink -f "$(ldd "$client" | awk '$1 == "libibverbs.so.1" { print $3 }')")"
mkdir -p /tmp/copy
cp "$client-runpath" "$client-dl" /tmp/copy/
"$LAB_TREE/tests/clients/verbs-copies.sh" /tmp/copy
program=/tmp/copy/dataflag-dl good load-renamed strict --load dlvsym --lib /tmp/copy/runpath/libibverbs-1a2b3c4d.so.1
program=/tmp/copy/dataflag-runpath good load-runpath strict
program=/tmp/copy/dataflag-dl good load-not-linked strict --load dlvsym

# The control: what must not hold in mode relaxed does not, so the client sees what it claims to see.
run control relaxed --flags inline --window 4
violations=$(grep -o '"violations":[0-9]*' "$out/control.out" | awk -F: '{ s += $2 } END { print s + 0 }')
check "control: status" "$status" == 1
check "control: violations in mode relaxed" "$violations" ">" 0
check "control: splits" "$(number control splits)" ">" 0
finish
