#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
"""Multi-process tests of the peer layer on loopback: peer_procs.py PROGRAM [TEST...]

PROGRAM is the built peer_procs. Each test has a port range of its own. Exit status 0: all passed.
PEER_WRAP: a command to run PROGRAM under (valgrind ...). PEER_SLOW: factor for time limits.
"""
import contextlib
import os
import queue
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

ENOENT, EACCES, ETIMEDOUT, ECONNREFUSED, EADDRNOTAVAIL = -2, -13, -110, -111, -99
SLOW = float(os.environ.get("PEER_SLOW", "1"))
RANGE = 4
HEAD = struct.Struct(">IBBHIIQ")
MAGIC = 0x44504C31


class Agent:
    """One peer_procs process; events are lists of words, read from its stdout."""

    def __init__(self, test, lease=2000, ports=RANGE, bind="-", secret="-", start=True):
        wrap = os.environ.get("PEER_WRAP", "").split()
        self.err = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen(wrap + [PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.err,
                                  text=True)
        self.q = queue.Queue()
        self.kept = []
        threading.Thread(target=self.reader, daemon=True).start()
        test.agents.append(self)
        self.stopped = self.killed = False
        self.args = f"start {test.port} {ports} {lease} {bind} {secret}"
        if start:
            self.start()

    def start(self, want="0"):
        self.cmd(self.args)
        got = self.event("started")[1]
        assert got == want, f"start: {got}, not {want}: {self.errors()}"

    def reader(self):
        for line in self.p.stdout:
            self.q.put(line.split())
        self.q.put(["eof"])

    def cmd(self, text):
        self.p.stdin.write(text + "\n")
        self.p.stdin.flush()

    def event(self, *words, limit=10):
        """The next event that begins with these words; others are kept."""
        for e in self.kept:
            if e[:len(words)] == list(words):
                self.kept.remove(e)
                return e
        end = time.monotonic() + limit * SLOW
        while True:
            try:
                e = self.q.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no event {words}; had {self.kept}; {self.errors()}") from None
            if e[:len(words)] == list(words):
                return e
            if e == ["eof"]:
                raise AssertionError(f"process ended ({self.p.wait()}): {self.errors()}")
            self.kept.append(e)

    def ask(self, text, *words, **kw):
        self.cmd(text)
        return self.event(*words, **kw)

    def own(self, ip, qpn):
        self.ask(f"own {ip} {qpn}", "ok")

    def locate(self, tag, ip, qpn, ms=5000):
        self.cmd(f"locate {tag} {ip} {qpn} {int(ms * (SLOW if ms > 1500 else 1))}")

    def located(self, tag, limit=12):
        e = self.event("located", tag, limit=limit)
        return int(e[2]), e[3], e[4], int(e[5])

    def find(self, ip, qpn, ms=5000):
        tag = f"t{random.getrandbits(40)}"
        self.locate(tag, ip, qpn, ms)
        return self.located(tag) + (tag,)

    def count(self):
        return [int(x) for x in self.ask("count", "count")[1:]]

    def errors(self):
        self.err.seek(0)
        return self.err.read()

    def kill(self, sig=signal.SIGKILL):
        self.killed = True
        self.p.send_signal(sig)
        self.p.wait()

    def stop(self):
        self.stopped = True
        return int(self.ask("stop", "stopped")[1])

    def end(self):
        if self.killed:
            return
        if not self.stopped:
            self.stop()
        self.p.stdin.close()
        assert self.p.wait(20 * SLOW) == 0, f"exit status {self.p.returncode}: {self.errors()}"


class Test:
    def __init__(self, port):
        self.port = port
        self.agents = []

    def finish(self, good):
        for a in self.agents:
            try:
                if good:
                    a.end()
            finally:
                if a.p.poll() is None:
                    a.p.kill()
                    a.p.wait()


def eventually(fn, limit=5):
    end = time.monotonic() + limit * SLOW
    while not fn():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.02)


