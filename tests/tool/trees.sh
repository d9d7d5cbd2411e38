# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
#
# Hosts as their /sys, /proc and /dev would show them, as far as dualport looks; written from public descriptions of
# such machines and of the kernel's files, recorded on none. make_tree NAME DIR makes DIR/sys, DIR/proc and DIR/dev.

put() # file, text
{
	mkdir -p "${1%/*}"
	printf '%s\n' "$2" >"$1"
}

link() # target, link
{
	mkdir -p "${2%/*}"
	ln -s "$1" "$2"
}

# pci PATH CLASS VENDOR NUMA [SPEED WIDTH]: a device, PATH below sys/devices
pci()
{
	local d=$R/sys/devices/$1
	put "$d/class" "$2"
	put "$d/vendor" "$3"
	put "$d/numa_node" "$4"
	[ $# -lt 6 ] || { put "$d/current_link_speed" "$5 GT/s PCIe" && put "$d/current_link_width" "$6"; }
	link "../../../devices/$1" "$R/sys/bus/pci/devices/${1##*/}"
}

gpu() # path, numa, UUID or ""
{
	pci "$1" 0x030200 0x10de "$2" 32.0 16
	[ -z "$3" ] || put "$R/proc/driver/nvidia/gpus/${1##*/}/information" "GPU UUID: 	 $3"
}

# nic DEV PATH NUMA GUID GBIT NETDEV|- SPEED WIDTH; then FW, MTU, STATE change what the next ones have
FW=28.43.1014 MTU=9000 STATE="4: ACTIVE" uverbs=0
nic()
{
	local d=$R/sys/devices/$2/infiniband/$1 n=$R/sys/devices/$2/net/$6 layer=Ethernet
	[ "$6" != - ] || layer=InfiniBand
	[ -e "$R/sys/devices/$2/class" ] || pci "$2" 0x020000 0x15b3 "$3" "$7" "$8"
	put "$d/sys_image_guid" "$4"
	put "$d/fw_ver" "$FW"
	put "$d/ports/1/state" "$STATE"
	put "$d/ports/1/rate" "$5 Gb/sec (4X NDR)"
	put "$d/ports/1/link_layer" $layer
	link ../../ "$d/device"
	link "../../devices/$2/infiniband/$1" "$R/sys/class/infiniband/$1"
	put "$R/sys/class/infiniband_verbs/uverbs$uverbs/ibdev" "$1"
	put "$R/dev/infiniband/uverbs$uverbs" ""
	uverbs=$((uverbs + 1))
	[ "$6" != - ] || return 0
	put "$d/ports/1/gid_attrs/types/0" "IB/RoCE v1"
	put "$d/ports/1/gid_attrs/types/1" "RoCE v2"
	put "$d/ports/1/gid_attrs/ndevs/0" "$6"
	put "$n/mtu" $MTU
	put "$n/dev_port" 0
	put "$n/phys_port_name" "p${2##*.}"
	put "$n/phys_switch_id" "${4//:/}"
	link "../../devices/$2/net/$6" "$R/sys/class/net/$6"
}

# Each GPU and its dual-port card behind a switch of their own; PCIe 4, too slow for both ports.
tree_pix()
{
	local k bus numa sw card guid
	for k in 0 1 2 3; do
		bus=$((k * 2 + 1)) numa=$((k / 2))
		sw=pci0000:${bus}0/0000:${bus}0:01.0/0000:${bus}1:00.0
		gpu "$sw/0000:${bus}2:00.0/0000:${bus}3:00.0" $numa "GPU-0000000$k-1111-2222-3333-444455556666"
		card=$sw/0000:${bus}2:01.0/0000:${bus}4:00 guid=0c42:a103:0065:b20$k
		nic mlx5_$((2 * k)) "$card.0" $numa "$guid" 200 eth$((2 * k)) 16.0 16
		nic mlx5_$((2 * k + 1)) "$card.1" $numa "$guid" 200 eth$((2 * k + 1)) 16.0 16
	done
}

# Two GPUs and two dual-port cards behind each of four pairs of switches: 16 ports.
tree_pxb()
{
	local k c n numa top card guid
	for k in 0 1 2 3; do
		numa=$((k / 2))
		top=pci0000:${k}0/0000:${k}0:01.0/0000:${k}1:00.0
		for c in 0 1; do
			gpu "$top/0000:${k}2:0$c.0/0000:${k}3:00.0/0000:${k}4:0$c.0/0000:${k}$((5 + c)):00.0" $numa \
				"GPU-000000$k$c-1111-2222-3333-444455556666"
			card=$top/0000:${k}2:1$c.0/0000:${k}$((7 + c)):00.0/0000:${k}9:0$c.0
			card=$card/0000:${k}$(printf %x $((10 + c))):00
			guid=a088:c203:00$k$c:0000 n=$((4 * k + 2 * c))
			nic mlx5_$n "$card.0" $numa "$guid" 200 eth$n 32.0 16
			nic mlx5_$((n + 1)) "$card.1" $numa "$guid" 200 eth$((n + 1)) 32.0 16
		done
	done
}

# Two GPUs and one dual-port card behind a switch.
tree_shared()
{
	local sw=pci0000:10/0000:10:01.0/0000:11:00.0
	gpu $sw/0000:12:00.0/0000:13:00.0 0 ""
	gpu $sw/0000:12:01.0/0000:14:00.0 0 ""
	nic mlx5_0 $sw/0000:12:02.0/0000:15:00.0 0 0c42:a103:0065:b200 200 - 32.0 16
	nic mlx5_1 $sw/0000:12:02.0/0000:15:00.1 0 0c42:a103:0065:b200 200 - 32.0 16
}

# A LAG bond over both ports of a card, and a card with one port.
tree_bond()
{
	local sw=pci0000:10/0000:10:01.0/0000:11:00.0
	gpu $sw/0000:12:00.0/0000:13:00.0 0 ""
	nic mlx5_bond_0 $sw/0000:12:01.0/0000:14:00.0 0 0c42:a103:0065:b200 200 bond0 32.0 16
	put "$R/sys/devices/$sw/0000:12:01.0/0000:14:00.0/net/bond0/bonding/slaves" "eth0 eth1"
	gpu pci0000:90/0000:90:01.0/0000:91:00.0 1 ""
	nic mlx5_2 pci0000:90/0000:90:02.0/0000:92:00.0 1 0c42:a103:0065:b300 200 eth2 32.0 16
}

# One InfiniBand port in two slots, one at each socket.
tree_socket_direct()
{
	gpu pci0000:10/0000:10:01.0/0000:13:00.0 0 ""
	gpu pci0000:90/0000:90:01.0/0000:93:00.0 1 ""
	nic mlx5_0 pci0000:10/0000:10:02.0/0000:14:00.0 0 b8ce:f603:0012:3456 200 - 8.0 16
	nic mlx5_1 pci0000:90/0000:90:02.0/0000:94:00.0 1 b8ce:f603:0012:3456 200 - 8.0 16
}

# No GPU; a card whose ports are set up differently and that a container got half of, with a virtual function; a lone
# port.
tree_nogpu()
{
	local slot=pci0000:10/0000:10:01.0/0000:14:00 guid=0c42:a103:0065:b200
	nic mlx5_0 $slot.0 0 $guid 100 eth0 16.0 16
	MTU=1500 FW=28.39.2048
	nic mlx5_1 $slot.1 0 $guid 25 eth1 16.0 16
	rm "$R/dev/infiniband/uverbs1" "$R/sys/devices/$slot.1/infiniband/mlx5_1/ports/1/gid_attrs/types/1"
	put "$R/sys/devices/$slot.0/net/eth0/qos/trust" dscp
	put "$R/sys/devices/$slot.1/net/eth1/qos/trust" pcp
	put "$R/sys/devices/$slot.0/net/eth0/qos/pfc" "0,0,0,1,0,0,0,0"
	put "$R/sys/devices/$slot.1/net/eth1/qos/pfc" "0,0,0,0,0,0,0,0"
	put "$R/sys/devices/$slot.0/net/eth0/ecn/roce_np/enable/3" 1
	put "$R/sys/devices/$slot.1/net/eth1/ecn/roce_np/enable/3" 0
	nic mlx5_2 $slot.2 0 $guid 100 eth2 16.0 16
	link ../0000:14:00.0 "$R/sys/devices/$slot.2/physfn"
	STATE="1: DOWN"
	nic mlx5_3 pci0000:10/0000:10:02.0/0000:15:00.0 0 0c42:a103:0065:b300 100 eth3 16.0 16
}

# A guest of Hyper-V: each device below a host bridge of its own, these below what is no PCI.
tree_hyperv()
{
	local k bus=LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00
	for k in 1 2; do
		gpu $bus/4750550$k-0001-0000-3130-444531334632/pci000$k:00/000$k:00:00.0 $((k - 1)) ""
		nic mlx5_$((2 * k)) $bus/4750551$k-0001-0000-3130-444531334632/pci010$k:00/010$k:00:00.0 $((k - 1)) \
			0c42:a103:0065:b20$k 400 - 32.0 16
		nic mlx5_$((2 * k + 1)) $bus/4750551$k-0001-0000-3130-444531334632/pci010$k:00/010$k:00:00.1 $((k - 1)) \
			0c42:a103:0065:b20$k 400 - 32.0 16
	done
}

make_tree() # name, directory
{
	R=$2
	mkdir -p "$R/sys/bus/pci/devices" "$R/proc" "$R/dev"
	"tree_$1"
}
