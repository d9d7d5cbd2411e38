# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
# Prints the rate of this machine's time stamp counter in kHz. An emulated guest reads that very counter, and on a busy
# machine measures its rate wrongly at boot: its clock was seen to run fifteen times too fast.
import ctypes
import mmap
import time

page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0\xc3")  # rdtsc; shl $32, %rdx; or %rdx, %rax; ret
counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(page)))


def sample():
    """The counter and the clock at one moment: of many tries the one that was interrupted least."""
    best = None
    for _ in range(50):
        before, ticks, after = time.monotonic_ns(), counter(), time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, ticks, (before + after) / 2)
    return best[1:]


first = sample()
time.sleep(0.1)
last = sample()
print(round((last[0] - first[0]) * 1e6 / (last[1] - first[1])))