def frame(kind, payload, seq=0, version=3, length=None):
    return HEAD.pack(MAGIC, version, 0, kind, len(payload) if length is None else length, 0, seq) + payload


def hello(instance=None, flags=0, port=9):
    return bytes([flags]) + (instance or os.urandom(16)) + struct.pack(">IH", 1, port) + os.urandom(32)


def shm_path(t):
    return f"/dev/shm/dualport-{os.geteuid()}-{t.port}"


def test_self(t):
    a = Agent(t)
    a.own("127.0.0.1", 17)
    status, who, _, _, tag = a.find("127.0.0.1", 17)
    assert (status, who) == (0, "self")
    assert a.ask(f"send {tag} 50", "sent")[1] == "1"
    eventually(lambda: a.count()[0] == 50)
    assert a.count()[1] == 0
    # two QPs of one process behind a GID that is no address (InfiniBand)
    a.own("fe80::2:c903:0:1", 18)
    assert a.find("fe80::2:c903:0:1", 18)[:2] == (0, "self")
    assert a.find("fe80::2:c903:0:2", 18)[0] == EADDRNOTAVAIL


def test_other(t):
    a, b = Agent(t), Agent(t)
    b.own("127.0.0.1", 5)
    assert a.find("127.0.0.1", 5)[:2] == (0, "other")
    ms = a.find("127.0.0.1", 5)[3]
    assert ms < 50 * SLOW, ms
    assert a.count()[2:5] == [1, 1, 1]
    eventually(lambda: b.count()[2:5] == [1, 1, 1])
    # leases stay valid as time goes on
    time.sleep(2.5)
    assert a.count()[2:5] == [1, 1, 1] and b.count()[2:5] == [1, 1, 1]


def test_other_address(t):
    a, b, c = Agent(t), Agent(t), Agent(t)
    b.own("127.0.0.2", 5)
    c.own("127.0.0.3", 5)
    first = a.find("127.0.0.2", 5)
    assert first[:2] == (0, "other")
    second = a.find("127.0.0.3", 5)
    assert second[:2] == (0, "other") and first[2] != second[2]


def test_outside_range(t):
    agents = [Agent(t, ports=2) for _ in range(5)]
    agents[4].own("127.0.0.2", 9)
    assert agents[0].find("127.0.0.2", 9)[:2] == (0, "other")
    assert agents[3].find("127.0.0.2", 9)[:2] == (0, "other")
    # the range is free again: somebody from outside takes over
    agents[0].kill()
    agents[1].kill()
    def held():
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", t.port), 0.2).close()
            return True
        return False
    eventually(held)
    late = Agent(t, ports=2)
    assert late.find("127.0.0.2", 9)[:2] == (0, "other")


def test_without_directory(t):
    # the file is somebody's link: nobody uses it, and the range alone is enough
    os.symlink("/dev/null", shm_path(t))
    try:
        agents = [Agent(t) for _ in range(RANGE)]
        agents[3].own("127.0.0.2", 9)
        assert agents[0].find("127.0.0.2", 9)[:2] == (0, "other")
        for a in agents:
            a.stop()
        assert os.path.islink(shm_path(t))
    finally:
        os.unlink(shm_path(t))


def test_corrupt_directory(t):
    a = Agent(t)
    with open(shm_path(t), "r+b") as f:
        f.seek(1024)
        f.write(os.urandom(200 * 1024))
        b = Agent(t)
        b.own("127.0.0.2", 3)
        assert a.find("127.0.0.2", 3)[:2] == (0, "other")
        f.truncate(100)
    assert a.find("127.0.0.2", 4, 300)[0] == ENOENT
    os.unlink(shm_path(t))
    time.sleep(1.3 * SLOW)
    c = Agent(t)
    c.own("127.0.0.2", 5)
    assert a.find("127.0.0.2", 5)[:2] == (0, "other")
    for x in (a, b, c):
        x.stop()
    assert not os.path.exists(shm_path(t)), "left behind"


