#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# usage: shape.sh RATE    limits every end of both links, e.g. to 100mbit; delays stay
. "$(dirname "$0")/qdisc.sh"
echo "${1:?rate}" > "$qdisc/rate"
qdisc_apply
