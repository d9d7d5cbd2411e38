# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=bash
# number PREFIX KEY: the member of that name, summed over the JSON files whose names begin so; 0 if there are none.
number() { cat "$1"*.json 2> /dev/null | grep -o "\"$2\": *[0-9]*" | awk -F: '{ s += $2 } END { print s + 0 }'; }