def test_starts_later(t):
    a = Agent(t)
    a.locate("x", "127.0.0.2", 8, 8000)
    time.sleep(1)
    b = Agent(t)
    b.own("127.0.0.2", 8)
    status, who, _, ms = a.located("x")
    assert (status, who) == (0, "other") and ms >= 900, (status, who, ms)


def test_unknown_qpn(t):
    a, b = Agent(t), Agent(t)
    b.own("127.0.0.2", 8)
    status, _, _, ms, _ = a.find("127.0.0.2", 9, 700)
    assert status == ENOENT and 690 <= ms < 1200 * SLOW, (status, ms)


def test_nobody(t):
    a = Agent(t)
    status, _, _, ms, _ = a.find("127.0.0.2", 9, 500)
    assert status == ECONNREFUSED and 490 <= ms < 1000 * SLOW, (status, ms)
    a.cmd("locate y 127.0.0.2 9 60000")
    assert a.ask("cancel y", "cancelled", "y")


def test_nobody_from_outside(t):
    # the asker's own listener is elsewhere, the address is one that nobody serves
    a = Agent(t, bind="127.0.0.1")
    assert a.find("127.0.0.7", 9, 300)[0] == ECONNREFUSED


@contextlib.contextmanager
def server(ip, port, talk=None):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((ip, port))
    s.listen(64)
    held = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                c, _ = s.accept()
                held.append(c)
                if talk:
                    threading.Thread(target=talk, args=(c,), daemon=True).start()
    threading.Thread(target=serve, daemon=True).start()
    try:
        yield s
    finally:
        s.close()
        for c in held:
            c.close()


def test_silent_stranger(t):
    with server("0.0.0.0", t.port):
        a, b = Agent(t), Agent(t)
        b.own("127.0.0.2", 8)
        # not through the directory alone: from an address that is not in it
        assert a.find("127.0.0.2", 8)[:2] == (0, "other")
        status, _, _, _, _ = a.find("127.0.0.9", 8, 2600)
        assert status == ENOENT, status
        assert a.errors().count("sent no libdualport greeting") <= 2  # addresses
    t2 = Test(t.port + RANGE)
    try:
        with server("127.0.0.9", t2.port), server("127.0.0.1", t2.port):
            a = Agent(t2, bind="127.0.0.1", ports=1)
            assert a.find("127.0.0.9", 8, 2600)[0] == ETIMEDOUT
            assert a.errors().count("127.0.0.9") == 1, a.errors()
        t2.finish(True)
    finally:
        t2.finish(False)


def test_talking_stranger(t):
    def talk(c):
        with contextlib.suppress(OSError):
            c.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    with server("127.0.0.9", t.port, talk), server("127.0.0.1", t.port):
        a = Agent(t, bind="127.0.0.1", ports=1)
        assert a.find("127.0.0.9", 8, 1500)[0] == ETIMEDOUT
        assert a.errors().count("sent no libdualport greeting") == 1, a.errors()


def ends(s, limit=4):
    """Does the other side end this connection?"""
    s.settimeout(limit * SLOW)
    try:
        while s.recv(4096):
            pass
        return True
    except socket.timeout:
        return False
    except OSError:
        return True


