#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Both hosts send at once. The emulated processors carry all of it, hence the lower rate; an acknowledgement waits behind
# 100 ms of the other direction's data, longer than timeout 14 allows.
. "$(dirname "$0")/lib.sh"
rate 40
bandwidth write-both-1m 1.9 1 ib_write_bw -b -s 1048576 -n 16 -u 18
bandwidth write-both-64k 1.9 1 ib_write_bw -b -s 65536 -n 256 -u 18
bandwidth read-both-1m 1.97 1 ib_read_bw -b -s 1048576 -n 16 -u 18
bandwidth read-both-64k 1.97 1 ib_read_bw -b -s 65536 -n 256 -u 18
finish
