"""Agents with a list of endpoints find the daemon that leads, wherever it is, and no worker notices."""

import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time

from tests.support import side_by_side
from tests.support.convene_testing import CONVENE, CONVENED, ConveneTestCase, free_port, wait_until

_WORKER = 'echo "$CONVENE_EPOCH $RANK $$" >> "$STARTS"; echo "rank $RANK works"; until [ -e "$DONE" ]; do sleep 0.05; done'

# Becomes a program that sees another /etc/hosts.
_WITH_HOSTS = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"']


_NAME_SERVER = "127.0.0.77"


class NameServer:
    """A DNS server of SRV records: {name: [(priority, weight, port, host)]}; no other name exists."""

    def __init__(self, records):
        self._records = records
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((_NAME_SERVER, 53))
        self._thread = threading.Thread(target=self._run, name="dns", daemon=True)
        self._thread.start()

    def close(self):
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _run(self):
        while True:
            query, client = self._socket.recvfrom(512)
            if not query:
                return
            end = query.index(b"\0", 12)
            labels, at = [], 12
            while at < end:
                labels.append(query[at + 1:at + 1 + query[at]].decode())
                at += 1 + query[at]
            found = self._records.get(".".join(labels), [])
            answer = query[:2] + struct.pack(">HHHHH", 0x8180 if found else 0x8183, 1, len(found), 0, 0) + query[12:end + 5]
            for priority, weight, port, host in found:
                data = struct.pack(">HHHB", priority, weight, port, len(host)) + host.encode() + b"\0"
                answer += struct.pack(">HHHIH", 0xC00C, 33, 1, 60, len(data)) + data
            self._socket.sendto(answer, client)


