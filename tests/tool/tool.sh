#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#
# The dualport command, in the build directory, against hosts that trees.sh makes; what it should say is in *.out.
# UPDATE=1 writes those anew.
set -u
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
tool=$PWD/tools/dualport
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
. "$here/trees.sh"
unset "${!DUALPORT_@}" CUDA_VISIBLE_DEVICES XDG_CONFIG_HOME LOCAL_RANK OMPI_COMM_WORLD_LOCAL_RANK SLURM_LOCALID
export HOME=$work LC_ALL=C
cd "$work" || exit 1

fail()
{
	echo "FAILED: $*"
	failed=1
}

same() # name, file with what was said
{
	if [ -n "${UPDATE:-}" ]; then
		cp "$2" "$here/$1.out"
	elif diff -u "$here/$1.out" "$2"; then
		echo "ok: $1"
	else
		fail "$1"
	fi
}

# said NAME STATUS command...: what it says, and its status
said()
{
	local name=$1 status=$2 rc
	shift 2
	"$@" >"$work/out" 2>&1
	rc=$?
	[ $rc = "$status" ] || fail "$name: exit status $rc: $(cat "$work/out")"
	sed "s|$work|WORK|g" "$work/out" >"$work/out.$name"
}

# Each host: what is there; the proposal, if there is one, is a file that fits it.
for t in pix pxb shared bond socket_direct nogpu hyperv; do
	(make_tree $t "$work/$t") || exit 1
	said $t 0 "$tool" probe --sysfs "$work/$t/sys"
	sed '1,/^proposed configuration/d' "$work/out.$t" >"$work/$t.conf"
	if grep -q '^gpus' "$work/$t.conf"; then
		said "$t.check" 0 "$tool" check "$work/$t.conf" --sysfs "$work/$t/sys"
		{ echo; cat "$work/out.$t.check"; } >>"$work/out.$t"
	fi
	same $t "$work/out.$t"
done

# A file that does not fit: a port and a GPU that are not there, two cards in one group, a bond, a virtual function.
cat >bad.conf <<'END'
gpus = ( { gpu = 0; ports = [ "mlx5_0:1", "mlx5_2:1" ]; },
         { gpu = 3; ports = [ "mlx5_1:1", "mlx5_77:1" ]; },
         { gpu = "0000:ff:00.0"; ports = [ "mlx5_4:1", "mlx5_5:1" ]; },
         { gpu = "GPU-00000002"; ports = [ "mlx5_6:1", "mlx5_7:1" ]; } );
END
said misfit 1 "$tool" check bad.conf --sysfs "$work/pix/sys"
same misfit "$work/out.misfit"
# Ports of a bond that are not there.
echo 'gpus = ( { ports = [ "mlx5_bond_0:1::1", "mlx5_bond_0:1::3" ]; }, { ports = [ "mlx5_2:1::1", "mlx5_2:1::2" ]; } );' >lag.conf
said lag 1 "$tool" check lag.conf --sysfs "$work/bond/sys"
grep -q 'mlx5_bond_0:1 is a bond of 2 ports, so it has no port 3' "$work/out" && grep -q 'mlx5_2:1 is no bond' "$work/out" ||
	fail "ports of a bond: $(cat "$work/out")"
said lag_config 0 env DUALPORT_LAG=true "$tool" config --sysfs "$work/bond/sys"
grep -q '^# group of any gpu: mlx5_bond_0:1::1 mlx5_bond_0:1::2$' "$work/out" || fail "lag: $(cat "$work/out")"
echo 'ordering = "strikt";' >broken.conf
said broken 1 "$tool" check broken.conf --sysfs "$work/pix/sys"
grep -q 'broken.conf:1: ordering: "strikt" is none of' "$work/out" || fail "a broken file: $(cat "$work/out")"

said no_file 2 "$tool" check no-such.conf --sysfs "$work/pix/sys"
for c in probe config "check bad.conf"; do
	# shellcheck disable=SC2086 # two words
	said no_sysfs 2 "$tool" $c --sysfs "$work/no-such"
done
said file_sysfs 2 "$tool" probe --sysfs bad.conf

# Ready files load. Whether they fit depends on the host; the reference is the box with four cards.
for f in "$top"/conf/*.conf; do
	said "${f##*/}" 0 "$tool" check "$f" --sysfs "$work/pix/sys"
	grep -q "fits this host" "$work/out" || fail "$f: $(cat "$work/out")"
done

# Reports of two processes.
a='{"pid":1,"bonds":2,"version":"1","host":"a","settings":{"ordering":"strict","stripe.align":"4k"},"unbonded":[],
 "ports":[],"flows":[{"port":"mlx5_0:1","peer":"10.0.0.2","tx_bytes":500,"tx_msgs":1},
 {"port":"mlx5_1:1","peer":"10.0.0.2","tx_bytes":500,"tx_msgs":1}],"splits":3,"spreads":0,"signals":7,
 "signals_waited":1,
 "signal_wait_ns":5,"deferred":0,"held":0,"fallbacks":{}}'
