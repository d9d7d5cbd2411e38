# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
"""usage: stranger.py hold|babble|pester PORT

hold:   listens on PORT, accepts, says nothing
babble: listens on PORT, answers everyone with nonsense
pester: connects to PORT over and over and sends nonsense of several kinds
On SIGTERM it prints how many connections it had."""
import random
import signal
import socket
import sys
import time

rng = random.Random(13579)
held = []
count = 0


def end(*_):
	print(count, flush=True)
	sys.exit(0)


def nonsense():
	yield rng.randbytes(4096)
	yield b"GET / HTTP/1.1\r\nHost: peer\r\n\r\n"
	yield bytes(1 << 20)
	yield b"\xff" * 64
	yield b""
	yield rng.randbytes(1)


def serve(port, babble):
	global count
	listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
	while True:
		s, _ = listener.accept()
		count += 1
		held.append(s)
		if babble:
			try:
				s.sendall(rng.randbytes(4096))
			except OSError:
				pass


def pester(port):
	global count
	while True:
		for data in nonsense():
			try:
				s = socket.create_connection(("127.0.0.1", port), timeout=1)
			except OSError:
				time.sleep(0.05)
				continue
			count += 1
			held.append(s)  # stays open, as a slow talker's would
			try:
				s.sendall(data)
			except OSError:
				pass
			if len(held) > 20:
				held.pop(0).close()
			time.sleep(0.05)


signal.signal(signal.SIGTERM, end)
if sys.argv[1] == "pester":
	pester(int(sys.argv[2]))
else:
	serve(int(sys.argv[2]), sys.argv[1] == "babble")
