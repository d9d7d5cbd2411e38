#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# A stranger holds the well-known port and answers with nonsense; then one talks nonsense to the library's own.
. "$(dirname "$0")/lib.sh"
need_library
rate 100
pair plain one 0 18515 ib_write_bw -s 65536 -n 800
stranger babble
settings=(DUALPORT_DIAG=0 DUALPORT_PEER_TIMEOUT=2s DUALPORT_PEER_PORTS=1)
pair loaded alone 0 18515 ib_write_bw -s 65536 -n 800
works alone
stranger_ends

stranger pester
settings=(DUALPORT_DIAG=0)
pair loaded pestered 0 18515 ib_write_bw -s 65536 -n 800
stranger_ends
at_least_one_port pestered
check "pestered: connections of the stranger" "$(cat "$out/stranger.out")" ">=" 5
check "pestered: bonds" "$(json pestered a bonds)" ">=" 1
check "pestered: splits" "$(json pestered a splits)" ">" 0
check "pestered: lines of host a" "$(said pestered a | wc -l)" "<=" 1
check "pestered: lines of host b" "$(said pestered b | wc -l)" "<=" 1
check "pestered: lines of both" "$({ said pestered a; said pestered b; } | wc -l)" ">=" 1
finish
