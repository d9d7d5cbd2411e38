#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# usage: verbs-copies.sh DIR
# Copies of the system's libibverbs for the clients: DIR/runpath/libibverbs.so.1, which dataflag-runpath in DIR finds
# by its RUNPATH, and DIR/runpath/libibverbs-1a2b3c4d.so.1, the same under another file name, for --lib.
# Both keep their SONAME: the provider libraries that they load need libibverbs.so.1 and must find the copy.
set -eu
dir=$1/runpath
lib=$(ldconfig -p | sed -n "s/.*libibverbs\.so\.1 (libc6,$(uname -m | tr _ -)).* => //p" | head -n 1)
[ -n "$lib" ] || { echo "verbs-copies: no libibverbs.so.1" >&2; exit 1; }
mkdir -p "$dir"
cp -L "$lib" "$dir/libibverbs.so.1"
cp -L "$lib" "$dir/libibverbs-1a2b3c4d.so.1"