class StandbysTest(ConveneTestCase):

    def serve(self, port, *words):
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", port, *words)
        wait_until(lambda: re.search(r"serving.*127\.0\.0\.1:\d+", self.output(daemon)), 20, "the daemon")
        return daemon

    def run_node(self, endpoint, *words, rank=0, worker=_WORKER, prefix=()):
        return self.start(CONVENE, "run", "--rdzv-endpoint", endpoint, "--rdzv-id", "job", "--node-rank", rank, *words, "--no-python", "sh", "-c",
                          worker, prefix=prefix, STARTS=self.path("starts"), DONE=self.path("done"))

    def starts(self):
        if not os.path.exists(self.path("starts")):
            return []
        with open(self.path("starts"), encoding="ascii") as lines:
            return lines.read().splitlines()

    def query(self, command, endpoint, *words):
        return self.finish(self.start(CONVENE, command, "job", "--endpoint", endpoint, *words), 20)

    def test_daemons_at_two_endpoints_take_turns_over_one_memory(self):
        ports = [free_port(), free_port()]
        endpoint = ",".join(f"127.0.0.1:{port}" for port in ports)
        memory = ["--state-dir", self.path("state")]
        daemon = self.serve(ports[0], *memory)
        nodes = [self.run_node(endpoint, "--nnodes", 2, rank=rank) for rank in (0, 1)]
        wait_until(lambda: len(self.starts()) == 2, 30, "two workers")
        before = self.starts()
        follower = self.start(CONVENE, "events", "job", "-f", "--text", "--endpoint", endpoint, log="events.log")
        wait_until(lambda: "epoch formed" in self.output(follower), 20, "the first daemon's events")
        for turn in (1, 0, 1):
            daemon.kill()
            daemon.wait()
            daemon = self.serve(ports[turn], *memory)
            wait_until(lambda served=daemon: self.output(served).count(" is back in epoch ") == 2, 20, "both nodes at the next endpoint")
        self.assertIn("running", self.query("status", endpoint))
        self.assertIn("rank 1 works", self.query("logs", endpoint))
        self.assertIn("epoch 1", self.query("events", endpoint, "--text"))
        with open(self.path("done"), "w", encoding="ascii"):
            pass
        for node in nodes:
            self.assertNotIn("hosting the rendezvous", self.finish(node, 30))
        self.assertEqual(self.starts(), before)
        # It saw the first daemon's events, and the last one's.
        self.assertIn("job over", self.finish(follower, 20))
        self.assertIn("is back in epoch 1", self.output(follower))
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(20)
        self.assert_nothing_left()

    def test_daemons_wait_for_the_lock_of_a_shared_folder(self):
        ports = [free_port(), free_port()]
        memory = ["--state-dir", self.path("state"), "--standby"]
        leads = self.serve(ports[0], *memory)
        waits = self.start(CONVENED, "--host", "127.0.0.1", "--port", ports[1], *memory)
        told = f"stands by: the state directory {self.path('state')} is in use by process {leads.pid} on"
        wait_until(lambda: told in self.output(waits), 20, lambda: self.output(waits))
        # A job that knows the port of a daemon that waits does not take this port.
        early = self.run_node(f"127.0.0.1:{ports[1]}", "--rdzv-id", "early", worker="true")
        wait_until(lambda: "belongs to the convened with --state-dir" in self.output(early), 20, lambda: self.output(early))
        endpoint = ",".join(f"127.0.0.1:{port}" for port in ports)
        nodes = [self.run_node(endpoint, "--nnodes", 2, rank=rank) for rank in (0, 1)]
        wait_until(lambda: len(self.starts()) == 2, 30, "two workers")
        before = self.starts()
        leads.kill()
        leads.wait()
        wait_until(lambda: self.output(waits).count(" is back in epoch ") == 2, 20, lambda: self.output(waits))
        self.assertIn("this daemon leads, in term 2", self.output(waits))
        self.assertNotIn("hosting the rendezvous", self.finish(early, 30))

        # As an NFS server that gives the lock of a machine that it does not hear to the next one.
        os.remove(self.path("state/lock"))
        third = self.start(CONVENED, "--host", "127.0.0.1", "--port", ports[0], *memory)
        wait_until(lambda: "this daemon leads, in term 3" in self.output(third), 20, lambda: self.output(third))
        # Nothing happens in the job that the daemon without the lock would write down.
        wait_until(lambda: "this daemon leads no more" in self.output(waits), 20, lambda: self.output(waits))
        wait_until(lambda: self.output(third).count(" is back in epoch ") == 2, 20, lambda: self.output(third))
        with open(self.path("done"), "w", encoding="ascii"):
            pass
        for node in nodes:
            self.finish(node, 60)
        self.assertEqual(self.starts(), before)
        for daemon in (waits, third):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(20)
        self.assert_nothing_left()

    def test_a_daemon_that_stands_by_outlives_an_outage_of_the_shared_folder(self):
        os.mkdir(self.path("real"))
        self.point_state_at("real")
        memory = ["--state-dir", self.path("state"), "--standby"]
        leads = self.serve(free_port(), *memory)
        waits = self.start(CONVENED, "--host", "127.0.0.1", "--port", free_port(), *memory)
        wait_until(lambda: "this daemon stands by" in self.output(waits), 20, lambda: self.output(waits))
        self.point_state_at("state")  # A path that cannot be followed stands for a server that does not answer.
        wait_until(lambda: "Too many levels of symbolic links" in self.output(waits), 20, lambda: self.output(waits))
        self.assertIn("looks again", self.output(waits))
        self.point_state_at("real")
        third = self.start(CONVENED, "--host", "127.0.0.1", "--port", free_port(), *memory)
        wait_until(lambda: "this daemon stands by" in self.output(third), 20, lambda: self.output(third))
        os.mkdir(self.path("empty"))
        self.point_state_at("empty")  # As the place of a file system that is not mounted.
        wait_until(lambda: "is not the one that this daemon began with" in self.output(third), 20, lambda: self.output(third))
        self.point_state_at("real")
        self.assertEqual(os.listdir(self.path("empty")), [])
        leads.kill()
        leads.wait()
        wait_until(lambda: "this daemon leads, in term 2" in self.output(waits) + self.output(third), 20,
                   lambda: self.output(waits) + self.output(third))
        for daemon in (waits, third):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(20)

    def test_a_daemon_that_begins_while_the_shared_folder_is_full_waits_for_room(self):
        os.mkdir(self.path("small"))
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", self.path("small")], check=False).returncode != 0:
            self.skipTest("no permission to mount a small file system")
        self.addCleanup(subprocess.run, ["umount", "-l", self.path("small")], check=True)
        os.mkdir(self.path("small/state"))
        with open(self.path("small/state/lock"), "xb"), open(self.path("small/filler"), "wb", buffering=0) as filler:
            with self.assertRaisesRegex(OSError, "No space"):
                while True:
                    filler.write(bytes(4096))
        waits = self.start(CONVENED, "--host", "127.0.0.1", "--port", free_port(), "--state-dir", self.path("small/state"), "--standby")
        wait_until(lambda: "No space left on device: this daemon stands by" in self.output(waits), 20, lambda: self.output(waits))
        os.remove(self.path("small/filler"))
        wait_until(lambda: "this daemon leads" in self.output(waits), 20, lambda: self.output(waits))
        waits.send_signal(signal.SIGTERM)
        waits.wait(20)

    def point_state_at(self, name):
        os.symlink(name, self.path("next"))
        os.replace(self.path("next"), self.path("state"))

    def test_an_endpoint_that_takes_connections_and_says_nothing_is_passed_over(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:  # As a daemon that was stopped: the kernel takes the connections.
            endpoint = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{free_port()}"
            daemon = self.serve(endpoint.rsplit(":", 1)[1])
            text = self.finish(self.run_node(endpoint, worker="true"), 30)
            self.assertIn("a node that reaches another endpoint begins a run of its own", text)
            self.assertIn("succeeded", self.query("status", endpoint))
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(20)
        self.assert_nothing_left()

    def test_each_address_of_a_name_is_tried(self):
        hosts = self.path("hosts")
        with open(hosts, "w", encoding="ascii") as names:
            names.write("127.0.0.1 twice\n127.0.0.2 twice\n")
        if subprocess.run([*_WITH_HOSTS, hosts, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("this machine gives us no mount namespace")
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            daemon = self.start(CONVENED, "--host", "127.0.0.2", "--port", port)
            wait_until(lambda: "serving the rendezvous" in self.output(daemon), 20, "the daemon")
            for number, endpoint in enumerate((f"twice:{port}", f"twice:{port},127.0.0.1:{free_port()}")):
                node = self.run_node(endpoint, "--rdzv-id", f"run{number}", "--rdzv-conf", "is_host=0", worker="true", prefix=[*_WITH_HOSTS, hosts])
                self.finish(node, 30)
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(20)
        self.assert_nothing_left()

    def test_a_name_of_dns_stands_for_the_list(self):
        with open(self.path("resolv.conf"), "w", encoding="ascii") as conf:
            conf.write(f"nameserver {_NAME_SERVER}\n")
        sees_dns = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"',
                    self.path("resolv.conf")]
        if subprocess.run([*sees_dns, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("this machine gives us no mount namespace")
        dead, port = free_port(), free_port()
        try:
            server = NameServer({"_convene._tcp.x": [(9, 0, port, "localhost"), (1, 0, dead, "localhost")]})
        except OSError as error:
            self.skipTest(f"no name server at {_NAME_SERVER}:53: {error}")
        self.addCleanup(server.close)
        daemon = self.serve(port)
        name = "srv:_convene._tcp.x"
        text = self.finish(self.run_node(name, worker="true", prefix=sees_dns), 30)
        self.assertIn("succeeded", text)
        status = self.start(CONVENE, "status", "job", "--endpoint", name, prefix=sees_dns)
        self.assertIn("succeeded", self.finish(status, 20))
        for unknown in ("srv:_other._tcp.x", "srv:_convene._tcp.x y"):
            began = time.monotonic()
            text = self.finish(self.run_node(unknown, worker="true", prefix=sees_dns), 30, 64)
            self.assertIn(unknown, text)
            self.assertLess(time.monotonic() - began, 5)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(20)
        self.assert_nothing_left()

    def test_where_none_answers_each_endpoint_is_named_and_no_node_serves(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            refusing, taking = f"127.0.0.1:{free_port()}", f"127.0.0.1:{silent.getsockname()[1]}"
            endpoint = f"{refusing},{taking},no-such-host.invalid"
            text = self.finish(self.run_node(endpoint, "--rdzv-conf", "read_timeout=5", worker="true"), 30, 69)
            self.assertIn("none of 3 endpoints answers as the rendezvous", text)
            self.assertIn(f"{refusing} (connect: Connection refused)", text)
            self.assertIn(f"{taking} (it took the connection but did not answer", text)
            self.assertIn('no-such-host.invalid:29400 (cannot resolve host "no-such-host.invalid"', text)
            self.assertNotIn("hosting the rendezvous", text)
            status = self.finish(self.start(CONVENE, "status", "--endpoint", endpoint), 20, 69)
            self.assertIn("none of 3 endpoints answers as the rendezvous", status)
        self.assert_nothing_left()


if __name__ == "__main__":
    side_by_side.main(at_once=3)
