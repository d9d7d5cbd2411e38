#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# rdma-core's example, with both ways of posting, and of waiting: the same exchange, its bytes checked, as without the library.
# Its queue pairs let nobody read or write, so there is nothing to bond them for; the library has looked at them and says so.
. "$(dirname "$0")/lib.sh"
clear.sh

told() { sed -n -e 's/ in .*//' -e '/^[0-9]* \(bytes\|iters\)/p' "$out/$1.a.out"; }

# ping ARG...: 500 messages of several packets
ping() {
	local what side
	printf -v what %s pingpong "$@"
	pair plain "$what-plain" 0 18515 ibv_rc_pingpong -c -n 500 -s 9000 "$@"
	check "$what: lines without the library" "$(told "$what-plain" | wc -l)" == 2
	with_library || return
	pair loaded "$what-lib" 0 18515 ibv_rc_pingpong -c -n 500 -s 9000 "$@"
	check "$what: lines that differ" "$(diff <(told "$what-plain") <(told "$what-lib") | grep -c '^[<>]')" == 0
	for side in a b; do
		check "$what: queue pairs of host $side without remote access" "$(json "$what-lib" $side no-remote-access)" == 1
		check "$what: invalid data at host $side" "$(grep -c 'invalid data' "$out/$what-lib.$side".{out,err} | awk -F: '{ n += $2 } END { print n }')" == 0
	done
}

ping
ping -N
ping -e
ping -N -e
finish
