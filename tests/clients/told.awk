# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# What a small client printed, without its summary, which has times in it, and without what each provider takes or refuses as
# it likes: the library follows one of them in what it queues. For comparing runs with and without it.
/^[^ ]/ { skip = /^(unknown opcode|inline READ|atomic at)/ }
!skip && !/^{/
