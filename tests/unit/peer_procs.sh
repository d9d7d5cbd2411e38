#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Runs the multi-process tests of the peer layer for make check, from the build directory.
exec python3 "${srcdir:-.}/tests/unit/peer_procs.py" tests/unit/peer_procs "$@"