echo "$a" >a.json
said good_report 0 "$tool" report a.json a.json
same report_good "$work/out.good_report"
sed 's/"strict"/"signal"/; s/"version":"1"/"version":"2"/; s/"bonds":2/"bonds":0/
	s/"fallbacks":{}/"fallbacks":{"no-peer":2}/
	s/"mlx5_1:1","peer":"10.0.0.2","tx_bytes":500/"mlx5_1:1","peer":"10.0.0.2","tx_bytes":20/
	s/"unbonded":\[\]/"unbonded":[{"peer":"10.0.0.3","reason":"no-peer","qps":2}]/' a.json >b.json
said bad_report 1 "$tool" report a.json b.json
same report_bad "$work/out.bad_report"
echo '{"pid":1' >c.json
said cut_report 2 "$tool" report a.json c.json
echo '[]' >d.json
said other_report 2 "$tool" report d.json
sed 's/"version":"1"/"version":"\\u001b[2J"/' a.json >e.json
said terminal_report 2 "$tool" report e.json
sed 's/"fallbacks":{}/"fallbacks":{"no-peer":9223372036854775807}/' a.json >f.json
said large_report 0 "$tool" report f.json f.json
grep -Eq '^  no-peer +18446744073709551616$' "$work/out" || fail "large numbers: $(cat "$work/out")"
said missing_report 2 "$tool" report no-such.json
# Rails of two senders: one's second port is slow; the other's own is within what waiting costs it. READs count where they arrive.
flow() # port from peer to rail bytes reads ns
{
	echo "{\"port\":\"$1\",\"peer\":\"$3\",\"tx_bytes\":$6,\"tx_msgs\":9,\"from\":\"$2\",\"to\":\"$4\",\"rail\":$5,\"read_bytes\":$7,\"acked_bytes\":$6,\"busy_ns\":$8}"
}
rank() # name flow flow
{
	sed 's/"flows":.*/"flows":['"$2,$3"'],"splits":3,"spreads":0,"signals":7,/; /^ {"port"/d' a.json >"$1"
}
rank slow1.json "$(flow mlx5_0:1 10.0.0.1 10.0.0.9 mlx5_4:1 0 50000000 0 1000000)" \
	"$(flow mlx5_1:1 10.0.0.1 10.0.0.9 mlx5_5:1 1 50000000 20000000 1300000)"
rank slow2.json "$(flow mlx5_0:1 10.0.0.2 10.0.0.9 mlx5_4:1 0 50000000 0 1300000)" \
	"$(flow mlx5_1:1 10.0.0.2 10.0.0.9 mlx5_5:1 1 50000000 0 1000000)"
said slow_report 1 "$tool" report slow1.json slow2.json
same report_slow "$work/out.slow_report"
mkfifo fifo
said fifo_report 2 timeout 60 "$tool" report a.json fifo
grep -q 'fifo: not a regular file' "$work/out" || fail "a pipe: $(cat "$work/out")"
said stdin_report 0 sh -c "cat a.json | '$tool' report a.json -"
same report_good "$work/out.stdin_report"

# Settings, and running.
said config 0 env DUALPORT_ORDERING=rc "$tool" config --sysfs "$work/nogpu/sys"
grep -Eq '^ordering +rc +strict +DUALPORT_ORDERING$' "$work/out" || fail "config: $(cat "$work/out")"
grep -q '^# group of any gpu: mlx5_0:1 mlx5_1:1$' "$work/out" || fail "config: $(cat "$work/out")"
# shellcheck disable=SC2016 # for the inner shell
show='echo "$LD_PRELOAD $DUALPORT_ORDERING $DUALPORT_ALIGN $DUALPORT_DIAG"; exit 7'
# a sanitizer's run time stands before what was built with it
runtime=$(ldd "$tool" | sed -n 's/.*=> \(.*lib[atu][a-z]*san\.so[^ ]*\).*/\1/p' | paste -sd' ')
said run 7 env LD_PRELOAD="$runtime" DUALPORT_DIAG=1 "$tool" run ordering=signal stripe.align=512 -- sh -c "$show"
grep -Eq '/\.libs/libdualport\.so signal 512 1$' "$work/out" || fail "run: $(cat "$work/out")"
said run_bad 2 "$tool" run ordering=strikt -- true
said run_unknown 2 "$tool" run colour=red -- true
said run_nothing 2 "$tool" run ordering=rc --
said run_missing 127 "$tool" run -- ./no-such-program
said usage 2 "$tool"
said unknown 2 "$tool" frobnicate
said help 0 "$tool" --help
for c in probe check config report run; do
	said "help $c" 0 "$tool" $c --help
	grep -q "^usage: dualport $c" "$work/out" || fail "help of $c: $(cat "$work/out")"
done
said run_help 3 env LD_PRELOAD="$runtime" "$tool" run -- sh -c 'test "$1" = --help && exit 3' sh --help
# Nothing of a host may move the cursor.
(make_tree pix "$work/odd") || exit 1
printf '28.\033[2J\177\n' >"$work/odd/sys/class/infiniband/mlx5_0/fw_ver"
mv "$work/odd/sys/class/infiniband/mlx5_1" "$work/odd/sys/class/infiniband/$(printf 'mlx5\033[1')"
said odd 0 "$tool" probe --sysfs "$work/odd/sys"
grep -qF '28.?[2J?' "$work/out" || fail "control characters: $(cat -v "$work/out")"
tr -d '\n\t' <"$work/out" | grep -q '[[:cntrl:]]' && fail "control characters: $(cat -v "$work/out")"
said full 2 sh -c "'$tool' --help >/dev/full"

exit $failed
