#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# The same traffic under ASan with UBSan (a build of its own, in asan/ of the build) and under valgrind: no report, no leak of
# ours, and the order still right when everything is slow.
. "$(dirname "$0")/lib.sh"
need_library
clear.sh
delay.sh 1 5ms
judge() {
	local what=$1 status=$2
	[[ $status -eq 0 ]] || fail "$what: status $status: $(grep -m 3 -E 'ERROR|runtime error|VIOLATION|dataflag:' "$out/$what".*)"
	check "$what: splits" "$(number "$what" splits)" ">" 0
	check "$what: signals waited" "$(number "$what" signals_waited)" ">" 0
}

# whatever a slow machine makes of the waiting time: it is split, and signals wait
common=(DUALPORT_CONF="$out/dualport.conf" DUALPORT_BOND_WAIT=20s DUALPORT_PATIENCE=always)
flow=(--dev ra0 --peer-dev rb0 --rounds 30 --window 4 --timeout 100 --reads 3 --max 32k)

asan=$LAB_BUILD/asan
if [[ -e $asan/.libs/libdualport.so ]]; then
	rm -f "$out"/asan.*
	env "${common[@]}" DUALPORT_DIAG_JSON="$out/asan.%p.json" \
		ASAN_OPTIONS="log_path=$out/asan.log,detect_leaks=1,exitcode=9" UBSAN_OPTIONS=halt_on_error=1,exitcode=9 \
		LSAN_OPTIONS="suppressions=$LAB_TREE/tests/lab/lsan.supp" \
		LD_PRELOAD="$(gcc -print-file-name=libasan.so) $asan/.libs/libdualport.so" \
		timeout -k 2 120 "$LAB_BUILD/tests/clients/dataflag" "${flow[@]}" > "$out/asan.out" 2>&1
	judge asan $?
	if compgen -G "$out/asan.log.*" > /dev/null; then fail "asan: $(head -n 12 "$out"/asan.log.*)"; fi
else
	fail "$asan/.libs has no library built with --enable-asan --enable-ubsan"
fi

rm -f "$out"/valgrind.*
env "${common[@]}" DUALPORT_DIAG_JSON="$out/valgrind.%p.json" LD_PRELOAD="$library" \
	timeout -k 2 170 valgrind -q --trace-children=yes --error-exitcode=9 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
	--suppressions="$LAB_TREE/tests/lab/valgrind.supp" --log-file="$out/valgrind.%p.log" \
	"$LAB_BUILD/tests/clients/dataflag" "${flow[@]}" --rounds 10 --timeout 160 > "$out/valgrind.out" 2>&1
judge valgrind $?
for log in "$out"/valgrind.*.log; do
	[[ ! -s $log ]] || fail "valgrind: $(head -n 12 "$log")"
done
finish
