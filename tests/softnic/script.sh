# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# scripts/softnic itself: its exit status, what it passes on, what it leaves behind.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
failed=0

softnic()
{
	"$top/scripts/softnic" --build . "$@"
}

check()
{
	[ "$2" = "$3" ] && echo "ok: $1" && return
	echo "FAILED: $1: $2, not $3"
	failed=1
}

# shellcheck disable=SC2016 # the inner shell expands it
where='echo "$SOFTNIC_DIR"'

check "standard input" "$(echo hello | softnic -- cat)" hello
softnic -- sh -c 'exit 7'
check "exit status" $? 7
softnic -- sh -c 'kill -KILL $$' 2> /dev/null
check "killed" $? 137
softnic --ports 33 -- true 2> /dev/null
check "wrong option" $? 2
dir=$(softnic -- sh -c "$where")
check "directory after the end" "$([ -e "$dir" ] && echo there)" ""

# Each of the signals ends COMMAND, and the directory goes.
for sig in HUP INT TERM; do
	out=$(mktemp)
	# timeout sends it to the script only, and background jobs of this shell would ignore INT
	timeout --foreground -s $sig 1 "$top/scripts/softnic" --build . -- sh -c "$where; exec sleep 20" > "$out"
	check "$sig: ended" $? 124
	check "$sig: directory" "$([ -e "$(cat "$out")" ] && echo there)" ""
	rm -f "$out"
done
# shellcheck disable=SC2016
softnic -- sh -c 'trap "exit 9" TERM; kill -TERM $PPID; while :; do sleep 0.1; done'
check "COMMAND decides how it ends" $? 9

# A signal that COMMAND brings about before the script has noted its process ID is passed on as well.
# shellcheck disable=SC2016
echo 'trap '\''[ "$BASH_COMMAND" != "child=\$!" ] || sleep 1'\'' DEBUG' > late.bash
# shellcheck disable=SC2016
BASH_ENV=late.bash softnic -- sh -c 'trap "exit 9" TERM; kill -TERM $PPID; touch late.sent; for t in $(seq 50); do sleep 0.1; done'
check "COMMAND decides, however early" "$? $(ls late.sent)" "9 late.sent"
rm -f late.bash late.sent

# What a killed one left is removed by the next; what a running one has is not.
softnic -- sh -c "$where; exec sleep 20" > dir.running &
running=$!
# shellcheck disable=SC2016
softnic -- sh -c "$where; kill -KILL \$PPID" > dir.killed
sleep 1
dir=$(softnic -- sh -c "$where")
check "left by a killed one" "$([ -e "$(cat dir.killed)" ] && echo there)" ""
check "of a running one" "$([ -e "$(cat dir.running)" ] && echo there)" there
check "two do not meet" "$([ "$dir" = "$(cat dir.running)" ] && echo same)" ""
kill -TERM $running
wait $running
check "TERM: status" $? 143
rm -f dir.running dir.killed
exit $failed
