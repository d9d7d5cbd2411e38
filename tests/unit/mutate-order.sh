#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#
# Do the tests of the order machine bite? Breaks a temporary copy of its files (order*.c, order_*.h) in one way after the
# other and demands that test_order or test_order_random fails: once as they are, once with the verdict left to the world alone
# (what is seen reversed, given too early, or stuck), without the reference's "may this go now".
#
#	tests/unit/mutate-order.sh [NUMBER...]
#
# `make check` runs it with --some: those that break a rule at its core. Nothing is re-issued yet, so that nothing can go
# wrong there.

set -u
src=$(cd "$(dirname "$0")/../.." && pwd) || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM
: "${CC:=cc}"
libs=$(pkg-config --cflags --libs check) || exit 1
some=0
[ "${1:-}" = --some ] && { some=1; shift; }
want=" $* "
n=0
ran=0
bad=0

compile() { # SOURCE OBJECT
	# shellcheck disable=SC2086
	$CC -std=gnu11 -O2 -w -I"$tmp" -I"$src/src/core" -c -o "$tmp/$2" "$1" $libs
}

for f in test_order test_order_random order_kinds; do
	compile "$src/tests/unit/$f.c" $f.o || exit 1
done

build() { # NAME
	# shellcheck disable=SC2086
	$CC -o "$tmp/$1" "$tmp/$1.o" "$tmp/order_ref.o" "$tmp/order_kinds.o" "$tmp/order.o" "$tmp/order_add.o" $libs
}

# Prints the first failure; false if there was none.
caught() {
	for t in test_order_random test_order; do
		if ! CK_FORK=no ORDER_FIRST=1 ORDER_STEPS=400000 "$tmp/$t" >"$tmp/out" 2>&1; then
			grep -v -e '^Running' -e ' states, ' -e ': seed ' "$tmp/out" | tail -n 1 | cut -c1-300
			return 0
		fi
	done
	return 1
}

# mutate WHO TEXT SED-SCRIPT: WHO is "both", or "reference" where the mutant only waits for too much or too long; "core":
# both, and in make check
mutate() {
	n=$((n + 1))
	[ $some = 0 ] || [ "$1" = core ] || return
	case $want in
	"  ") ;;
	*" $n "*) ;;
	*) return ;;
	esac
	echo "== $n: $2"
	same=0
	for f in order.c order_add.c order_priv.h order_short.h; do
		sed "$3" "$src/src/core/$f" >"$tmp/$f"
		cmp -s "$tmp/$f" "$src/src/core/$f" && same=$((same + 1))
	done
	if [ $same != 3 ]; then
		echo "   no such place in the order machine any more, or in more than one file"
		bad=1
		return
	fi
	ran=$((ran + 1))
	# the reference has what is inlined
	if ! compile "$tmp/order.c" order.o || ! compile "$tmp/order_add.c" order_add.o ||
		! compile "$src/tests/unit/order_ref.c" order_ref.o || ! build test_order || ! build test_order_random; then
		echo "   does not compile"
		bad=1
		return
	fi
	if how=$(caught); then
		echo "   caught: $how"
	else
		echo "   SURVIVED"
		bad=1
	fi
	# a long random program is cut down to what it takes
	if [ $n = 1 ] && ! ORDER_STEPS=400000 "$tmp/test_order_random" 2>&1 | grep -q '^[1-9] acts of .* are enough'; then
		echo "   its failures are not shrunk"
		bad=1
	fi
	[ "$1" != reference ] || return
	if how=$(export ORDER_WORLD_ONLY=1; caught); then
		echo "   caught by the world: $how"
	else
		echo "   SURVIVED the world"
		bad=1
	fi
}

fn() { # NAME SED: SED within the function NAME
	printf '/^[a-z].*[ *]%s(/,/^}/ %s' "$1" "$2"
}

mutate core "a signal is released one fragment early" \
	"$(fn dp_order_may_post0 's/or\[r\].wait0, strong/or[r].wait0 - !!or[r].wait0, strong/')"
