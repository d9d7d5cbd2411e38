# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Sourced by the lab's tests, which run in the guest: servers and clients, loaded with the library or not; bandwidth,
# interface counters and the library's JSON; checks. Every output is kept in $out.
set -u
tests=$LAB_TREE/tests/lab
PATH=$PATH:$tests/guest
name=$(basename "$0" .sh)
out=$LAB_OUT/$name
mkdir -p "$out"
library=$LAB_BUILD/.libs/libdualport.so
repeats=${LAB_REPEATS:-3}
failures=0

# ---- checks ----

# check LABEL VALUE OP BOUND: OP is one of awk's comparisons. An empty value fails.
check() {
	if awk -v v="$2" -v b="$4" "BEGIN { exit !(v != \"\" && v $3 b) }"; then
		printf '   ok: %s: %s (%s %s)\n' "$1" "$2" "$3" "$4"
	else
		printf ' FAIL: %s: %s (not %s %s)\n' "$1" "${2:-nothing}" "$3" "$4"
		failures=$((failures + 1))
	fi
}

# timed LABEL VALUE OP TARGET LIMIT: for what depends on the machine's load. The target is what a quiet machine must
# reach, and with LAB_STRICT=1 missing it is a failure; otherwise only what misses the limit is, which a machine that does
# other things besides does not.
timed() {
	if [[ -n ${LAB_STRICT:-} ]] || awk -v v="$2" -v b="$4" "BEGIN { exit !(v != \"\" && v $3 b) }"; then
		check "$1" "$2" "$3" "$4"
	else
		printf 'target missed: %s: %s (not %s %s)\n' "$1" "${2:-nothing}" "$3" "$4"
		check "$1" "$2" "$3" "$5"
	fi
}

fail() {
	printf ' FAIL: %s\n' "$*"
	failures=$((failures + 1))
}

# Without the library only what needs none of it is run, and only when that was asked for.
with_library() {
	[[ -z ${LAB_BASELINE:-} ]] || return 1
	[[ -e $library ]] || { echo " FAIL: $library does not exist"; exit 1; }
}

need_library() { with_library || { echo "SKIPPED: baseline only"; exit 77; }; }

finish() {
	stop_servers
	clear.sh
	[[ $failures -eq 0 ]] || echo " FAIL: $failures checks failed"
	exit $((failures > 0))
}

