"""Hosts on one machine: network namespaces, joined by a switch of our own through which every packet goes.

Each host has one interface, a tun device, whose other end the switch holds: a thread that reads packets and hands them to the host that
has the address. So a cable can be pulled without either end noticing, packets be lost in one direction only, be late, be too long; none
of which needs a module of the kernel (netem) or a firewall. The losses come from one seeded generator.

    network = Network()
    a, b = network.host("a"), network.host("b")   # raises NoNamespaces where that is not permitted
    subprocess.Popen([*a.prefix, "convene", "run", ...])    # runs there
    network.cut(a)               # silently: no FIN, no RST, no carrier lost
    network.mend(a)
    network.close()
"""

import errno
import fcntl
import heapq
import itertools
import os
import random
import re
import selectors
import socket
import struct
import subprocess
import threading
import time

_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_PREFIX = "cv"
_ANY = "any"


class NoNamespaces(Exception):
    """This machine gives us no network namespaces; the text says why."""


def _ip(*arguments):
    try:
        done = subprocess.run(["ip", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NoNamespaces("no `ip` here: Debian's package iproute2 has it") from error
    if done.returncode != 0:
        raise NoNamespaces(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")


class Host:
    """A namespace with one address of each family."""

    def __init__(self, name):
        self.name = name
        self.namespace = f"{_PREFIX}{os.getpid()}-{name}"
        self.device = f"{_PREFIX}{os.getpid()}{name}"[:15]
        self.address = self.address6 = None
        self.tun = None
        # Before a command; becomes the program, so that signals reach that.
        self.prefix = ["ip", "netns", "exec", self.namespace]

    def ip(self, *arguments):
        _ip("-n", self.namespace, *arguments)

    def interface_down(self):
        """Takes the link down. The host sees it: every send fails at once."""
        self.ip("link", "set", self.device, "down")

    def interface_up(self):
        self.ip("link", "set", self.device, "up")

    def open(self, number):
        try:
            self.tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(self.tun, _TUNSETIFF, struct.pack("16sH22x", self.device.encode(), _IFF_TUN_NO_PI))
            _ip("netns", "add", self.namespace)
            _ip("link", "set", self.device, "netns", self.namespace)
            self.ip("link", "set", "lo", "up")
            self.ip("link", "set", self.device, "up")
            self.take_addresses(number)
        except OSError as error:
            self.close()
            raise NoNamespaces(f"no tun devices here: {error}") from error
        except NoNamespaces:
            self.close()
            raise

    def take_addresses(self, number):
        self.address, self.address6 = f"10.77.0.{number}", f"fd77::{number:x}"
        self.ip("addr", "add", self.address + "/24", "dev", self.device)
        self.ip("-6", "addr", "add", self.address6 + "/64", "dev", self.device, "nodad")

    def drop_addresses(self):
        self.ip("addr", "flush", "dev", self.device, "scope", "global")

    def close(self):
        if self.tun is not None:
            os.close(self.tun)
            self.tun = None
        subprocess.run(["ip", "netns", "del", self.namespace], stderr=subprocess.DEVNULL, check=False)


def _sweep():
    """Removes the remains of tests that were killed."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        match = re.match(_PREFIX + r"(\d+)-\S+", line)
        if match and not os.path.exists("/proc/" + match.group(1)):
            subprocess.run(["ip", "netns", "del", match.group(0)], stderr=subprocess.DEVNULL, check=False)


class Network:
    def __init__(self, seed=1):
        self._random = random.Random(seed)
        self._hosts = {}
        self._owners = {}  # address, as bytes -> name of the host that has it
        self._addresses = itertools.count(1)
        self._lock = threading.Lock()
        self._cut = set()  # (from, to), each a host's name or _ANY
        self._loss = 0.0
        self._delay_s = 0.0
        self._longest = 65535
        self._late = []  # (when, number, name of the host, packet)
        self._numbers = 0
        self._ending = False
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="switch", daemon=True)
        _sweep()
        self._thread.start()

    def host(self, name):
        host = self._hosts[name] = Host(name)
        host.open(next(self._addresses))
        self._own(host)
        self._selector.register(host.tun, selectors.EVENT_READ, host)
        os.write(self._woken, b"x")
        return host

    def _own(self, host):
        with self._lock:
            self._owners = {address: name for address, name in self._owners.items() if name != host.name}
            self._owners[socket.inet_aton(host.address)] = host.name
            self._owners[socket.inet_pton(socket.AF_INET6, host.address6)] = host.name

    def add_address(self, host):
        """One more address of the host's; returns it."""
        address = f"10.77.0.{next(self._addresses)}"
        host.ip("addr", "add", address + "/24", "dev", host.device)
        with self._lock:
            self._owners = {**self._owners, socket.inet_aton(address): host.name}
        return address

    def close(self):
        self._ending = True
        os.write(self._woken, b"x")
        self._thread.join()
        for host in self._hosts.values():
            host.close()
        self._selector.close()
        os.close(self._wake)
        os.close(self._woken)

    def cut(self, host):
        """Cuts the host off: no packet gets in or out any more, and no end is told."""
        with self._lock:
            self._cut |= {(host.name, _ANY), (_ANY, host.name)}

    def cut_one_way(self, source, target):
        """Packets from `source` to `target` are lost; packets from `target` arrive."""
        with self._lock:
            self._cut.add((source.name, target.name))

    def mend(self, host):
        with self._lock:
            self._cut = {pair for pair in self._cut if host.name not in pair}

    def disturb(self, loss=0.0, delay_s=0.0, longest=65535):
        """From now on: the share of packets lost, the time each needs, the longest that gets through (a black hole for the others)."""
        with self._lock:
            self._loss, self._delay_s, self._longest = loss, delay_s, longest

    def change_address(self, host):
        """The host keeps its cable and gets another address; the old one is nobody's."""
        host.drop_addresses()
        host.take_addresses(next(self._addresses))
        self._own(host)

    def _run(self):
        while not self._ending:
            timeout = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            for key, _ in self._selector.select(timeout):
                if key.data is None:
                    os.read(self._wake, 4096)
                else:
                    self._take_all(key.data)
            while self._late and self._late[0][0] <= time.monotonic():
                self._hand_over(*heapq.heappop(self._late)[2:])

    def _take_all(self, source):
        while True:
            try:
                packet = os.read(source.tun, 65536)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EINTR):
                    self._selector.unregister(source.tun)
                return
            address = packet[16:20] if packet[0] >> 4 == 4 else packet[24:40]
            target = self._owners.get(address)
            if target is None or self._is_lost(source.name, target, packet):
                continue
            if self._delay_s > 0:
                self._numbers += 1
                heapq.heappush(self._late, (time.monotonic() + self._delay_s, self._numbers, target, packet))
            else:
                self._hand_over(target, packet)

    def _is_lost(self, source, target, packet):
        with self._lock:
            pairs = {(source, target), (source, _ANY), (_ANY, target)}
            return not self._cut.isdisjoint(pairs) or len(packet) > self._longest or self._random.random() < self._loss

    def _hand_over(self, target, packet):
        host = self._hosts.get(target)
        if host is None:
            return
        try:
            os.write(host.tun, packet)
        except OSError:
            pass  # its interface is down, or its queue is full: lost, as on a cable
