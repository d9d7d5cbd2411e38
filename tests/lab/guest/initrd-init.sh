#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# First process of the guest, in its initrd: the host's root, read-only over 9p, under an overlay in memory.
B=/bin/busybox
$B mount -t devtmpfs dev /dev
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
for m in $($B cat /modules/order); do
	$B insmod "/modules/$m" 2> /dev/null
done
p9=trans=virtio,version=9p2000.L,msize=512000
i=0
until $B mount -t 9p -o "$p9,ro,cache=loose" root /ro 2> /dev/null; do
	i=$((i + 1))
	[ $i -le 100 ] || { echo "lab: the host's root cannot be mounted"; $B poweroff -f; }
	$B sleep 0.05
done
$B mount -t tmpfs tmpfs /rw
$B mkdir /rw/upper /rw/work
$B mount -t overlay -o lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work overlay /new || $B poweroff -f
$B mkdir -p /new/spool /new/dev /new/proc /new/sys
for d in dev proc sys; do
	$B mount --move "/$d" "/new/$d"
done
# The spool is never cached: the host writes there too.
$B mount -t 9p -o "$p9,cache=none" spool /new/spool || $B poweroff -f
exec $B switch_root /new /bin/bash /spool/init.sh
