/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef UNIT_TREE_H
#define UNIT_TREE_H

/* Writes a file with one line, or makes a link if the text starts with "->", with all directories above. */
void tree_put(const char *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
