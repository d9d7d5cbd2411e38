#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# usage: clear.sh    both links without limit or delay
. "$(dirname "$0")/qdisc.sh"
rm -f "$qdisc"/*
qdisc_apply
