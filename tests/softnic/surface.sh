# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# Every other thing that a program may do with verbs (tests/clients/surface.c, states.c, life.c, imports.c): the same lines without the
# library and with it, also on hostile devices, with queue pairs that are bonded and requests that are split.
# SURFACE_CLIENTS: which of them.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
clients=$PWD/tests/clients
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
seed=${CLIENTS_SEED:-$RANDOM}

# shellcheck source=tests/clients/number.sh
. "$top/tests/clients/number.sh"

fail()
{
	echo "FAILED: $*"
	failed=1
}

# Slow enough for requests to be under way when something else happens, and longest on the siblings.
softnic()
{
	timeout -k 5 170 "$top/scripts/softnic" --build . --ports 4 --cards 2 --rate 2Gbit,400Mbit,2Gbit,400Mbit --seed "$seed" "$@"
}

# Both ends are in one process, which joins one after the other: none can wait for the bond in modify_qp.
export DUALPORT_BOND_WAIT=0

# plain WHAT ARG...: without the library, for with()
plain()
{
	local what=$1
	shift
	softnic -- "$@" > "$out/$what.plain" 2> "$out/$what.err" ||
		fail "$what without the library: status $?: $(tail -n 3 "$out/$what.err")"
}

# with WHAT OPTIONS ARG...: WHAT.plain is what it said without the library
with()
{
	local what=$1 options=$2 splits
	shift 2
	rm -f "$out"/json.*
	# shellcheck disable=SC2086 # several options
	DUALPORT_DIAG_JSON=$out/json.%p.json softnic --dualport $options -- "$@" > "$out/$what.loaded" 2> "$out/$what.err" ||
		fail "seed $seed, $what $options: status $?: $(tail -n 3 "$out/$what.err")"
	splits=$(number "$out/json." splits)
	if ! diff "$out/$what.plain" "$out/$what.loaded" > "$out/diff"; then
		fail "seed $seed, $what $options: differs"
		head -n 12 "$out/diff"
	elif [ "$(number "$out/json." bonds)" = 0 ] || [ "$splits" = 0 ]; then
		fail "seed $seed, $what $options: nothing was bonded or split"
	else
		echo "ok: seed $seed, $what $options: bonds $(number "$out/json." bonds), splits $splits"
	fi
}

for client in ${SURFACE_CLIENTS:-surface states life imports}; do
	args=(--dev mlx5_0 --peer-dev mlx5_2)
	[ $client != life ] || args+=(--load dlsym)
	plain $client "$clients/$client" "${args[@]}"
	with $client "" "$clients/$client" "${args[@]}" --settle-ms 200
	with $client --adverse "$clients/$client" "${args[@]}" --settle-ms 600
done

# With READs behind WRITEs, those of the program's own port on a queue pair of the library's: what is reset and destroyed then.
for client in ${SURFACE_CLIENTS:-states life}; do
	case $client in surface | imports) continue ;; esac
	[ -e "$out/$client.plain" ] || fail "$client: nothing to compare with"
	args=(--dev mlx5_0 --peer-dev mlx5_2 --settle-ms 200)
	[ $client != life ] || args+=(--load dlsym)
	DUALPORT_FLUSH="read" with $client "" "$clients/$client" "${args[@]}"
	[ "$(number "$out/json." flush_waits)" -gt 0 ] || fail "seed $seed, $client: nothing waited for a flush"
	! grep 'no spare queue pair' "$out/$client.err" || fail "seed $seed, $client: no spare"
done

# Windows bound through ibv_wr_*: the window gets its new key before wr_complete. XRC's completions in extended CQs.
for CASE in mw2_local mw2_remote xrc; do
	export CASE CLIENTS_EX=1
	plain $CASE "$clients/surface" --dev mlx5_0 --peer-dev mlx5_2
	with $CASE "" "$clients/surface" --dev mlx5_0 --peer-dev mlx5_2 --settle-ms 200
done
exit $failed
