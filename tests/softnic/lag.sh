# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# The ports of a bond as rails, in the build directory: no flag before its data although the sibling is late, both ports carry
# their half, by the devices' own counters, a bond and two devices work together, and what cannot be pinned stays native.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
clients=$PWD/tests/clients
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
seed=${CLIENTS_SEED:-$RANDOM}
# shellcheck source=tests/clients/number.sh
. "$top/tests/clients/number.sh"
# shellcheck source=tests/clients/control.sh
. "$top/tests/clients/control.sh"

fail()
{
	echo "FAILED: seed $seed, $*"
	grep -m 6 -E 'VIOLATION|GUARD|dataflag:|dualport' "$out/log"
	failed=1
}

# run SOFTNIC-OPTION... -- COMMAND...: sets $status; the JSON of the processes is in $out/run.*.json
run()
{
	rm -f "$out"/run.*.json "$out/sent"
	DUALPORT_DIAG=1 DUALPORT_DIAG_JSON=$out/run.%p.json timeout -k 5 100 "$top/scripts/softnic" --build "${build:-.}" --seed "$seed" \
		--counters "$out/sent" --dualport "$@" > "$out/stdout" 2> "$out/log"
	status=$?
}

# dataflag ORDERING "SOFTNIC-OPTIONS" DEV PEER-DEV ARG...
dataflag()
{
	local ordering=$1 dev=$3 peer=$4 options
	read -ra options <<< "$2"
	shift 4
	DUALPORT_ORDERING=$ordering run "${options[@]}" -- "$clients/dataflag" \
		--dev "$dev" --peer-dev "$peer" --rounds "${CLIENTS_ROUNDS:-60}" --timeout 90 "$@"
	splits=$(number "$out/run." splits) waited=$(number "$out/run." signals_waited) bonds=$(number "$out/run." bonds)
	refused=$(number "$out/run." lag-refused)
}

# sent PORT: bytes, as the devices say; told PORT: as the library says
sent() { grep -o "\"$1\":[0-9]*" "$out/sent" | sed 's/.*://'; }
told() { cat "$out"/run.*.json | grep -o "\"port\":\"$1\",\"tx_bytes\":[0-9]*" | awk -F: '{ s += $NF } END { print s + 0 }'; }

two='--ports 2 --cards 2 --lag 2'

for ordering in strict signal; do
	for arg in "--window 1 --reads 4 --wait event" "--window 8 --wr --cq-ex" "--bidir --qps 4 --threads 2 --cq all"; do
		# shellcheck disable=SC2086 # several options
		dataflag $ordering "$two --adverse" mlx5_bond_0 mlx5_bond_1 $arg
		if [ $status = 0 ] && [ "$splits" -gt 0 ] && [ "$waited" -gt 0 ]; then
			echo "ok: $ordering, $arg: $splits splits, $waited signals waited"
		else
			fail "$ordering, $arg: status $status, $splits splits, $waited signals waited"
		fi
	done
done
control control "$out/stdout" dataflag relaxed "$two --adverse" mlx5_bond_0 mlx5_bond_1 --flags inline --window 4

# where bulk does not wait for signals, the halves are equal
dataflag signal "$two" mlx5_bond_0 mlx5_bond_1 --window 8 --qps 4
one=$(sent mlx5_bond_0:1::1) other=$(sent mlx5_bond_0:1::2)
if [ $status = 0 ] && awk -v a="${one:-0}" -v b="${other:-0}" 'BEGIN { s = a + b; exit !(s > 0 && a > 0.4 * s && b > 0.4 * s) }'; then
	echo "ok: each port of the bond carries its half: $one and $other bytes"
else
	fail "halves: status $status, ${one:-none} and ${other:-none} bytes"
fi
# where it waits, or goes whole, they are not; and every rail is on the port that it says, which four queue pairs would not
# be by themselves
dataflag strict "$two" mlx5_bond_0 mlx5_bond_1 --window 1 --qps 4
ok=$([ $status = 0 ] && [ "$splits" -gt 0 ] && echo yes)
for port in mlx5_bond_0:1::1 mlx5_bond_0:1::2; do
	awk -v a="$(sent $port)" -v b="$(told $port)" 'BEGIN { exit !(b > 0 && a > 0.9 * b && a < 1.1 * b) }' || ok=
done
if [ -n "$ok" ]; then
	echo "ok: the devices say of the ports what the library says: $(cat "$out/sent")"
