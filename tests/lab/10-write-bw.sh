#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
. "$(dirname "$0")/lib.sh"
rate 100
bandwidth write-1m 1.97 1 ib_write_bw -s 1048576 -n 40
bandwidth write-64k 1.97 1 ib_write_bw -s 65536 -n 400
# Four queue pairs share a queue of up to 2 s, so their acknowledgements may take longer than timeout 14 allows.
bandwidth write-1m-q4 1.97 4 ib_write_bw -s 1048576 -n 10 -q 4 -u 18
bandwidth write-64k-q4 1.97 4 ib_write_bw -s 65536 -n 100 -q 4 -u 18
finish
