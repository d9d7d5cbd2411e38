# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# What python's unittest -v prints: each test and how it ended, why it was skipped, too. A test's description, and what it
# or the library says, may stand between name and end.
match($0, /\([a-zA-Z_.0-9]+\)/) && /^[a-zA-Z_0-9]+ \(/ { name = substr($0, RSTART + 1, RLENGTH - 2) }
name != "" && match($0, /(^|\.\.\. )(ok|FAIL|ERROR|skipped .*)$/) {
	end = substr($0, RSTART, RLENGTH)
	sub(/^\.\.\. /, "", end)
	print name, end
	name = ""
}
