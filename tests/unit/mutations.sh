# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# shellcheck shell=sh
# Are the rules of the order machine tested? Each is broken once, and a test has to fail.
exec sh "$(dirname "$0")/mutate-order.sh" --some
