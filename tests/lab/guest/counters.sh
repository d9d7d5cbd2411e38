#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# usage: counters.sh    one line for each end of a link: name, bytes received, bytes sent
for d in va0 va1 vb0 vb1; do
	echo "$d $(< /sys/class/net/$d/statistics/rx_bytes) $(< /sys/class/net/$d/statistics/tx_bytes)"
done
