"""Three rendezvous daemons over one etcd of three members: machines of both kinds die, and no worker notices."""

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.request

from tests.support.convene_testing import CONVENE, CONVENED, ConveneTestCase, find_program, free_port, wait_until

ETCD = "/usr/bin/etcd"
_WORKER = 'echo "$CONVENE_EPOCH $RANK $$" >> "$STARTS"; until [ -e "$DONE" ]; do sleep 0.05; done;'


def note(text):
    """A figure, for the person who reads the test's log."""
    print(f"MEASURED {text}", file=sys.stderr)


class EtcdTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        if not os.path.exists(ETCD):
            self.skipTest("there is no etcd: tools/install_packages check")
        self.members = []
        self.daemons = {}

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

    def journal(self, prefix="convene"):
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port in self.etcd_ports) + "/" + prefix

    # Daemons

    def start_daemons(self, count=3, lease_s=2):
        self.ports = [free_port() for _ in range(count)]
        for port in self.ports:
            self.start_daemon(port, lease_s)
        self.leader()

    def start_daemon(self, port, lease_s=2):
        self.daemons[port] = self.start(
            CONVENED, "--host", "127.0.0.1", "--port", port, "--journal", self.journal(), "--leader-lease", lease_s,
            log=f"daemon{port}.log")

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
            "--no-python", "sh", "-c", _WORKER, log=f"agent{rank}.log", STARTS=self.path("starts"),
            DONE=self.path("done")) for rank in (0, 1)]
        wait_until(lambda: len(self.worker_starts()) == 4, 30, lambda: f"four workers: {[self.output(a) for a in self.agents]}")
        self.first_starts = self.worker_starts()

    def worker_starts(self):
        if not os.path.exists(self.path("starts")):
            return []
        with open(self.path("starts"), encoding="utf-8") as lines:
            return [tuple(map(int, line.split())) for line in lines]

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

    def test_leaders_end_in_three_ways_and_no_worker_notices(self):
        self.start_etcd()
        self.start_daemons()
        self.start_agents()

        port = self.leader()
        began = time.monotonic()
        self.daemons[port].send_signal(signal.SIGKILL)
        self.daemons[port].wait()
        self.next_leader("SIGKILL", began)
        self.start_daemon(port)

        port = self.leader()
        began = time.monotonic()
        self.daemons[port].send_signal(signal.SIGTERM)
        self.next_leader("SIGTERM", began)
        self.assertEqual(self.daemons[port].wait(10), 128 + signal.SIGTERM)
        self.start_daemon(port)

        # The old leader wakes in the midst of the next one's term.
        port = self.leader()
        began = time.monotonic()
        self.daemons[port].send_signal(signal.SIGSTOP)
        self.next_leader("SIGSTOP", began)
        self.daemons[port].send_signal(signal.SIGCONT)
        old = self.daemons[port]
        wait_until(lambda: "this daemon leads no more" in self.output(old), 10, "the old leader gives up")
        wait_until(lambda: re.search(r"leads no more(.|\n)*this daemon stands by", self.output(old)), 10, "it stands by")
        time.sleep(1)
        self.assert_no_worker_noticed()
        self.assertEqual(self.terms()[-1][0], self.term)
        self.end_all()

    def test_etcd_loses_its_leader_and_then_its_quorum(self):
        self.start_etcd()
        self.start_daemons(count=2, lease_s=4)
        self.start_agents()
        first = self.term
        gone = self.etcd_leader() - 1
        self.members[gone].send_signal(signal.SIGKILL)
        self.members[gone].wait()
        wait_until(self.etcd_leader, 20, "etcd's next leader")
        time.sleep(2)
        self.assert_no_worker_noticed()
        self.assertEqual(self.term, self.terms()[-1][0])
        note(f"etcd's leader killed: the daemon of term {first} still leads")

        # No quorum: nobody leads, and the workers run on.
        other = self.etcd_leader() - 1
        began = time.monotonic()
        self.members[other].send_signal(signal.SIGKILL)
        self.members[other].wait()
        leading = self.daemons[self.terms()[-1][1]]
        wait_until(lambda: "this daemon leads no more" in self.output(leading), 20, "the leader gives up without a quorum")
        note(f"quorum lost: the leader is silent after {time.monotonic() - began:.2f} s")
        self.assert_no_worker_noticed()
        began = time.monotonic()
        self.members[gone] = self.start_member(gone)
        self.members[other] = self.start_member(other)
        self.next_leader("quorum back", began)
        self.end_all()

    def test_decisions_wait_for_an_etcd_that_is_full(self):
        self.start_etcd(1, "--quota-backend-bytes", str(16 << 20))
        self.start_daemons(count=1, lease_s=4)
        self.start_agents("--max-restarts", 1)
        filler = base64.b64encode(b"x" * (1 << 20)).decode()
        key = base64.b64encode(b"filler").decode()
        for _ in range(40):
            if self.ask_etcd(0, "kv/put", {"key": key, "value": filler}) is None:
                break
        os.kill(self.first_starts[0][2], signal.SIGKILL)
        daemon = self.daemons[self.ports[0]]
        wait_until(lambda: "etcd takes no more" in self.output(daemon), 20, lambda: f"the daemon says it: {self.output(daemon)}")
        time.sleep(2)
        self.assertEqual(self.worker_starts(), self.first_starts, "nothing is decided that is not stored")
        status = self.ask_etcd(0, "maintenance/status", {})
        self.ask_etcd(0, "kv/compaction", {"revision": status["header"]["revision"], "physical": True}, 20)
        self.ask_etcd(0, "maintenance/defragment", {}, 20)
        self.ask_etcd(0, "maintenance/alarm",
                      {"action": "DEACTIVATE", "memberID": status["header"]["member_id"], "alarm": "NOSPACE"}, 20)
        wait_until(lambda: len(self.worker_starts()) == 8, 30, lambda: f"the restart that was decided: {self.output(daemon)}")
        self.assertIn("the journal is written again", self.output(daemon))
        self.assertEqual(len(self.terms()), 1)
        self.end_all()

    def test_an_etcd_that_wants_certificates(self):
        subprocess.run([find_program("tools/certs"), self.path("ca"), "127.0.0.1"], check=True, capture_output=True, timeout=60)
        subprocess.run([find_program("tools/certs"), self.path("other"), "127.0.0.1"], check=True, capture_output=True, timeout=60)
        ca, cert, key = self.path("ca/ca.pem"), self.path("ca/127.0.0.1/cert.pem"), self.path("ca/127.0.0.1/key.pem")
        port, peer = free_port(), free_port()
        member = self.start(ETCD, "--data-dir", self.path("etcd"), "--listen-client-urls", f"https://127.0.0.1:{port}",
                            "--advertise-client-urls", f"https://127.0.0.1:{port}", "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}", "--initial-cluster",
                            f"default=http://127.0.0.1:{peer}", "--client-cert-auth", "--trusted-ca-file", ca, "--cert-file", cert,
                            "--key-file", key, "--logger", "zap", log="etcd.log")
        daemon = [CONVENED, "--host", "127.0.0.1", "--port", 0, "--journal", f"etcd://127.0.0.1:{port}"]
        good = self.start(*daemon, "--etcd-ca", ca, "--etcd-cert", cert, "--etcd-key", key, log="good.log")
        wait_until(lambda: "serving the rendezvous" in self.output(good), 20, lambda: self.output(good) + self.output(member)[-500:])
        strangers = [self.start(*daemon, *words, log=f"stranger{i}.log") for i, words in enumerate((
            [], ["--etcd-ca", ca], ["--etcd-ca", self.path("other/ca.pem"), "--etcd-cert", cert, "--etcd-key", key]))]
        missing = self.start(*daemon, "--etcd-ca", self.path("none.pem"), log="missing.log")
        self.assertNotEqual(missing.wait(20), 0)
        self.assertIn(self.path("none.pem"), self.output(missing))
        for stranger in strangers:
            self.assertEqual(stranger.wait(30), 69)
            self.assertIn("no member of etcd answers", self.output(stranger))
        for process in (good, member):
            process.terminate()
            process.wait(20)

    def test_no_etcd_and_no_place(self):
        began = time.monotonic()
        lonely = self.start(CONVENED, "--port", 0, "--journal", f"etcd://127.0.0.1:{free_port()}", log="lonely.log")
        both = self.start(CONVENED, "--journal", "etcd://a", "--state-dir", self.path("state"), log="both.log")
        wrong = self.start(CONVENED, "--journal", "http://a", log="wrong.log")
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = self.start(CONVENED, "--host", "127.0.0.1", "--port", other.getsockname()[1], "--journal", "etcd://127.0.0.1:1",
                               log="taken.log")
            self.assertEqual(taken.wait(20), 64, "a daemon that could not serve in its turn ends at once")
        self.assertIn("cannot listen on", self.output(taken))
        self.assertEqual(both.wait(20), 64)
        self.assertIn("exclude each other", self.output(both))
        self.assertEqual(wrong.wait(20), 64)
        self.assertIn("etcd://HOST[:PORT]", self.output(wrong))
        self.assertEqual(lonely.wait(30), 69)
        self.assertIn("no member of etcd answers", self.output(lonely))
        self.assertLess(time.monotonic() - began, 15)


if __name__ == "__main__":
    unittest.main()
