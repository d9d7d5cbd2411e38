// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Timers of the control thread: a pairing heap inside the timers themselves, because thousands of QPs may each wait for
 * something and arming must neither fail for want of memory nor walk a list.
 */
#include "timer.h"

static struct dp_timer *meld(struct dp_timer *a, struct dp_timer *b)
{
	if (!a)
		return b;
	if (!b)
		return a;
	if (b->due < a->due) {
		struct dp_timer *t = a;

		a = b;
		b = t;
	}
	b->prev = a;
	b->next = a->child;
	if (b->next)
		b->next->prev = b;
	a->child = b;
	a->prev = a->next = NULL;
	return a;
}

static struct dp_timer *meld_children(struct dp_timer *first)
{
	struct dp_timer *pairs = NULL, *root = NULL;

	while (first) {
		struct dp_timer *a = first, *b = a->next;

		first = b ? b->next : NULL;
		a->next = NULL;
		if (b)
			b->next = NULL;
		a = meld(a, b);
		a->next = pairs;
		pairs = a;
	}
	while (pairs) {
		struct dp_timer *next = pairs->next;

		pairs->next = NULL;
		root = meld(root, pairs);
		pairs = next;
	}
	if (root)
		root->prev = root->next = NULL;
	return root;
}

void dp_timers_insert(struct dp_timer **root, struct dp_timer *t)
{
	t->next = t->prev = t->child = NULL;
	*root = meld(*root, t);
}

void dp_timers_remove(struct dp_timer **root, struct dp_timer *t)
{
	if (t == *root) {
		*root = meld_children(t->child);
	} else {
		/* prev is the parent of a first child, else the sibling to the left */
		if (t->prev->child == t)
			t->prev->child = t->next;
		else
			t->prev->next = t->next;
		if (t->next)
			t->next->prev = t->prev;
		*root = meld(*root, meld_children(t->child));
	}
	t->next = t->prev = t->child = NULL;
}
