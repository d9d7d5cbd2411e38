#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Process 1 of the guest: mounts what is shared, makes the links, then runs what the host's scripts/lab sends.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
. /spool/config
export LAB_TREE LAB_BUILD LAB_OUT
fail() { echo "lab: $*" > /dev/console; poweroff -f; }

mkdir -p /dev/pts /dev/shm
mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /tmp && mount -t tmpfs shm /dev/shm &&
	mount -t devpts devpts /dev/pts || fail "cannot mount the guest's own file systems"
ln -sfn /proc/self/fd /dev/fd
ln -sfn fd/0 /dev/stdin
ln -sfn fd/1 /dev/stdout
ln -sfn fd/2 /dev/stderr
p9=trans=virtio,version=9p2000.L,msize=512000
share() { mkdir -p "$2" && mount -t 9p -o "$p9,$3" "$1" "$2" || fail "cannot mount $2"; }
share modules "/usr/lib/modules/$(uname -r)" ro,cache=loose
# The tree changes under the running guest, so nothing of it stays cached; "mmap" permits shared mappings.
share tree "$LAB_TREE" ro,cache=mmap
[[ $LAB_BUILD/ == "$LAB_TREE"/* ]] || share build "$LAB_BUILD" ro,cache=mmap
share out "$LAB_OUT" rw,cache=mmap
[[ -z ${LAB_CORE:-} ]] || share core "$LAB_CORE" ro,cache=mmap

hostname lab
ip link set lo up
ulimit -l unlimited
ulimit -c 0
mkdir /run/lab
export PATH=$PATH:$LAB_TREE/tests/lab/guest
bash "$LAB_TREE/tests/lab/guest/${LAB_SIDE:+two-}net.sh" "${LAB_SIDE:-}" || fail "no soft-RoCE"

# Another rdma-core is for the jobs only.
if [[ -n ${LAB_CORE:-} ]]; then
	export LD_LIBRARY_PATH=$LAB_CORE/lib PATH=$LAB_CORE/bin:$PATH
fi

# What a job leaves in its session ends with it.
job() {
	setsid bash "/spool/$1.sh" > "/spool/$1.out" 2> "/spool/$1.err" < /dev/null &
	echo $! > "/run/lab/$1"
	wait $!
	echo $? > "/spool/$1.tmp"
	pkill -KILL -s "$(< "/run/lab/$1")"
	rm "/run/lab/$1"
	mv "/spool/$1.tmp" "/spool/$1.rc"
}

end_job() {
	local sid
	{ sid=$(< "/run/lab/$1"); } 2> /dev/null || return
	pkill -TERM -s "$sid"
	sleep 1
	pkill -KILL -s "$sid"
}

stty -F /dev/ttyS1 raw -echo 115200
exec 3< /dev/ttyS1
: > /spool/up
while read -r verb id <&3; do
	case $verb in
	run) [[ -f /spool/$id.sh ]] && job "$id" 3<&- & ;;
	kill) end_job "$id" 3<&- & ;;
	esac
done
fail "the control channel closed"
