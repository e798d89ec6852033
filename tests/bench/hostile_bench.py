#!/usr/bin/env python3
"""What one hostile client at full speed costs a running job: how long 64 agents wait for the answers to their heartbeats.

usage: tests/bench/hostile_bench.py [--agents 64] [--seconds 6] [--lock none,token] [--kinds KIND,...]

Each kind of client is a process of its own, which does what it does in a loop, as fast as it can. "busy" never speaks to the daemon: what it costs is
what a process that wants a core costs on this machine. Before each kind the same agents are measured alone.
"""

import argparse
import ctypes
import ctypes.util
import multiprocessing
import os
import re
import select
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MOST_SOCKETS = 4000  # that one client holds open


def dial(address):
    return socket.create_connection(address, timeout=5)


def hold(connections, connection):
    """Keeps it open; the oldest goes when there are too many."""
    connections.append(connection)
    if len(connections) > MOST_SOCKETS:
        connections.pop(0).close()


def busy(_address):
    while True:
        pass


def half_open(address):
    connections = []
    while True:
        hold(connections, dial(address))


def garbage(address):
    while True:
        with dial(address) as connection:
            connection.sendall(os.urandom(4096))


def giant_heads(address):
    line = b"X-Long: " + b"x" * 60000 + b"\r\n"
    while True:
        with dial(address) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n" + line * 20)


def slow_heads(address):
    """Slowloris: many heads, a byte at a time."""
    connections = []
    while True:
        hold(connections, dial(address))
        connections[-1].sendall(b"GET /status HTTP/1.1\r\nA: ")
        for connection in connections[-200:]:
            try:
                connection.sendall(b"x")
            except OSError:
                pass


def pages(address):
    """Requests that a stranger may make, or that are refused for want of a password."""
    while True:
        with dial(address) as connection:
            for path in (b"/", b"/metrics", b"/status", b"/none") * 20:
                connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
                if not connection.recv(1 << 20):
                    break


def frames(address):
    """gRPC's first bytes, and then frames of HTTP/2 that make no sense, or a flood of PINGs and of streams that are reset at once."""
    ping = struct.pack(">I", 8)[1:] + b"\x06\x00" + b"\0" * 12
    opened = b"".join(struct.pack(">I", 1)[1:] + b"\x01\x05" + struct.pack(">I", stream) + b"\x82" +
                      struct.pack(">I", 4)[1:] + b"\x03\x00" + struct.pack(">II", stream, 8) for stream in range(1, 2001, 2))
    while True:
        with dial(address) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04" + b"\0" * 5 + ping * 500 + opened + os.urandom(2000))


def handshakes(address):
    """Whole handshakes of TLS by a guest: each costs the daemon a signature."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while True:
        with dial(address) as connection:
            context.wrap_socket(connection)


def client_hellos(address):
    """Handshakes of TLS that the client begins and leaves alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = outgoing.read()
    connections = []
    while True:
        hold(connections, dial(address))
        connections[-1].sendall(hello)


def key_updates(address):
    """A guest within TLS that renews its keys as fast as it can: a few bytes each, and the daemon derives new keys."""
    library = ctypes.CDLL(ctypes.util.find_library("ssl"))
    for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
        getattr(library, name).restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
    while True:
        with dial(address) as connection:
            connection.setblocking(True)
            tls = ctypes.c_void_p(library.SSL_new(context))
            library.SSL_set_fd(tls, connection.fileno())
            if library.SSL_connect(tls) == 1:
                while library.SSL_key_update(tls, 0) == 1 and library.SSL_do_handshake(tls) == 1:
                    pass
            library.SSL_free(tls)


def store_flood(address):
    """PyTorch's TCPStore: values of 60 KB under new keys (SET), and reads of keys that nobody sets (GET)."""
    number = 0
    while True:
        with dial(address) as connection:
            connection.sendall(b"\x00" + struct.pack("<I", 0x3C85F7CE))  # VALIDATE and its magic number
            for _ in range(200):
                number += 1
                key = f"hostile/{number}".encode()
                connection.sendall(b"\x01" + struct.pack("<Q", len(key)) + key + struct.pack("<Q", 60000) + b"v" * 60000 +
                                   b"\x03" + struct.pack("<Q", len(key) + 1) + key + b"-")


KINDS = [busy, half_open, garbage, giant_heads, slow_heads, pages, frames, client_hellos, handshakes, key_updates, store_flood]


def attack(kind, address):
    """Until it is killed: a client that was turned away comes back at once."""
    while True:
        try:
            kind(address)
        except OSError:
            pass


def read_lines(bench, seconds):
    """The lines that the bench prints in this time, as dictionaries."""
    found = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not select.select([bench.stdout], [], [], 0.1)[0]:
            continue
        words = bench.stdout.readline().split()
        if not words:
            raise SystemExit("the bench ended: agents were lost (its words stand above)")
        found.append({name: float(value) for name, value in zip(words[::2], words[1::2])})
    return found


def row(what, lines):
    cells = [f"{statistics.median(line['median_ms'] for line in lines):.2f}", f"{statistics.median(line['p99_ms'] for line in lines):.1f}",
             f"{max(line['most_ms'] for line in lines):.0f}", f"{statistics.mean(line['daemon_cpu'] for line in lines):.2f}",
             f"{min(line['answers'] for line in lines):.0f}", f"{lines[-1]['lost']:.0f}"]
    print(f"| {what} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=6, help="of each measurement")
    parser.add_argument("--lock", default="none,token")
    parser.add_argument("--kinds", default=",".join(kind.__name__ for kind in KINDS))
    arguments = parser.parse_args()
    kinds = [kind for kind in KINDS if kind.__name__ in arguments.kinds.split(",")]
    subprocess.run(["bazel", "build", "//rendezvous/bench:join_bench"], cwd=ROOT, check=True)
    bin_folder = subprocess.run(["bazel", "info", "bazel-bin"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    print("| client, lock | answer, median ms | p99 ms | longest ms | daemon, cores | answers in the worst second, of 200 | agents lost |\n"
          "|---|---|---|---|---|---|---|", flush=True)
    for lock in arguments.lock.split(","):
        for kind in kinds:
            with subprocess.Popen([f"{bin_folder}/rendezvous/bench/join_bench", "--serve-for", str(3 * arguments.seconds + 3), "--lock", lock,
                                   str(arguments.agents)], stdout=subprocess.PIPE, text=True, bufsize=1) as bench:
                address = re.match(r"daemon \d+ (.*):(\d+)$", bench.stdout.readline().strip())
                row(f"nobody, {lock}", read_lines(bench, arguments.seconds))
                client = multiprocessing.Process(target=attack, args=(kind, (address.group(1), int(address.group(2)))), daemon=True)
                client.start()
                row(f"{kind.__name__}, {lock}", read_lines(bench, arguments.seconds))
                client.kill()
                client.join()
                bench.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