mutate core "siblings are not flushed" "$(fn after_done 's/ && o->visible\[rail\] >= / \&\& rail || o->visible[rail] >= /')"
mutate core "rail 0 is not flushed" "$(fn after_done 's/ && o->visible\[rail\] >= / \&\& !rail || o->visible[rail] >= /')"
mutate core "rail 0 is posted out of order" "$(fn dp_order_posted0 's/o->post0++/o->post0 += 1 + (o->post0 + 1 < o->next)/')"
mutate core "what is beyond the search is not waited for" \
	'/o->next - p > o->search/,/break/ s/wait\[e\] = er->seq;/;/'
mutate both "flushes that a broken spare took along are not asked for anew" \
	"$(fn dp_order_flush_again "s/= o->visible.*/= o->asked[rail];/")"
mutate both "completions ask for no flush" "$(fn want_visible 's/if (flags & DP_OP_SIGNALED)/if (false)/')"
mutate both "at the switch nobody asks for a flush" "$(fn dp_order_bond 's/o->want\[0\] = o->next;/;/')"
mutate both "SENDs and atomics do not write" "$(fn writes 's/ || (r == 0 && .*/;/')"
mutate both "remote overlaps are not looked at" "$(fn conflict 's/overlap(e->remote, remote)/false/')"
mutate both "bulk of unknown ranges looks at hulls" "$(fn wait_for_overlaps 's/!(flags & DP_OP_ALL) && //')"
mutate both "unknown ranges overlap with nothing" "$(fn conflict 's/(fe | fl) & DP_OP_ALL/fe \& DP_OP_ALL/')"
mutate both "local overlaps are not looked at" "$(fn conflict 's/overlap(e->local, local)/false/')"
mutate core "completions do not wait for siblings" \
	"$(fn dp_order_deliverable 's/!dp_order_reached(.*))/false)/')"
mutate core "strict: data does not wait for signals" \
	"$(fn bulk_waits 's/raise_to(&waits\[0\], o->last_signal)/(void)0/')"
mutate both "data waits although no completion will tell" \
	"$(fn untold 's/return .*/return false;/')"
mutate both "FENCE is ignored on data" "$(fn bulk_waits 's/d->flags & DP_OP_FENCE/false/')"
mutate both "what follows a FENCE does not wait" "$(fn bulk_waits 's/raise_to(&waits\[r\], o->fenced\[r\]);/;/')"
mutate reference "the short way of bulk forgets FENCEs" "$(fn dp_order_is_free 's/o->last_fence > o->done\[0\]/false/')"
mutate reference "undo forgets FENCEs" "$(fn dp_order_undo 's/o->fenced\[r\] = or->fenced;/;/')"
mutate both "relaxed: FENCE is ignored on small WRs" "$(fn drains 's/|| (flags & DP_OP_FENCE)//')"
mutate both "undo forgets last_signaled" "$(fn dp_order_undo 's/o->last_signaled = .*/;/')"
mutate both "undo forgets last_signal" "$(fn dp_order_undo 's/o->last_signal = .*/o->last_signal = 0;/')"
mutate both "undo leaves fragments planned" "$(fn dp_order_undo 's/o->planned\[r\]--;/;/')"
mutate both "undo does not rewind rail 0" "$(fn dp_order_undo 's/o->post0 = pos;/;/')"
mutate both "undo does not rewind the siblings" "$(fn dp_order_undo 's/o->posts = pos;/;/')"
# what was recorded natively is a signal of unknown ranges anyway, and what was added un-bonded has known ranges
mutate reference "bonding forgets what is outstanding" \
	"$(fn dp_order_bond 's/o->last_signal = o->last_all = o->next;/;/')"
mutate both "bonding forgets outstanding READs" "$(fn dp_order_bond 's/o->last_read\[0\] = o->next;/;/')"
mutate both "signals drain nothing" "$(fn add_signal 's/o->planned\[r\] & wait/o->done[r] \& wait/')"
mutate both "sibling parts do not wait for rail 0" \
	"$(fn dp_order_may_posts 's/for (uint32_t r = 0;/for (uint32_t r = 1;/')"
