#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# What the library does not split goes as without it.
. "$(dirname "$0")/lib.sh"
rate 100
same send-bw-1m 0.98 mbps ib_send_bw -s 1048576 -n 24
same send-bw-64k 0.98 mbps ib_send_bw -s 65536 -n 400
same rc-pingpong 0.95 pingpong_mbps ibv_rc_pingpong -s 4096 -n 4000
# 16 queue pairs send at once: with larger messages the last would wait for longer than their fixed timeout of 67 ms.
same srq-pingpong 0.95 pingpong_mbps ibv_srq_pingpong -s 4096 -n 4000
# Bound by the emulated processors, hence the wide margin.
same atomic-bw 0.9 mbps ib_atomic_bw -n 4000
finish
