#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
. "$(dirname "$0")/lib.sh"
rate 100
bandwidth read-1m 1.97 1 ib_read_bw -s 1048576 -n 40 -u 18
bandwidth read-64k 1.97 1 ib_read_bw -s 65536 -n 400 -u 18
bandwidth read-1m-q4 1.97 4 ib_read_bw -s 1048576 -n 10 -q 4 -u 18
bandwidth read-64k-q4 1.97 4 ib_read_bw -s 65536 -n 100 -q 4 -u 18
finish
