#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Programs of few lines, natively and with the library: errors, floods, loops, MRs that come and go, what is left behind.
. "$(dirname "$0")/lib.sh"
need_library
clients=$LAB_BUILD/tests/clients
clear.sh

told() { awk -f "$tests/../clients/told.awk" "$out/$1.out"; }

# Both runs must end alike and print the same, but for the summary line, which has times in it.
alike() {
	local what=$1 kind status
	shift
	for kind in plain loaded; do
		(settings=(DUALPORT_BOND_WAIT=0 DUALPORT_DIAG=0 DUALPORT_GPU=none); as $kind a "$what" timeout -k 2 150 "$@") \
			> "$out/$what.$kind.out" 2> "$out/$what.$kind.err"
		status=$?
		[[ $status -eq 0 ]] || fail "$what: $kind: status $status: $(tail -n 3 "$out/$what.$kind.err")"
	done
	if diff <(told "$what.plain") <(told "$what.loaded") > "$out/$what.diff"; then
		echo "   ok: $what: as without the library; bonds $(json "$what" a bonds), splits $(json "$what" a splits)"
	else
		fail "$what: differs: $(head -n 6 "$out/$what.diff")"
	fi
}

bonded() { check "$1: bonds" "$(json "$1" a bonds)" ">=" 1; }

alike errors "$clients/errors" --dev ra0 --peer-dev rb0 --settle-ms 1500
bonded errors
alike sqflood "$clients/sqflood" --dev ra0 --peer-dev rb0 --settle-ms 1500
bonded sqflood
alike loopback "$clients/loopback" --dev ra0 --peer-dev rb0 --settle-ms 1500
bonded loopback
check "loopback: splits" "$(json loopback a splits)" ">" 0
alike windows "$clients/windows" --dev ra0 --peer-dev rb0 --settle-ms 1500
bonded windows
check "windows: splits" "$(json windows a splits)" ">" 20
alike mrlife "$clients/mrlife" --count 1000 --dev ra0 --peer-dev rb0 --settle-ms 1500
bonded mrlife

# Not here, since soft-RoCE does not do the same twice in them, without the library either: odd (librxe reads behind the list
# of a request with too many SGEs, and completions get lost at small depths) and leave (completions of a destroyed queue
# pair stay in the CQ).
# Bonds that come while the program works.
(settings=(DUALPORT_BOND_WAIT=0 DUALPORT_DIAG=0 DUALPORT_GPU=none); as loaded a latebond timeout -k 2 125 "$clients/latebond" \
	--count 6 --dev ra0 --peer-dev rb0) > "$out/latebond.out" 2> "$out/latebond.err" ||
	fail "latebond: status $?: $(tail -n 3 "$out/latebond.out" "$out/latebond.err")"
bonded latebond

# What is left when everything was destroyed and the device closed: no thread, no descriptor.
(settings=(DUALPORT_BOND_WAIT=0 DUALPORT_DIAG=0 DUALPORT_GPU=none); as loaded a fdthreads timeout 60 "$clients/fdthreads" --dev ra0 --peer-dev rb0 --settle-ms 1500) \
	> "$out/fdthreads.out" 2> "$out/fdthreads.err" || fail "fdthreads: $(tail -n 3 "$out/fdthreads.err")"
cat "$out/fdthreads.out"
bonded fdthreads
finish
