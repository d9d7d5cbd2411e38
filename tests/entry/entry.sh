#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#
# Every way into the library, in processes that see a fake libibverbs. Run by make check; needs no RDMA device.
set -u

t=${ENTRY_DIR:?the directory that make check built the fakes in}
t=$(cd "$t" && pwd)
stub=$t/stub/libdualport.so
core=$t/stub/libdualport-core.so
failed=0
passed=0

# A sanitizer's run time must come before every other preloaded object, and no program without it can load us.
runtime=$(ldd "$t/client" | sed -n 's/.*=> \(.*lib[atu][a-z]*san\.so[^ ]*\).*/\1/p' | tr '\n' ' ')
if [ -n "$runtime" ] || [ "${ENTRY_SANITIZER:-no}" = yes ]; then
	sanitizer=yes
	# the fakes leave contexts open
	export ASAN_OPTIONS=detect_leaks=0:${ASAN_OPTIONS:-}
else
	sanitizer=no
fi

unset DUALPORT_ENABLE TESTCORE LD_LIBRARY_PATH
err=$(mktemp)
trap 'rm -rf "$err" "$err.d"' EXIT

verdict() # name, status, details
{
	if [ "$2" = 0 ]; then
		passed=$((passed + 1))
		echo "ok: $1"
	else
		failed=$((failed + 1))
		echo "FAILED: $1"
		printf '%s\n' "$3" | sed 's/^/    /'
	fi
}

# run NAME STDERR-PATTERN [VAR=value...] program args...: exit status 0, and stderr empty or one line of the pattern
run()
{
	local name=$1 pattern=$2 rc why=
	shift 2
	timeout 60 env LD_PRELOAD="$runtime$stub" ENTRY_CORE="$core" "$@" >"$err.out" 2>"$err"
	rc=$?
	[ $rc = 0 ] || why="exit status $rc"
	if [ -z "$pattern" ]; then
		[ ! -s "$err" ] || why="$why; unexpected output"
	else
		[ "$(wc -l <"$err")" = 1 ] && grep -Eq "$pattern" "$err" || why="$why; not the one line expected"
	fi
	verdict "$name" "$([ -z "$why" ]; echo $?)" "$why: $(cat "$err")"
	rm -f "$err.out"
}

ibv=$t/ibv/libibverbs.so.1
wheel=$t/wheel/libibverbs-1a2b3c4d.so.1
libs="LD_LIBRARY_PATH=$t/ibv"

run "linked" "" "$libs" "$t/client_linked" linked
run "dlsym(handle), name found by LD_LIBRARY_PATH" "" "$libs" "$t/client" dlsym libibverbs.so.1
run "dlsym(handle), absolute path" "" "$t/client" dlsym "$ibv"
run "dlsym(handle), RTLD_GLOBAL" "" "$t/client" dlsym-global "$ibv"
run "dlsym(handle), a copy under another name" "" "$t/client" dlsym "$wheel"
run "dlvsym(handle)" "" "$t/client" dlvsym "$ibv"
run "IBVERBS_1.0 and unknown versions are not served" "" "$t/client" versions "$ibv"
run "an object without versions" "" "$t/client" bare "$t/bare.so"
run "an object without versions, preloaded before" "" LD_PRELOAD="$runtime$t/bare.so:$stub" "$t/client" bare "$t/bare.so"
run "two copies, RTLD_LOCAL" "" "$t/client" two "$ibv" "$wheel"
run "two copies, RTLD_GLOBAL" "" "$t/client" two-global "$wheel" "$ibv"
run "RUNPATH copy behind a plugin" "" "$t/client" plugin "$t/plugin.so"
run "RUNPATH copy behind a plugin, another copy beside it" "" "$t/client" plugin "$t/plugin.so" "$ibv"
run "RUNPATH copy behind a plugin of a linked program" "" "$libs" "$t/client_linked" plugin "$t/plugin.so"
run "a context that does not tell its copy" "" "$libs" ENTRY_CORE=none "$t/client_linked" linked-old
run "an older copy, core there" "" "$t/client" older "$t/older/libibverbs.so.1"
run "an older copy, switched off" "" ENTRY_CORE=none DUALPORT_ENABLE=0 "$t/client" older "$t/older/libibverbs.so.1"
run "threads, all at first use" "" TESTCORE=slow "$t/client" threads "$ibv"
run "first use in a constructor, under the loader's lock" "" "$t/client" constructor "$t/ctor.so" "$ibv"
run "fork, vfork, exec" "" "$t/client" forks "$ibv"
run "a verb that the core leaves to the real library" "" "$libs" TESTCORE=sparse "$t/client_linked" sparse
run "mlx5dv_init_obj" "" "$t/client" mlx5 "$ibv" "$t/mlx5/libmlx5.so.1"
run "RTLD_NEXT of other preloaded objects" "" LD_PRELOAD="$runtime$t/wrap_a.so $stub $t/wrap_b.so" ENTRY_CORE=none \
	"$t/client" next
run "the system's libibverbs" "" ENTRY_CORE=none "$t/client" system

# ---- the library itself, on a provider that takes more than softnic ----

real=$(realpath "${STUB:?the library, with its core beside it}")
prov="LD_LIBRARY_PATH=$t/prov"
run "XRC, device memory, ODP, importing, ECE, rate limits: without the library" "" "$prov" LD_PRELOAD="$runtime" "$t/native" 0
run "XRC, device memory, ODP, importing, ECE, rate limits" "" "$prov" LD_PRELOAD="$runtime$real" \
	DUALPORT_PORTS="fake0:1,fake1:1" "$t/native" 1

