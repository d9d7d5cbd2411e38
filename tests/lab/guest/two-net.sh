#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# usage: two-net.sh a|b: this guest is host A or B, with two soft-RoCE ports, rxe0 and rxe1 (10.99.0.1, 10.99.1.1 or
# .2); the other one is another guest. For rdma_cm, which needs addresses that are not of this host.
set -eu
[[ $1 == a ]] && id=1 || id=2
modprobe -a virtio_net rdma_rxe ib_uverbs rdma_ucm
for i in 0 1; do
	ip link set "eth$i" mtu 9000 up || ip link set "eth$i" up
	ip addr add "10.99.$i.$id/24" dev "eth$i"
	rdma link add "rxe$i" type rxe netdev "eth$i"
done
