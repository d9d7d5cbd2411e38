# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Sourced by shape.sh, delay.sh and clear.sh: what is set is kept in /run/lab, and applied as a whole.
set -eu
qdisc=/run/lab/qdisc
mkdir -p "$qdisc"

qdisc_apply() {
	local i d rate delay parent
	for i in 0 1; do
		for d in va$i vb$i; do
			tc qdisc del dev $d root 2> /dev/null || true
			rate=$(cat "$qdisc/rate" 2> /dev/null || true)
			delay=$(cat "$qdisc/delay$i" 2> /dev/null || true)
			parent=root
			if [ -n "$delay" ]; then
				tc qdisc add dev $d root handle 1: netem delay "$delay" limit 20000
				parent="parent 1:"
			fi
			# A queue of 2 s: large READs overflow a shorter one, and what is then measured is loss.
			# shellcheck disable=SC2086
			[ -z "$rate" ] || tc qdisc add dev $d $parent handle 2: tbf rate "$rate" burst 64kb latency 2s
		done
	done
}
