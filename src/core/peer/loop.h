/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
#ifndef DUALPORT_PEER_LOOP_H
#define DUALPORT_PEER_LOOP_H

#include <stdbool.h>

/* Runs until mail(), called each round, returns false; then says good-bye to everybody and closes everything. */
void dp_loop_run(bool (*mail)(void));
bool dp_peer_leaving(void); /* thread.c: dp_peer_stop(true) was called */
void dp_loop_wake(void); /* any thread, while the thread's owner keeps dp_peering alive */
void dp_fd_close_all(void);

#endif
