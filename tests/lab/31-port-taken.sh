#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# A stranger holds the libraries' well-known port and never answers.
. "$(dirname "$0")/lib.sh"
need_library
rate 100
pair plain one 0 18515 ib_write_bw -s 65536 -n 800
stranger hold
settings=(DUALPORT_DIAG=0 DUALPORT_PEER_TIMEOUT=2s DUALPORT_PEER_PORTS=1)
pair loaded alone 0 18515 ib_write_bw -s 65536 -n 800
works alone
# With more ports to try they may find each other; if so, nothing needs to be said.
settings=(DUALPORT_DIAG=0 DUALPORT_PEER_TIMEOUT=2s)
pair loaded range 0 18515 ib_write_bw -s 65536 -n 800
at_least_one_port range
check "range: lines on standard error" "$(said range a | wc -l)" "<=" 1
check "range: lines on standard error" "$(said range b | wc -l)" "<=" 1
finish
