#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Two hosts in one kernel: veth pairs va0-vb0 and va1-vb1, a soft-RoCE device on each end. All addresses are local
# to this kernel, yet soft-RoCE sends through the netdev, so the packets do cross the pairs.
set -eu
modprobe -a veth rdma_rxe ib_uverbs rdma_ucm sch_tbf sch_netem
cd /proc/sys/net/ipv4/conf
for f in all default; do
	echo 0 > $f/rp_filter
	echo 1 > $f/accept_local
done
# Without it a link-local address, and with it GID 0, comes a second after the link.
echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
echo 10000 > /proc/sys/net/core/netdev_max_backlog
for i in 0 1; do
	ip link add va$i mtu 9000 type veth peer name vb$i mtu 9000
	for d in va$i vb$i; do
		echo 0 > $d/rp_filter
		echo 1 > $d/accept_local
		echo 1 > $d/arp_ignore
		echo 1 > $d/arp_filter
	done
	ip addr add 10.99.$i.1/24 dev va$i
	ip addr add 10.99.$i.2/24 dev vb$i
	link.sh $i up
	rdma link add ra$i type rxe netdev va$i
	rdma link add rb$i type rxe netdev vb$i
done

# Packets are received on the CPU that happened to send them, and so overtake each other; soft-RoCE takes that for loss
# and goes back. One CPU for each receiver keeps the order; the hosts get one each.
echo 1 | tee /sys/class/net/va{0,1}/queues/rx-0/rps_cpus > /dev/null
echo 2 | tee /sys/class/net/vb{0,1}/queues/rx-0/rps_cpus > /dev/null