def test_nonsense(t):
    a, b = Agent(t), Agent(t)
    b.own("127.0.0.2", 8)
    rnd = random.Random(7)
    good = frame(1, hello())
    bad = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 100, b"\xff", bytes(rnd.randrange(256) for _ in range(5000)),
        frame(1, hello(), version=1), frame(1, hello(), seq=1), frame(1, hello(), length=0xffffffff),
        frame(1, hello() + b"x"), frame(1, hello(port=0)), frame(1, hello(flags=7)), frame(1, b""),
        frame(2, struct.pack(">Q", 10**9)), frame(0x100, b"hi"), frame(3, b"12345678"),
        good + frame(1, hello(), seq=1), good + frame(2, b"", seq=1), good + frame(2, struct.pack(">Q", 0), seq=1),
        good + frame(2, struct.pack(">Q", 10**9), seq=2), good + frame(3, b"12345678", seq=1),
        good + frame(3, b"", 1), good[:-5],
    ]
    for x in bad:
        with socket.create_connection(("127.0.0.1", t.port)) as s:
            s.sendall(x)
            assert ends(s), x[:40]
    # an open connection: wrong messages after a right greeting
    ready = good + frame(2, struct.pack(">Q", 10**9), seq=1)
    for x in [frame(3, b"", 2), frame(4, b"x" * 16, 2), frame(5, b"", 2), frame(6, b"\0" * 8 + b"\xff\xff", 2),
              frame(7, b"", 2), frame(8, b"", 2), frame(99, b"", 2), frame(1, hello(), 2), frame(9, b"", 2),
              frame(0x100, b"", 2, length=70000)]:
        with socket.create_connection(("127.0.0.1", t.port)) as s:
            s.sendall(frame(1, hello()) + ready[len(good):] + x)
            assert ends(s), x[:40]
    eventually(lambda: a.count()[2] == 0)
    assert a.find("127.0.0.2", 8)[:2] == (0, "other")
    lines = [x for x in a.errors().splitlines() if "127.0.0.1" in x]
    assert len(lines) == 1, lines


def test_partial_message(t):
    a = Agent(t, lease=60000)
    with socket.create_connection(("127.0.0.1", t.port)) as s:
        s.sendall(frame(1, hello()) + frame(2, struct.pack(">Q", 200 * 10**6), seq=1) +
                  frame(0x100, b"x" * 10, seq=2, length=1000))
        eventually(lambda: a.count()[2] == 1)
        start = time.monotonic()
        assert ends(s, 8)
        assert time.monotonic() - start > 3.5


def test_flood(t):
    a, b = Agent(t), Agent(t)
    b.own("127.0.0.2", 8)
    conns = []
    for _ in range(400):
        s = socket.socket()
        s.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            s.connect(("127.0.0.1", t.port))
        conns.append(s)
    assert a.find("127.0.0.2", 8)[:2] == (0, "other")
    c = Agent(t)
    assert c.find("127.0.0.2", 8)[:2] == (0, "other")
    fds = int(a.ask("stat", "stat")[2])
    assert fds < 64 + 40, fds
    for s in conns:
        assert ends(s)
        s.close()
    assert int(a.ask("stat", "stat")[2]) < 40


def test_killed(t):
    a, b = Agent(t), Agent(t)
    b.own("127.0.0.2", 8)
    inst = a.find("127.0.0.2", 8)[2]
    b.kill()
    e = a.event("gone", inst, limit=1)
    assert e[3] == "0" and e[5] == "1", e  # keys of theirs: no more; of ours: they may still use them
    assert a.count()[2] == 0
    c = Agent(t)
    c.own("127.0.0.2", 8)
    again = a.find("127.0.0.2", 8)
    assert again[:2] == (0, "other") and again[2] != inst


def test_bye(t):
    a, b = Agent(t), Agent(t)
    b.own("127.0.0.2", 8)
    inst = a.find("127.0.0.2", 8)[2]
    b.stop()
    a.event("gone", inst, limit=1)


def test_stopped_owner_of_first_port(t):
    first, b, a = Agent(t), Agent(t), Agent(t)
    b.own("127.0.0.2", 8)
    first.own("127.0.0.2", 9)
    first.p.send_signal(signal.SIGSTOP)
    try:
        status, who, _, ms, _ = a.find("127.0.0.2", 8)
        assert (status, who) == (0, "other") and ms < 900 * SLOW, (status, ms)
        # over the network, too: an asker that has no directory to read
        c = Agent(t, bind="127.0.0.1")
        assert c.find("127.0.0.2", 8)[:2] == (0, "other")
        assert a.find("127.0.0.2", 9, 300)[0] in (ENOENT, ETIMEDOUT)
    finally:
        first.p.send_signal(signal.SIGCONT)
    assert a.find("127.0.0.2", 9, 8000)[:2] == (0, "other")