calc() { awk "BEGIN { printf \"%.4g\", $1 }"; }
median() { printf '%s\n' "$@" | sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

# ---- processes ----

cat > "$out/dualport.conf" << 'END'
gpus = ( { gpu = 0; ports = [ "ra0:1", "ra1:1" ]; },
	 { gpu = 1; ports = [ "rb0:1", "rb1:1" ]; } );
END

# as plain|loaded a|b NAME CMD...: runs CMD for host a or b, with the library or without. Variables in the array
# "settings" are set for loaded processes. For background use: it replaces the (sub)shell.
settings=()
as() {
	local kind=$1 side=$2 what=$3
	shift 3
	if [[ $kind == loaded ]]; then
		exec env DUALPORT_CONF="$out/dualport.conf" DUALPORT_GPU=$([[ $side == a ]] && echo 0 || echo 1) \
			DUALPORT_BOND_WAIT=2s DUALPORT_DIAG=1 DUALPORT_DIAG_JSON="$out/$what.$side.json" \
			"${settings[@]}" LD_PRELOAD="$library" "$@"
	fi
	exec "$@"
}

exec {nap_fd}<> <(:)
nap() { read -rt "$1" -u "$nap_fd"; return 0; }

# Is TCP port $1 listened on? Looks without connecting: the tools take one connection only.
listening() {
	local hex line
	printf -v hex ':%04X' "$1"
	while read -r line; do
		[[ $line == *"$hex 0"*" 0A "* ]] && return
	done < <(cat /proc/net/tcp /proc/net/tcp6)
	return 1
}

declare -A server_pid

# server plain|loaded NAME PORT CMD...: starts host b's part in the background and waits until it listens.
server() {
	local kind=$1 what=$2 port=$3 i
	shift 3
	as "$kind" b "$what" "$@" > "$out/$what.b.out" 2> "$out/$what.b.err" &
	server_pid[$what]=$!
	for ((i = 0; i < 600; i++)); do
		listening "$port" && return
		kill -0 "${server_pid[$what]}" 2> /dev/null || break
		nap 0.05
	done
	fail "$what: the server does not listen: $(tail -n 2 "$out/$what.b.err")"
	return 1
}

# server_end NAME: gives the server 15 s to end by itself, then its exit status (124: it did not).
server_end() {
	local pid=${server_pid[$1]} i status
	for ((i = 0; i < 300; i++)); do
		kill -0 "$pid" 2> /dev/null || break
		nap 0.05
	done
	kill -KILL "$pid" 2> /dev/null && { wait "$pid" 2> /dev/null; status=124; } || { wait "$pid"; status=$?; }
	unset "server_pid[$1]"
	return "$status"
}

stop_servers() {
	local what
	for what in "${!server_pid[@]}"; do
		kill -KILL "${server_pid[$what]}" 2> /dev/null
	done
}

# client plain|loaded NAME CMD...: host a's part, 60 s at most.
client() {
	local kind=$1 what=$2
	shift 2
	(as "$kind" a "$what" timeout -k 2 60 "$@") > "$out/$what.a.out" 2> "$out/$what.a.err"
}

# pair plain|loaded|client|server NAME LINK PORT TOOL ARG...: a perftest or ibv_*_pingpong run over a link; the third
# and fourth kinds load that side only. Says and counts what does not end with status 0. On a busy machine soft-RoCE
# times out without any library, too, so a run that failed has a second chance, but for LAB_STRICT.
pair() {
	local before=$failures
	pair_once "$@" && return
	[[ -z ${LAB_STRICT:-} ]] || return
	failures=$before
	echo "once more: $2"
	pair_once "$@"
}

pair_once() {
	local a=$1 b=$1 what=$2 link=$3 port=$4 status
	local cmd=("$5" -d "ra$link" -p "$port" "${@:6}")
	[[ $1 != client ]] || { a=loaded; b=plain; }
	[[ $1 != server ]] || { a=plain; b=loaded; }
	[[ $5 == ib_* ]] && cmd+=(-x 1 -F) || cmd+=(-g 1)
	server "$b" "$what" "$port" "${cmd[@]/#ra$link/rb$link}" || return 1
	client "$a" "$what" "${cmd[@]}" "10.99.$link.2"
	status=$?
	[[ $status -eq 0 ]] || fail "$what: the client's status is $status: $(tail -n 2 "$out/$what.a.err")"
	server_end "$what"
	local server_status=$?
	[[ $server_status -eq 0 ]] || fail "$what: the server's status is $server_status: $(tail -n 2 "$out/$what.b.err")"
	((status == 0 && server_status == 0))
}

# ---- numbers ----

# MB/s (10^6 bytes) that the client of a bandwidth test NAME reports.
# In the tools' own unit, 2^20 bytes: with --report_gbits they print two decimals only, at these rates three digits too few.
mbps() { awk '$1 ~ /^[0-9]+$/ && NF == 5 { v = $4 * 1.048576 } END { if (v) printf "%.3f\n", v }' "$out/$1.a.out" 2> /dev/null; }

# Column C of the client's line of numbers in a latency test NAME.
column() { awk -v c="$2" '$1 ~ /^[0-9]+$/ && NF >= 4 { v = $c } END { print v }' "$out/$1.a.out"; }

# MB/s that an ibv_*_pingpong NAME reports.
pingpong_mbps() { awk '/Mbit\/sec/ { v = $(NF - 1) / 8 } END { if (v) printf "%.3f\n", v }' "$out/$1.a.out"; }

# json NAME SIDE KEY: a number in the library's JSON.
json() { sed -n 's/.*"'"$3"'"[ ]*:[ ]*\([0-9][0-9]*\).*/\1/p' "$out/$1.$2.json" 2> /dev/null | head -n 1; }

# number NAME KEY: summed over the JSON of all of NAME's processes, where they wrote one each.
number() { cat "$out/$1".*.json 2> /dev/null | grep -o "\"$2\": *[0-9]*" | awk -F: '{ s += $2 } END { print s + 0 }'; }

# Lines of the library on standard error of NAME's SIDE, without those that DUALPORT_DIAG asked for.
said() { grep '^dualport\[' "$out/$1.$2.err"; }

mark() { marked=$(counters.sh); }

# Percent of all bytes sent since mark() that went over link 1, by host a's ("a"), host b's ("b") or both's counters.
share() {
	counters.sh | awk -v old="$marked" -v side="${1:-}" '
		BEGIN { n = split(old, f); for (i = 1; i < n; i += 3) was[f[i]] = f[i + 2] }
		$1 ~ "^v" side { sent[substr($1, 3)] += $3 - was[$1] }
		END { printf "%.2f\n", 100 * sent[1] / (sent[0] + sent[1]) }'
}

# ---- bandwidth: one link, two programs at once, and the library on both links ----

# rate MBIT: limits both links (to LAB_SCALE percent of that); then $line is what one carries of payload, in MB/s, at the MTU of 4096.
rate() {
	local mbit
	mbit=$(calc "$1 * ${LAB_SCALE:-100} / 100")
	shape.sh "${mbit}mbit"
	line=$(calc "$mbit / 8 * 0.988")
}

# two NAME TOOL ARG...: one program on each link at once; $sum is what they reach together.
two() {
	local what=$1 other
	shift
	pair plain "$what-link1" 1 18516 "$@" > "$out/$what-link1.log" &
	other=$!
	pair plain "$what-link0" 0 18515 "$@"
	wait "$other" || fail "$(cat "$out/$what-link1.log")"
	sum=$(calc "$(mbps "$what-link0")+0 + $(mbps "$what-link1")+0")
}

# striped NAME QPS TOOL ARG...: one run with the library; its traffic must be half on each link, with QPS bonds.
striped() {
	local what=$1 qps=$2 side sides=a part
	shift 2
	[[ " $* " != *" -b "* ]] || sides="a b"
	mark
	pair loaded "$what" 0 18515 "$@"
	part=$(share)
	timed "$what: percent of the bytes on link 1" "$part" ">=" 48 40
	timed "$what: percent of the bytes on link 1" "$part" "<=" 52 60
	for side in $sides; do
		check "$what: bonds of host $side" "$(json "$what" $side bonds)" ">=" "$qps"
		check "$what: splits of host $side" "$(json "$what" $side splits)" ">" 0
	done
}

# bandwidth NAME RATIO QPS TOOL ARG...: medians of $repeats rounds; the library must reach RATIO times one link and
# 0.98 of two programs. A round in which what runs without the library is not near the line rate was disturbed by
# other load on the machine: it does not count, whatever happened in it, and another one is run. Two programs keep both
# CPUs busy with polling, so they are allowed a little more.
bandwidth() {
	local what=$1 ratio=$2 qps=$3 ways=1 i r v before good=0 one=() two=() lib=() m1 m2 ml
	shift 3
	[[ " $* " != *" -b "* ]] || ways=2
	for ((i = 1; i <= repeats + ${LAB_STRICT:+4} + 1 && ${#one[@]} < repeats; i++)); do
		r=$what-$i
		before=$failures
		pair plain "$r-one" 0 18515 "$@"
		v=$(mbps "$r-one")
		two "$r-two" "$@"
		with_library && striped "$r-lib" "$qps" "$@"
		[[ $failures -gt $before ]] || good=1
		if [[ -z ${LAB_STRICT:-} && $failures -gt $before ]] || awk "BEGIN { exit !(${v:-0} < 0.97 * $ways * $line || $sum < 2 * 0.94 * $ways * $line) }"; then
			failures=$before
			echo "$what: round $i was disturbed: one link ${v:-0} MB/s, two programs $sum$(
				with_library && echo ", the library $(mbps "$r-lib")")"
			continue
		fi
		one+=("$v")
		two+=("$sum")
		lib+=("$(mbps "$r-lib")")
	done
	[[ $good -eq 1 ]] || fail "$what: not one round without failures"
	timed "$what: undisturbed rounds" "${#one[@]}" ">=" "$repeats" 0
	[[ ${#one[@]} -gt 0 ]] || return
	m1=$(median "${one[@]}")
	m2=$(median "${two[@]}")
	echo "$what: one link $m1 MB/s (${one[*]}), two programs $m2 (${two[*]})"
	if with_library; then
		ml=$(median "${lib[@]}")
		echo "$what: the library $ml MB/s (${lib[*]}): $(calc "$ml / $m1") times one link, $(calc "$ml / $m2") of two programs"
		timed "$what: times one link" "$(calc "$ml / $m1")" ">=" "$ratio" 1.2
		timed "$what: of two programs at once" "$(calc "$ml / $m2")" ">=" 0.98 0.5
	fi
}

# same NAME LOW READER TOOL ARG...: medians of $repeats rounds without and with the library, as the function READER
# reads them; the second must be LOW times the first at least. A machine that did something else in one of the two makes
# any difference, so what misses that has three rounds more.
same() {
	local what=$1 low=$2 reader=$3 i plain=() lib=() m1 ml
	shift 3
	for ((i = 1; i <= repeats + 3; i++)); do
		if [[ $i -gt $repeats ]]; then
			with_library || break
			ml=$(calc "$(median "${lib[@]}") / ($(median "${plain[@]}") + 1e-9)")
			awk -v v="$ml" -v l="$low" 'BEGIN { exit !(v < l) }' || break
			echo "$what: $ml times as much in $((i - 1)) rounds: one more"
		fi
		pair plain "$what-$i-plain" 0 18515 "$@"
		plain+=("$($reader "$what-$i-plain")")
		with_library || continue
		pair loaded "$what-$i-lib" 0 18515 "$@"
		lib+=("$($reader "$what-$i-lib")")
	done
	m1=$(median "${plain[@]}")
	echo "$what: without the library $m1 (${plain[*]})"
	check "$what: without the library" "$m1" ">" 0
	if with_library; then
		ml=$(median "${lib[@]}")
		echo "$what: with the library $ml (${lib[*]}): $(calc "$ml / $m1") times as much"
		timed "$what: times as without" "$(calc "$ml / $m1")" ">=" "$low" 0.25
	fi
}

# ---- peers that are none ----

# at_least_one_port NAME: not slower than the run "one" without the library.
at_least_one_port() { timed "$1: times one port" "$(calc "($(mbps "$1")+0) / $(mbps one)")" ">=" 0.97 0.3; }

# one_port NAME SIDE: went as on one port, and said why in one line.
one_port() {
	local lines
	at_least_one_port "$1"
	check "$1: bonds of host $2" "$(json "$1" "$2" bonds)" == 0
	check "$1: splits of host $2" "$(json "$1" "$2" splits)" == 0
	lines=$(said "$1" "$2")
	check "$1: lines of host $2" "$(printf '%s' "${lines:+$lines$'\n'}" | wc -l)" == 1
	printf '%s\n' "$lines"
}

# works NAME: not slower than one port, and at most a line of each side. (Processes of one host also find each other
# through the directory of the host, so here they may well bond in spite of the stranger.)
works() {
	local side
	at_least_one_port "$1"
	for side in a b; do
		check "$1: lines of host $side" "$(said "$1" $side | wc -l)" "<=" 1
		said "$1" $side
	done
}

# stranger hold|babble|pester: a process that holds the well-known port, or talks to it, and is no library.
stranger() {
	python3 "$tests/guest/stranger.py" "$1" 13579 > "$out/stranger.out" 2> "$out/stranger.err" &
	stranger_pid=$!
	[[ $1 == pester ]] && return
	for ((i = 0; i < 400; i++)); do
		listening 13579 && return
		nap 0.05
	done
	fail "the stranger does not listen: $(tail -n 1 "$out/stranger.err")"
}

stranger_ends() {
	kill "$stranger_pid"
	wait "$stranger_pid" 2> /dev/null
}
