#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# The library on one side only: the program works as on one port, and one line says why.
. "$(dirname "$0")/lib.sh"
need_library
rate 100
settings=(DUALPORT_DIAG=0 DUALPORT_PEER_TIMEOUT=2s)
pair plain one 0 18515 ib_write_bw -s 65536 -n 800
for kind in client server; do
	[[ $kind == client ]] && side=a || side=b
	pair $kind $kind 0 18515 ib_write_bw -s 65536 -n 800
	one_port $kind $side
	check "$kind: queue pairs without a peer" "$(json $kind $side no-peer)" ">=" 1
done
finish