def test_stopped_peer_loses_lease(t):
    a, b = Agent(t, lease=800), Agent(t, lease=800)
    b.own("127.0.0.2", 8)
    inst = a.find("127.0.0.2", 8)[2]
    b.p.send_signal(signal.SIGSTOP)
    try:
        assert a.count()[3] == 1
        start = time.monotonic()
        eventually(lambda: a.count()[3] == 0, 2)
        assert time.monotonic() - start > 0.3
        a.event("gone", inst, limit=3)
    finally:
        b.p.send_signal(signal.SIGCONT)
    b.event("gone", limit=3)
    assert a.find("127.0.0.2", 8)[:3] == (0, "other", inst)


def test_short_stop_harms_nobody(t):
    a, b = Agent(t), Agent(t)
    b.own("127.0.0.2", 8)
    a.find("127.0.0.2", 8)
    b.p.send_signal(signal.SIGSTOP)
    time.sleep(1)
    b.p.send_signal(signal.SIGCONT)
    time.sleep(1.2)
    assert a.count()[2:6] == [1, 1, 1, 0] and b.count()[2:6] == [1, 1, 1, 0]


def test_restart(t):
    a, b = Agent(t), Agent(t)
    b.own("127.0.0.2", 8)
    inst = a.find("127.0.0.2", 8)[2]
    b.ask("stop", "stopped")
    a.event("gone", inst)
    b.start()
    b.own("127.0.0.2", 8)
    again = a.find("127.0.0.2", 8)
    assert again[:2] == (0, "other") and again[2] != inst


def test_crossing(t):
    a, b = Agent(t), Agent(t)
    for i in range(100):
        if i:
            for x in (a, b):
                x.ask("stop", "stopped")
            for x in (a, b):
                x.start()
        a.own("127.0.0.2", 1)
        b.own("127.0.0.3", 2)
        a.locate(f"a{i}", "127.0.0.3", 2)
        b.locate(f"b{i}", "127.0.0.2", 1)
        ra, rb = a.located(f"a{i}"), b.located(f"b{i}")
        assert ra[:2] == rb[:2] == (0, "other"), (ra, rb)
        a.cmd(f"send a{i} 20")
        b.cmd(f"send b{i} 20")
        assert a.event("sent")[1] == "1" and b.event("sent")[1] == "1"
        want = 20 * (i + 1)
        eventually(lambda: a.count()[0] == want and b.count()[0] == want)
    assert a.count()[1] == b.count()[1] == 0
    assert a.count()[2] == b.count()[2] == 1


def test_all_pairs(t):
    n = 8
    agents = [Agent(t) for _ in range(n)]
    for i, a in enumerate(agents):
        a.own(f"127.0.0.{i + 2}", i)
    for i, a in enumerate(agents):
        for j in range(n):
            if i != j:
                a.locate(f"p{j}", f"127.0.0.{j + 2}", j)
    for i, a in enumerate(agents):
        for j in range(n):
            if i != j:
                r = a.located(f"p{j}")
                assert r[:2] == (0, "other"), (i, j, r)
    for a in agents:
        a.cmd("sendall 1000")
    for a in agents:
        eventually(lambda: a.count()[0] == 1000 * (n - 1), 20)
        c = a.count()
        assert c[1] == 0 and c[2] == n - 1 and c[5] == 0, c


