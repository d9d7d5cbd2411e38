#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Prints the directory of a kernel for the lab's guest: vmlinuz, initrd and lib/modules. Fetches Debian's once;
# after that nothing is asked of the network. "kernel.sh --new" looks for a newer one.
# LAB_KERNEL, the beginning of a version, asks for another than Debian 12's own: LAB_KERNEL=6.12.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=${DUALPORT_LAB_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/dualport-lab}
mkdir -p "$cache"
exec {lock}> "$cache/lock"
flock "$lock"

# Those of backports, and of the newer series that Debian 12 also gets, have "deb12" or "bpo" in their names.
newest() {
	if [ -n "${LAB_KERNEL:-}" ]; then
		find "$cache" -maxdepth 1 -name "linux-image-$LAB_KERNEL*-amd64"
	else
		find "$cache" -maxdepth 1 -name 'linux-image-*-amd64' ! -name '*deb[0-9]*' ! -name '*bpo*'
	fi | sort -V | tail -n 1
}

named() {
	if [ -n "${LAB_KERNEL:-}" ]; then
		apt-cache pkgnames "linux-image-$LAB_KERNEL" 2>/dev/null | grep -E -- '[0-9]-amd64$' | sort -V | tail -n 1
	else
		apt-cache depends linux-image-amd64 2>/dev/null |
			sed -n 's/.*Depends: \(linux-image-[0-9].*-amd64\)$/\1/p' | head -n 1
	fi
}

# The cloud kernels have neither soft-RoCE nor 9p; the package without a version depends on the right one.
fetch() {
	local package tmp
	command -v apt-get > /dev/null || { echo "lab: apt-get is missing; put an unpacked linux-image package" \
		"in $cache/linux-image-VERSION-amd64" >&2; return 77; }
	package=$(named)
	[ -n "$package" ] || { echo "lab: apt knows no linux-image-${LAB_KERNEL:-amd64}" >&2; return 77; }
	[ ! -d "$cache/$package" ] || return 0
	echo "lab: fetching $package into $cache" >&2
	tmp=$(mktemp -d "$cache/tmp.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	# The sandbox user of apt cannot write below a private directory, and says so at length.
	(cd "$tmp" && apt-get download -qq -o APT::Sandbox::User=root "$package" >&2) ||
		{ echo "lab: apt-get download $package failed" >&2; return 77; }
	dpkg -x "$tmp/$package"_*.deb "$tmp/tree"
	mv "$tmp/tree" "$cache/$package"
}

if [ "${1:-}" = --new ] || [ -z "$(newest)" ]; then
	fetch || exit $?
fi
kernel=$(newest)
version=$(basename "$(echo "$kernel"/lib/modules/*)")
[ -f "$kernel/lib/modules/$version/modules.dep.bin" ] || depmod -b "$kernel" "$version"
ln -sfn "boot/vmlinuz-$version" "$kernel/vmlinuz"

# The initrd holds what is needed to reach this machine's root over 9p, nothing more.
make_initrd() {
	local tree=$1 module file name
	mkdir -p "$tree"/{bin,dev,proc,sys,modules,ro,rw,new}
	cp "$(command -v busybox)" "$tree/bin/busybox"
	ln -s busybox "$tree/bin/sh"
	cp "$here/guest/initrd-init.sh" "$tree/init"
	chmod 755 "$tree/init"
	: > "$tree/modules/order"
	for module in virtio_pci 9pnet_virtio 9p overlay; do
		modprobe -d "$kernel" -S "$version" -D "$module" | while read -r _ file _; do
			[ -f "$file" ] || continue
			name=$(basename "${file%.xz}")
			[ ! -e "$tree/modules/$name" ] || continue
			case $file in
			*.xz) xz -dc "$file" > "$tree/modules/$name" ;;
			*) cp "$file" "$tree/modules/$name" ;;
			esac
			echo "$name" >> "$tree/modules/order"
		done
	done
	(cd "$tree" && find . | cpio -o -H newc --quiet | gzip -1)
}

sum=$(cat "$0" "$here/guest/initrd-init.sh" | cksum | cut -d ' ' -f 1)
if [ ! -f "$kernel/initrd.$sum" ]; then
	tmp=$(mktemp -d)
	trap 'rm -rf "$tmp"' EXIT
	make_initrd "$tmp" > "$kernel/initrd.tmp"
	rm -f "$kernel"/initrd.[0-9]*
	mv "$kernel/initrd.tmp" "$kernel/initrd.$sum"
	ln -sfn "initrd.$sum" "$kernel/initrd"
fi
echo "$kernel"
