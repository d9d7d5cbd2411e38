#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
set -e
cd "$(dirname "$0")"
autoreconf --force --install
