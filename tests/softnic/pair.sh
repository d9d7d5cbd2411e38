# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# usage: scripts/softnic ... -- bash pair.sh DIRECTORY SERVER CLIENT
#
# Both ends of a tool, as shell commands that find a free TCP port in $port; the server first, as clients do not wait.
# What they say goes to DIRECTORY. Another may take the port in between: then again. The limit only ends what hangs: perftest
# computes for 0.2 s at each end for each size, to find the clock's rate, which with -a on a busy machine is a minute.
out=$1 server=$2 client=$3 limit=${PAIR_LIMIT:-240}
for ((n = 0; n < 20; n++)); do
	export port=$((20000 + RANDOM % 12000))
	timeout "$limit" bash -c "$server" > "$out/server" 2>&1 &
	for ((i = 0; i < 600; i++)); do
		grep -q "$(printf ':%04X [0:]* 0A' $port)" /proc/net/tcp /proc/net/tcp6 && break 2
		kill -0 $! 2> /dev/null || break
		sleep 0.05
	done
	wait $!
	# what fails at once whatever the port is
	[ "$n" -lt 3 ] || break
done
timeout "$limit" bash -c "$client" > "$out/client" 2>&1
status=$?
# a server whose client failed may wait for it for ever
[ $status = 0 ] || { sleep 2; kill $! 2> /dev/null; }
wait $! || status=1
exit $status