mutate both "the hulls leave out local ranges" "$(fn enter 's/hull_add(&o->lhull.*/;/')"
mutate both "the hulls are dropped too early" "$(fn after_done 's/if (settled(o, rail) == o->planned\[rail\])/if (true)/')"
mutate both "ops are forgotten before the siblings are done" \
	"$(fn finished 's/r < o->nrails/r < 1/')"
mutate both "unsignalled WRs take completions" \
	"$(fn dp_order_match 's/ && !(dp_order_op.*SIGNALED))/ \&\& false)/')"
mutate both "the FENCE of a third rail is forgotten" "$(fn bulk_waits 's/if (nr > 2)/if (false)/')"
mutate both "growth keeps ops in their old slots" \
	"$(fn dp_order_grow 's/\*dp_order_op(&n, p) = /n.op[p \& o->mask] = /')"
mutate both "reset keeps numbers" "$(fn dp_order_reset 's/\.nrails = /.last_signaled = o->last_signaled, .nrails = /')"
mutate reference "READs of the same bytes wait for one another" \
	"$(fn conflict 's/!((fe & DP_OP_READ) && (fl & DP_OP_READ)) && //')"
mutate reference "data is never cut behind anything" "$(fn untold 's/ && w->siblings\[0\] > o->last_signaled//')"

mutate both "widening loses what stands" "$(fn dp_order_widen 's/rail\[(p & o->mask) \* nrails\] =/rail[(p + 1 \& o->mask) * nrails] =/')"

mutate reference "bulk goes the short way although it may have to wait" "$(fn dp_order_is_free 's/o->mode == DP_ORDER_RELAXED/true/')"
mutate reference "the short way of bulk forgets the hulls" "$(fn dp_order_enter_free 's/hull_widen(&o->hull.*/;/')"
mutate reference "a pair does not look at rail 0" "$(fn dp_order_is_free 's/clear_of(o, 0, flags, /true || &/')"
mutate reference "a pair counts no fragment" "$(fn dp_order_enter_free 's/(pair || len != 0)/(!pair \&\& len != 0)/')"
mutate reference "there is room although something was entered" "$(fn dp_order_add 's/dp_order_shut(o);/o->open = 0;/')"
mutate reference "the short way of a signal forgets it" "$(fn dp_order_add_lone 's/ = o->last_signal = / = /')"
mutate both "the short way gives before the siblings have done" "$(fn dp_order_take_if 's/if (o->done\[[r1]\] < or\[[r1]\].seq)/if (false)/')"
mutate reference "ops are not finished by a sibling that is the last" "$(fn dp_order_done_one 's/o->tail != o->deliver/false/')"
mutate reference "ops without bytes on a sibling are passed over later" \
	"$(fn dp_order_done_one 's/if (pos + 1 < o->next.*/if (false)/')"
mutate reference "a signal goes alone although bulk went the short way" "$(fn dp_order_enter_free 's/o->open = 0;/;/')"
mutate reference "a signal goes alone although something was entered" "$(fn dp_order_add 's/dp_order_shut(o);/;/')"
mutate reference "a signal goes alone although siblings are not done" "$(fn dp_order_alone 's/if (!dp_order_reached(.*/if (false)/')"
mutate reference "a signal goes alone although a completion is held" "$(fn dp_order_match 's/dp_order_shut(o);/;/')"
mutate both "what goes on every rail does not wait on rail 0" "$(fn dp_order_add 's/} else if (drains(.*/} else if (false) {/')"
mutate both "what goes on every rail is taken for whole" "$(fn dp_order_add 's/op->whole = !part;/op->whole = !part || d->flags \& DP_OP_EVERY;/')"

[ $ran -gt 0 ] || bad=1
[ $bad = 0 ] && echo "all caught"
exit $bad
