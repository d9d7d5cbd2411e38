#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Exit status and counts must be as without the library; the times are printed only: these tools poll a message's last
# byte, which may land before the rest of a message that is split.
. "$(dirname "$0")/lib.sh"

latency() {
	local what=$1
	shift
	pair plain "$what-plain" 0 18515 "$@"
	check "$what: iterations without the library" "$(column "$what-plain" 2)" ">" 0
	with_library || { echo "$what: $(column "$what-plain" 5) us typical, $(column "$what-plain" 6) mean"; return; }
	pair loaded "$what-lib" 0 18515 "$@"
	check "$what: iterations" "$(column "$what-lib" 2)" == "$(column "$what-plain" 2)"
	printf '%s: typical %s us without the library, %s with it; mean %s, %s\n' "$what" "$(column "$what-plain" 5)" \
		"$(column "$what-lib" 5)" "$(column "$what-plain" 6)" "$(column "$what-lib" 6)"
}

rate 100
for tool in write read send; do
	latency $tool-8 ib_${tool}_lat -s 8 -n 1000
	latency $tool-64k ib_${tool}_lat -s 65536 -n 50
done
latency atomic ib_atomic_lat -n 1000
finish