# ---- a core that cannot be had: one line, then as on one port ----

mkdir -p "$err.d/nocore" "$err.d/needy" "$err.d/junk" "$err.d/link"
cp "$stub" "$err.d/nocore/"
cp "$stub" "$t/needy/libdualport-core.so" "$err.d/needy/"
cp "$stub" "$err.d/junk/"
echo junk >"$err.d/junk/libdualport-core.so"
ln -s "$stub" "$err.d/link/libdualport.so"
native='^dualport\[[0-9]+\]: cannot load .*libdualport-core\.so: .*; running on one port$'
run "core missing" "$native" "$libs" LD_PRELOAD="$runtime$err.d/nocore/libdualport.so" ENTRY_CORE=none \
	"$t/client_linked" linked
: >"$err.d/data"
run "core missing, and descriptor 2 is a file of the program's" "" "$libs" LD_PRELOAD="$runtime$err.d/nocore/libdualport.so" \
	ENTRY_CORE=none ENTRY_TAKE_FD2="$err.d/data" "$t/client_linked" linked
verdict "nothing was written into that file" "$([ ! -s "$err.d/data" ]; echo $?)" "$(cat "$err.d/data")"
run "core with a missing dependency" "libnobodyhasthis.*running on one port" "$libs" \
	LD_PRELOAD="$runtime$err.d/needy/libdualport.so" ENTRY_CORE=none "$t/client_linked" linked
run "core that is no library" "$native" "$libs" LD_PRELOAD="$runtime$err.d/junk/libdualport.so" ENTRY_CORE=none \
	"$t/client_linked" linked
run "core missing, threads" "$native" LD_PRELOAD="$runtime$err.d/nocore/libdualport.so" ENTRY_CORE=none \
	"$t/client" threads "$ibv"
run "stub is a link, core beside the file" "" "$libs" LD_PRELOAD="$runtime$err.d/link/libdualport.so" \
	"$t/client_linked" linked
run "relative LD_PRELOAD, then chdir" "" "$libs" LD_PRELOAD= \
	sh -c "cd '$t/stub' && LD_PRELOAD='$runtime./libdualport.so' exec '$t/client_linked' linked-chdir"
run "core of another version" "another version.*running on one port" "$libs" TESTCORE=abi "$t/client_linked" linked-native
run "core that refuses" "" "$libs" TESTCORE=refuse "$t/client_linked" linked-native
run "DUALPORT_ENABLE=0" "" "$libs" ENTRY_CORE=none DUALPORT_ENABLE=0 "$t/client_linked" linked
run "DUALPORT_ENABLE=Off" "" "$libs" ENTRY_CORE=none DUALPORT_ENABLE=Off "$t/client_linked" linked

# ---- processes without RDMA, and programs of the system ----

same() # name, program...: status, stdout and stderr are those without us
{
	local name=$1 with without
	shift
	without=$("$@" 2>&1; echo "status $?")
	with=$(LD_PRELOAD=$stub "$@" 2>&1; echo "status $?")
	verdict "$name" "$([ "$with" = "$without" ]; echo $?)" "with: $with
without: $without"
}

binds() # name, program, verb: the program's verb is ours
{
	local out
	out=$(LD_PRELOAD=$stub LD_BIND_NOW=1 LD_DEBUG=bindings "$2" --help 2>&1)
	verdict "$1" "$(printf '%s\n' "$out" | grep -q "to $stub .*\`$3'"; echo $?)" "no binding of $3 to $stub"
}

if [ $sanitizer = no ]; then
	run "another namespace" "" "$t/client" namespace "$t/bare.so"
	run "dlsym(handle), RTLD_DEEPBIND" "" "$t/client" dlsym-deepbind "$ibv"
	run "dlvsym(handle), RTLD_DEEPBIND" "" "$t/client" dlvsym-deepbind "$wheel"
	run "a plugin that is linked, RTLD_DEEPBIND: said once" \
		'^dualport\[[0-9]+\]: plugin\.so was opened with RTLD_DEEPBIND and is linked with libibverbs: .*; one port$' \
		ENTRY_CORE=none "$t/client" plugin-deepbind "$t/plugin.so"
	run "the same, switched off" "" DUALPORT_ENABLE=0 ENTRY_CORE=none "$t/client" plugin-deepbind "$t/plugin.so"
	same "/bin/true" /bin/true
	same "/bin/false" /bin/false
	same "a static binary" "$t/static"
	same "getenv before this object is relocated" "$t/ifunc"
	# shellcheck disable=SC2016 # expanded by the inner shell
	same "threads and descriptors of a process without RDMA" \
		sh -c 'grep -E "^Threads|^FDSize" /proc/self/status; ls /proc/self/fd | wc -l; cat /proc/self/maps | grep -c dualport-core'
	same "python" python3 -c 'import ctypes, threading; print(ctypes.CDLL(None).getpid() > 0, threading.active_count())'
	for p in ibv_devices ibv_devinfo; do
		if command -v $p >/dev/null; then
			same "$p" $p
		else
			verdict "$p" 1 "not installed (ibverbs-utils)"
		fi
	done
	p=$(command -v ibv_rc_pingpong) && binds "ibv_rc_pingpong binds to us" "$p" ibv_reg_mr
	p=$(command -v ib_write_bw) && binds "ib_write_bw binds to us" "$p" ibv_create_qp
else
	echo "(left to the plain build: 10 programs without the sanitizer, which cannot load it, and 2 cases of RTLD_DEEPBIND, which it refuses)"
fi

echo "entry: $passed passed, $failed failed"
[ $failed = 0 ]
