#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# usage: link.sh 0|1 down|up [a|b]    sets host A's or host B's end (default: a) of a link down, or both ends up
set -eu
i=${1:?link} end=${3:-a}
case $2 in
down) ip link set "v$end$i" down ;;
up)
	ip link set "va$i" up
	ip link set "vb$i" up
	# No neighbour is ever asked for (the answer would come from this kernel itself), and a link that goes down drops them.
	ip neigh replace "10.99.$i.2" lladdr "$(< "/sys/class/net/vb$i/address")" dev "va$i" nud permanent
	ip neigh replace "10.99.$i.1" lladdr "$(< "/sys/class/net/va$i/address")" dev "vb$i" nud permanent
	;;
*) echo "link.sh: down or up" >&2; exit 2 ;;
esac
