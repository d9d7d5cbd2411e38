#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# rdma-core's own tests: each passes, fails or skips itself, and for the same reason, as without the library.
. "$(dirname "$0")/lib.sh"
need_library
suite=/usr/share/doc/rdma-core/tests
if ! /usr/bin/python3 -c 'import pyverbs' 2> /dev/null || [[ ! -d $suite ]]; then
	echo "SKIPPED: rdma-core's tests are not there: the packages python3-pyverbs and rdma-core"
	exit 77
fi
clear.sh
work=$(mktemp -d)
cp -r $suite "$work/tests"
gunzip -f "$work"/tests/*.gz
# suite plain|loaded NAME TEST...: all tests without any TEST
suite() {
	local kind=$1 what=$2
	shift 2
	(cd "$work" && as "$kind" a "$what" timeout -k 2 200 /usr/bin/python3 tests/run_tests.py -v --dev ra0 --gid 1 "$@") \
		> "$out/$what.out" 2>&1
	awk -f "$tests/../clients/ended.awk" "$out/$what.out" > "$out/$what.ended"
}

# outcomes NAME KIND TEST: how TEST ends in several runs, each way of ending once.
outcomes() {
	local i
	for ((i = 0; i < 5; i++)); do
		suite "$2" "$1-$2-$i" "$3"
		sed 's/^[^ ]* //' "$out/$1-$2-$i.ended"
	done | sort -u
}

# same_as_without NAME: soft-RoCE does not do everything twice alike, so a test that ended differently is repeated, and no
# way of ending that it has with the library may be one that it does not have without. Of such tests there may be two.
same_as_without() {
	local what=$1 test differ new
	check "$what: tests" "$(wc -l < "$out/$what.ended")" == "$all"
	differ=$(diff "$out/plain.ended" "$out/$what.ended" | sed -n 's/^[<>] \([^ ]*\) .*/\1/p' | sort -u)
	check "$what: tests that ended differently" "$(wc -w <<< "$differ")" "<=" 2
	[[ $(wc -w <<< "$differ") -le 2 ]] || { diff "$out/plain.ended" "$out/$what.ended"; return; }
	for test in $differ; do
		new=$(comm -13 <({ outcomes "$what" plain "$test"; sed -n "s/^$test //p" "$out/plain.ended"; } | sort -u) \
			<({ outcomes "$what" loaded "$test"; sed -n "s/^$test //p" "$out/$what.ended"; } | sort -u))
		if [[ -z $new ]]; then
			echo "$what: $test ends in several ways, without the library, too"
		else
			fail "$what: $test: only with the library: $new"
			grep -h -A 25 "^\(ERROR\|FAIL\): .*$test" "$out/$what"*.out | head -n 40
		fi
	done
}

suite plain plain
all=$(wc -l < "$out/plain.ended")
check "tests" "$all" ">" 200
check "tests that pass without the library" "$(grep -c ' ok$' "$out/plain.ended")" ">=" 80
echo "without the library: $(grep -E '^(OK|FAILED)' "$out/plain.out")"
# Their messages are short.
settings=(DUALPORT_BOND_WAIT=0 DUALPORT_DIAG=0 DUALPORT_SPLIT_MIN=256 DUALPORT_SPREAD_MIN=256 DUALPORT_ALIGN=128)
suite loaded loaded
echo "with the library: $(grep -E '^(OK|FAILED)' "$out/loaded.out"), $(number loaded bonds) bonds, $(number loaded splits) splits"
check "bonds" "$(number loaded bonds)" ">" 10
check "splits" "$(number loaded splits)" ">" 50
same_as_without loaded
finish
