"""Several rendezvous daemons over one etcd, and agents whose workers must notice nothing."""

import base64
import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.request

from tests.support.convene_testing import CONVENE, CONVENED, ConveneTestCase, free_port, wait_until, whole_lines

ETCD = "/usr/bin/etcd"
WORKER = 'echo "$CONVENE_EPOCH $RANK $$" >> "$STARTS"; until [ -e "$DONE" ]; do sleep 0.05; done;'


def note(text):
    """A figure, for the person who reads the test's log."""
    print(f"MEASURED {text}", file=sys.stderr)


class LosingWay:
    """A way to a port that can lose all answers: requests arrive there, and what comes back is dropped until the connections are cut."""

    def __init__(self, target):
        self.loses = False
        self.lost_bytes = 0
        self._target = target
        self._open = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._server.close()
        self.cut()

    def cut(self):
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        while True:
            try:
                near = self._server.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self._open |= {near, far}
            for source, sink, is_answer in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._carry, args=(source, sink, is_answer), daemon=True).start()

    def _carry(self, source, sink, is_answer):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_answer and self.loses:
                    self.lost_bytes += len(data)
                else:
                    sink.sendall(data)
        self._open.discard(source)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


class EtcdTestCase(ConveneTestCase):

    def setUp(self):
        super().setUp()
        if not os.path.exists(ETCD):
            self.skipTest("there is no etcd: tools/install_packages check")
        self.members = []
        self.daemons = {}
        self.etcd_ports_of_daemons = None  # where these are not etcd's own

    # etcd

    def start_etcd(self, members=3, *flags):
        self.etcd_ports = [free_port() for _ in range(members)]
        peers = [free_port() for _ in range(members)]
        self.etcd_commands = []
        for i in range(members):
            self.etcd_commands.append([
                ETCD, "--name", f"m{i}", "--data-dir", self.path(f"etcd{i}"),
                "--listen-client-urls", f"http://127.0.0.1:{self.etcd_ports[i]}",
                "--advertise-client-urls", f"http://127.0.0.1:{self.etcd_ports[i]}",
                "--listen-peer-urls", f"http://127.0.0.1:{peers[i]}",
                "--initial-advertise-peer-urls", f"http://127.0.0.1:{peers[i]}",
                "--initial-cluster", ",".join(f"m{j}=http://127.0.0.1:{port}" for j, port in enumerate(peers)),
                "--logger", "zap", *flags])
        self.members = [self.start_member(i) for i in range(members)]
        wait_until(self.etcd_leader, 30, "etcd's first leader")

    def start_member(self, i):
        return self.start(*self.etcd_commands[i], log=f"etcd{i}.log")

    def ask_etcd(self, i, path, request, timeout_s=2):
        """etcd's API as JSON over HTTP; None when this member does not answer."""
        try:
            with urllib.request.urlopen(urllib.request.Request(
                    f"http://127.0.0.1:{self.etcd_ports[i]}/v3/{path}", json.dumps(request).encode()), timeout=timeout_s) as answer:
                return json.load(answer)
        except OSError:
            return None

    def etcd_leader(self):
        """The number of the member that leads, plus 1; 0: none."""
        for i, member in enumerate(self.members):
            status = self.ask_etcd(i, "maintenance/status", {}) if member.poll() is None else None
            if status and status.get("leader") and status["leader"] == status["header"]["member_id"]:
                return i + 1
        return 0

    def fill_etcd(self):
        """Until it takes no more: start_etcd has to have a small --quota-backend-bytes. Old revisions of one key take the room."""
        filler = base64.b64encode(b"x" * (1 << 20)).decode()
        key = base64.b64encode(b"filler").decode()
        for _ in range(40):
            if self.ask_etcd(0, "kv/put", {"key": key, "value": filler}, 20) is None and self.etcd_alarms():
                return

    def etcd_alarms(self):
        return (self.ask_etcd(0, "maintenance/alarm", {"action": "GET"}, 20) or {}).get("alarms", [])

    def make_room_in_etcd(self):
        status = self.ask_etcd(0, "maintenance/status", {}, 20)
        self.ask_etcd(0, "kv/compaction", {"revision": status["header"]["revision"], "physical": True}, 20)
        for i in range(len(self.members)):
            self.ask_etcd(i, "maintenance/defragment", {}, 20)
        for alarm in self.etcd_alarms():
            self.ask_etcd(0, "maintenance/alarm", {**alarm, "action": "DEACTIVATE"}, 20)

    def journal(self, prefix="convene"):
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port in self.etcd_ports_of_daemons or self.etcd_ports) + "/" + prefix

    # Daemons

    def start_daemons(self, count=3, lease_s=2):
        self.ports = [free_port() for _ in range(count)]
        for port in self.ports:
            self.start_daemon(port, lease_s)
        self.leader()

    def start_daemon(self, port, lease_s=2, **environment):
        self.daemons[port] = self.start(
            CONVENED, "--host", "127.0.0.1", "--port", port, "--journal", self.journal(), "--leader-lease", lease_s,
            log=f"daemon{port}.log", **environment)

    def terms(self):
        """Of each term that began: its number and its daemon's port."""
        found = []
        for port, daemon in self.daemons.items():
            found += [(int(term), port) for term in re.findall(r"this daemon leads, in term (\d+)", self.output(daemon))]
        return sorted(found)

    def leader(self, after=0):
        """The port of the daemon that leads in a term above `after`, and serves."""
        def last():
            terms = self.terms()
            if not terms or terms[-1][0] <= after:
                return None
            output = self.output(self.daemons[terms[-1][1]])
            return terms[-1] if output.rfind("serving the rendezvous") > output.rfind("this daemon leads") else None
        term, port = wait_until(last, 30, lambda: f"a term after {after}: {self.terms()}")
        self.term = term
        return port

    def next_leader(self, what, began):
        port = self.leader(self.term)
        note(f"{what}: the next daemon serves after {time.monotonic() - began:.2f} s")
        daemon = self.daemons[port]
        wait_until(lambda: self.output(daemon).count(" is back in epoch ") >= 2, 20,
                   lambda: f"both nodes at the next daemon: {self.output(daemon)}")
        note(f"{what}: both nodes are back after {time.monotonic() - began:.2f} s")
        self.assert_no_worker_noticed()
        return port

    # Agents

    def start_agents(self, *flags):
        self.agents = [self.start(
            CONVENE, "run", "--nnodes", 2, "--nproc-per-node", 2, "--rdzv-endpoint",
            ",".join(f"127.0.0.1:{port}" for port in self.ports), "--rdzv-id", "job", "--node-rank", rank, *flags,
            "--no-python", "sh", "-c", WORKER, log=f"agent{rank}.log", STARTS=self.path("starts"),
            DONE=self.path("done")) for rank in (0, 1)]
        wait_until(lambda: len(self.worker_starts()) == 4, 30, lambda: f"four workers: {[self.output(a) for a in self.agents]}")
        self.first_starts = self.worker_starts()

    def worker_starts(self):
        """[epoch, rank, pid] of each start of a worker."""
        return [tuple(map(int, line.split())) for line in whole_lines(self.path("starts"))]

    def assert_no_worker_noticed(self):
        self.assertEqual(self.worker_starts(), self.first_starts)
        for _, _, pid in self.first_starts:
            os.kill(pid, 0)

    def end_all(self):
        with open(self.path("done"), "w", encoding="utf-8"):
            pass
        for agent in self.agents:
            self.finish(agent, 60)
        for process in [*self.daemons.values(), *self.members]:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in [*self.daemons.values(), *self.members]:
            process.wait(20)
        self.assert_nothing_left()
