#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# usage: delay.sh 0|1 TIME    adds a one-way delay, e.g. 5ms, to both directions of a link (0: none); the rate stays
. "$(dirname "$0")/qdisc.sh"
case ${2:?time} in
0) rm -f "$qdisc/delay${1:?link}" ;;
*) echo "$2" > "$qdisc/delay${1:?link}" ;;
esac
qdisc_apply