else
	fail "pinned: status $status; the devices say $(cat "$out/sent"), the library $(told mlx5_bond_0:1::1)" \
		"and $(told mlx5_bond_0:1::2)"
fi

# a bond here, two devices there
for pair in "mlx5_0 mlx5_bond_0" "mlx5_bond_0 mlx5_0"; do
	for ordering in strict signal; do
		dataflag $ordering "--ports 3 --cards 2 --lag 2:1 --adverse" "${pair% *}" "${pair#* }" --bidir --window 4 --reads 3
		if [ $status = 0 ] && [ "$bonds" = 2 ] && [ "$(told mlx5_1:1)" -gt 0 ] && [ "$(told mlx5_bond_0:1::2)" -gt 0 ]; then
			echo "ok: $ordering, $pair: $splits splits, $waited signals waited"
		else
			fail "$ordering, $pair: status $status, $bonds bonds, $splits splits"
		fi
	done
done

# refusal WHAT LINE: both native, or one of them, and the line is there once for each process
refusal()
{
	if [ $status = 0 ] && [ "$refused" -gt 0 ] && [ "$(grep -c "$2" "$out/log")" = "$3" ]; then
		echo "ok: $1: $refused queue pairs on one port, $bonds bonds"
	else
		fail "$1: status $status, $refused refused, $bonds bonds, said $(grep -c "$2" "$out/log") times"
	fi
}

# a libmlx5 of before: the name is another one
mkdir -p "$out/old/tests/softnic/lib"
cp tests/softnic/lib/* "$out/old/tests/softnic/lib/" && ln -s "$PWD/.libs" "$out/old/.libs"
LC_ALL=C sed -i 's/mlx5dv_modify_qp_lag_port/mlx5dv_modify_qp_lag_pork/g' "$out/old/tests/softnic/lib/libibverbs.so.1"
build=$out/old dataflag strict "$two" mlx5_bond_0 mlx5_bond_1 --qps 3 --bidir
refusal "no such function" "cannot be pinned to ports of a bond: .*libmlx5 has no mlx5dv_modify_qp_lag_port" 2
[ "$bonds" = 0 ] || fail "no such function: bonds"
# no bond at all
DUALPORT_PORTS="mlx5_0:1::1,mlx5_0:1::2;mlx5_1:1::1,mlx5_1:1::2" \
	dataflag strict "--ports 2 --cards 2" mlx5_0 mlx5_1 --qps 3 --bidir
refusal "no bond" "cannot be pinned to ports of a bond: .*the device is no bond" 2
[ "$bonds" = 0 ] || fail "no bond: bonds"
# the same, but the peer's is one: what it sends by both ports arrives
DUALPORT_PORTS="mlx5_0:1::1,mlx5_0:1::2;mlx5_bond_0:1::1,mlx5_bond_0:1::2" \
	dataflag signal "--ports 2 --cards 2 --lag 2:1" mlx5_bond_0 mlx5_0 --bidir
refusal "no bond, but the peer's is" "cannot be pinned to ports of a bond: .*the device is no bond" 1

# lives of objects: what programs see is what they see without the library
for client in errors events loopback mrlife windows; do
	args=(--dev mlx5_bond_0 --peer-dev mlx5_bond_1 --settle-ms 300)
	[ $client != mrlife ] || args+=(--count 300)
	wait=0
	[ $client != events ] || wait=5s
	# shellcheck disable=SC2086 # several options
	timeout -k 5 100 "$top/scripts/softnic" --build . $two -- "$clients/$client" "${args[@]}" > "$out/plain" 2> "$out/log" ||
		fail "$client: without the library: status $?"
	# shellcheck disable=SC2086
	DUALPORT_BOND_WAIT=$wait run $two -- "$clients/$client" "${args[@]}"
	awk -f "$top/tests/clients/told.awk" "$out/plain" > "$out/expected"
	if [ $status = 0 ] && [ "$(number "$out/run." bonds)" -gt 0 ] &&
		diff "$out/expected" <(awk -f "$top/tests/clients/told.awk" "$out/stdout") > "$out/diff"; then
		echo "ok: $client: bonds $(number "$out/run." bonds)"
	else
		fail "$client: status $status, bonds $(number "$out/run." bonds)"
		head -n 8 "$out/diff"
	fi
done
exit $failed