@contextlib.contextmanager
def secret_files(*texts):
    with tempfile.TemporaryDirectory() as d:
        names = []
        for i, text in enumerate(texts):
            names.append(os.path.join(d, f"s{i}"))
            with open(os.open(names[-1], os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
                f.write(text)
        yield names


def test_secret(t):
    with secret_files("correct horse battery\n", "wrong horse battery s", "correct horse battery", "short") as s:
        a = Agent(t, secret=s[0])
        b = Agent(t, secret=s[2])
        b.own("127.0.0.2", 8)
        r = a.find("127.0.0.2", 8)
        assert r[:2] == (0, "other")
        a.cmd(f"send {r[4]} 500")
        eventually(lambda: b.count()[0] == 500)
        assert b.count()[1] == 0
        # others do not share our directory's contents: they meet us in the range
        for other in (s[1], "-"):
            c = Agent(t, secret=other)
            assert c.find("127.0.0.2", 8, 600)[0] == EACCES
            assert c.errors().count("\n") == 1, c.errors()
            c.stop()
        assert a.count()[2] == 1
        c = Agent(t, secret=s[3], start=False)
        c.start("-13")
        os.chmod(s[2], 0o644)
        c.args = c.args.rsplit(" ", 1)[0] + " " + s[2]
        c.start("-13")
        c.args = c.args.rsplit(" ", 1)[0] + " /nonexistent"
        c.start("-2")
        assert c.errors().count("peering is off") == 3
        c.args = c.args.rsplit(" ", 1)[0] + " " + s[0]
        c.start()


class Proxy:
    """Stands between two processes at an address of its own and tampers with what the first one sends."""

    def __init__(self, port, target, tamper):
        self.server = server("127.0.0.9", port, self.talk)
        self.target, self.tamper = target, tamper
        self.frames = []

    def talk(self, c):
        up = socket.create_connection(self.target)
        threading.Thread(target=self.pump, args=(c, up, True), daemon=True).start()
        self.pump(up, c, False)

    def pump(self, src, dst, forward):
        with contextlib.suppress(OSError):
            buf = b""
            while data := src.recv(65536):
                buf += data
                while len(buf) >= HEAD.size:
                    _, _, _, kind, length, _, _ = HEAD.unpack(buf[:HEAD.size])
                    n = HEAD.size + length + (0 if kind in (1, 3) else 32)
                    if len(buf) < n:
                        break
                    one, buf = buf[:n], buf[n:]
                    for x in self.tamper(one, forward) if self.tamper else [one]:
                        dst.sendall(x)
        for s in (src, dst):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


def tampered(t, tamper):
    """a finds b through a proxy and sends; returns what b received, how often a's peers went, b's log."""
    with secret_files("correct horse battery") as s:
        b = Agent(t, secret=s[0], bind="127.0.0.2", ports=1)
        a = Agent(t, secret=s[0], bind="127.0.0.1", ports=1)
        b.own("127.0.0.9", 8)
        with Proxy(t.port, ("127.0.0.2", t.port), tamper).server:
            r = a.find("127.0.0.9", 8, 3000)
            assert r[:2] == (0, "other"), r
            a.cmd(f"send {r[4]} 10")
            a.event("sent")
            time.sleep(0.5)
            ca, cb = a.count(), b.count()
        err = b.errors()
        a.stop()
        b.stop()
        return cb[0], cb[1], ca[5], err


def test_proxy_honest(t):
    assert tampered(t, None)[:3] == (10, 0, 0)


def test_replay(t):
    seen = []

    def replay(one, forward):
        user = forward and HEAD.unpack(one[:HEAD.size])[3] == 0x100
        seen.append(user)
        return [one, one] if user and seen.count(True) == 3 else [one]
    got = tampered(t, replay)
    assert got[:3] == (3, 0, 1) and "out of sequence" in got[3], got


def test_replay_renumbered(t):
    seen = []

    def renumber(one, forward):
        head = list(HEAD.unpack(one[:HEAD.size]))
        if not forward or head[3] != 0x100:
            return [one]
        seen.append(1)
        if len(seen) != 3:
            return [one]
        head[6] += 1
        return [one, HEAD.pack(*head) + one[HEAD.size:]]
    got = tampered(t, renumber)
    assert got[:3] == (3, 0, 1) and "authentication failed" in got[3], got


def test_reorder_and_reflect(t):
    held = []

    def swap(one, forward):
        if not forward or HEAD.unpack(one[:HEAD.size])[3] != 0x100:
            return [one]
        held.append(one)
        return [] if len(held) == 1 else [held[1], held[0]] if len(held) == 2 else [one]
    got = tampered(t, swap)
    assert got[:3] == (0, 0, 1), got


def test_forged_payload(t):
    def flip(one, forward):
        if forward and HEAD.unpack(one[:HEAD.size])[3] == 0x100 and len(one) > 120:
            one = one[:40] + bytes([one[40] ^ 1]) + one[41:]
        return [one]
    got = tampered(t, flip)
    assert got[1:3] == (0, 1) and "authentication failed" in got[3], got


def test_fork(t):
    a, b = Agent(t), Agent(t)
    b.own("127.0.0.2", 8)
    a.find("127.0.0.2", 8)
    n = int(a.ask("fork", "forked")[1])
    # epoll, eventfd, listener, directory, connection
    assert 5 <= n < 20, n
    assert a.count()[2:6] == [1, 1, 1, 0] and b.count()[5] == 0
    assert a.find("127.0.0.2", 8)[:2] == (0, "other")


def test_nothing_left(t):
    a, b = Agent(t, start=False), Agent(t)
    a.start()  # what libraries open once
    a.ask("stop", "stopped")
    before = a.ask("stat", "stat")
    for i in range(5):
        a.start()
        if i == 0:
            b.own("127.0.0.2", 8)
        assert a.find("127.0.0.2", 8)[:2] == (0, "other")
        a.cmd(f"locate pending{i} 127.0.0.3 1 60000")
        a.start()  # counted
        a.ask("stop", "stopped")
        assert a.count()[2] == 1
        ms = int(a.ask("stop", "stopped")[1])
        assert ms < 500 * SLOW, ms
        assert a.event("located", f"pending{i}")[2] == "-108"
        assert a.ask("stat", "stat") == before
    a.stopped = True


def test_hung_callback(t):
    a = Agent(t)
    a.cmd("hang")
    ms = int(a.ask("stop", "stopped")[1])
    assert 900 < ms < 1400 * SLOW, ms
    time.sleep(0.8)
    a.start()


def test_negative_cache(t):
    """Many locates to one host that is not there share its walks: few connection attempts."""
    attempts = []
    with server("127.0.0.9", t.port, lambda c: (attempts.append(1), c.close())), server("127.0.0.1", t.port):
        a = Agent(t, bind="127.0.0.1", ports=1)
        for i in range(200):
            a.locate(f"n{i}", "127.0.0.9", i, 1200)
        for i in range(200):
            assert a.located(f"n{i}")[0] == ETIMEDOUT
        assert 1 <= len(attempts) <= 9, attempts  # 10 ms, doubled


def main():
    names = sys.argv[2:]
    port, failed = 20000 + os.getpid() % 997 * 12, []
    tests = {k[5:]: f for k, f in globals().items() if k.startswith("test_")}
    begin = time.monotonic()
    for name, fn in tests.items():
        if names and name not in names:
            continue
        t, start = Test(port), time.monotonic()
        port += 2 * RANGE
        try:
            fn(t)
            t.finish(True)
            print(f"ok   {name} {time.monotonic() - start:.1f} s", flush=True)
        except Exception as e:  # pylint: disable=broad-except
            import traceback
            traceback.print_exc()
            for a in t.agents:
                if a.errors():
                    print("stderr:", a.errors())
            print(f"FAIL {name}: {e}", flush=True)
            failed.append(name)
        finally:
            t.finish(False)
            with contextlib.suppress(OSError):
                os.unlink(shm_path(t))
    print(f"{len(tests) if not names else len(names)} tests, {len(failed)} failed, {time.monotonic() - begin:.0f} s")
    return 1 if failed or (names and not set(names) <= set(tests)) else 0


PROGRAM = sys.argv[1]
sys.exit(main())
