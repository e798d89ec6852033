"""Daemons that share an etcd, on machines of their own whose cables are pulled: no epoch twice, no worker restarts but for its own death.

The hosts are network namespaces (tests/support/network_namespaces.py). Each deed happens once, in an order by seed.
CHAOS_SEED=N repeats a run's choices (not its timing), CHAOS_KILLS=N changes the number of deeds, CHAOS_DEEDS=a,b leaves out all others and
CHAOS_LEASE_S=N sets the lease: so one kind of takeover is measured.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest

from tests.support.convene_testing import CONVENE, CONVENED, find_program, wait_until
from tests.support.etcd_testing import ETCD, WORKER, EtcdTestCase, note
from tests.support.network_namespaces import Network, NoNamespaces

LEASE_S = int(os.environ.get("CHAOS_LEASE_S", 4))  # 4 is the default
_STATUS = "import sys, urllib.request as u; print(u.urlopen(u.Request(sys.argv[1], b'{}'), timeout=2).read().decode())"
_TIME = r"\[(\d+):(\d+):(\d+\.\d+) [^\]]*\] \w+: .*"


def times_of(words, log):
    """When a daemon said it, in seconds of the day."""
    return [int(h) * 3600 + int(m) * 60 + float(s) for h, m, s in re.findall(_TIME + re.escape(words), log)]


class EtcdNetworkTest(EtcdTestCase):

    def setUp(self):
        super().setUp()
        seed = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
        print(f"seed {seed}: CHAOS_SEED={seed} makes the same choices", flush=True)
        self.random = random.Random(seed)
        self.network = Network(seed)
        self.addCleanup(self.network.close)
        try:
            self.etcd_hosts = [self.network.host(f"e{i}") for i in range(3)]
            self.daemon_hosts = {f"d{i}": self.network.host(f"d{i}") for i in range(3)}
            self.node_hosts = [self.network.host(f"n{i}") for i in range(2)]
        except NoNamespaces as reason:
            self.skipTest(f"no network namespaces: {reason}")

    def start_all(self):
        cluster = ",".join(f"m{i}=http://{host.address}:2380" for i, host in enumerate(self.etcd_hosts))
        for i, host in enumerate(self.etcd_hosts):
            own = f"http://{host.address}"
            self.members.append(self.start(
                ETCD, "--name", f"m{i}", "--data-dir", self.path(f"etcd{i}"), "--listen-client-urls", f"{own}:2379",
                "--advertise-client-urls", f"{own}:2379", "--listen-peer-urls", f"{own}:2380", "--initial-advertise-peer-urls",
                f"{own}:2380", "--initial-cluster", cluster, "--logger", "zap", log=f"etcd{i}.log", prefix=host.prefix))
        wait_until(self.etcd_leader, 30, "etcd's first leader")
        journal = "etcd://" + ",".join(f"{host.address}:2379" for host in self.etcd_hosts)
        for name, host in self.daemon_hosts.items():
            self.daemons[name] = self.start(CONVENED, "--port", 29400, "--journal", journal, "--leader-lease", LEASE_S, log=f"{name}.log",
                                            prefix=host.prefix)
        self.leader()
        self.endpoints = ",".join(f"{host.address}:29400" for host in self.daemon_hosts.values())
        self.agents = [self.start(
            CONVENE, "run", "--nnodes", 2, "--nproc-per-node", 2, "--max-restarts", 100000, "--rdzv-endpoint", self.endpoints, "--rdzv-id",
            "job", "--node-rank", rank, "--no-python", "sh", "-c", WORKER, log=f"agent{rank}.log", prefix=host.prefix,
            STARTS=self.path("starts"), DONE=self.path("done")) for rank, host in enumerate(self.node_hosts)]
        self.epochs = 1
        wait_until(self.is_calm, 30, self.all_logs)

    def run_at(self, host, *command):
        """The command's output there; None when the command fails."""
        done = subprocess.run([*host.prefix, *command], capture_output=True, text=True, check=False, timeout=30)
        return done.stdout if done.returncode == 0 else None

    def etcd_leader(self):
        for i, host in enumerate(self.etcd_hosts):
            answer = self.run_at(host, sys.executable, "-c", _STATUS, f"http://{host.address}:2379/v3/maintenance/status")
            status = json.loads(answer) if answer else {}
            if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                return i + 1
        return 0

    def leading(self):
        return self.daemon_hosts[self.terms()[-1][1]]

    def all_logs(self):
        return "\n----\n".join(self.output(process)[-2500:] for process in [*self.daemons.values(), *self.agents])

    # Deeds

    def next_leads(self, what, began):
        """Waits for the next term. The daemon before gave up first."""
        old, term = self.daemons[self.terms()[-1][1]], self.terms()[-1][0]
        new = self.daemons[self.leader(term)]
        took = time.monotonic() - began
        note(f"{what}: the next daemon serves after {took:.2f} s")
        # Two leases at most as long as etcd's leader stays. A new one counts a whole lease again, and so does etcd where it hears renewals
        # up to the end of the tenure and its answers are lost.
        self.assertLess(took, 3 * LEASE_S, self.all_logs())
        gave_up = times_of("this daemon leads no more", self.output(old))
        self.assertTrue(gave_up, self.output(old))
        apart_s = (times_of("this daemon leads, in term", self.output(new))[-1] - gave_up[-1]) % 86400
        self.assertLess(apart_s, 43200, "the old leader gives up before the next one leads")

    def cut_leader_off(self):
        host, began = self.leading(), time.monotonic()
        self.network.cut(host)
        self.next_leads("leader cut off", began)
        self.network.mend(host)

    def part_leader_from_etcd(self, *ways):
        host, began = self.leading(), time.monotonic()
        for member in self.etcd_hosts:
            if "there" in ways:
                self.network.cut_one_way(host, member)
            if "back" in ways:
                self.network.cut_one_way(member, host)
        self.next_leads(f"leader parted from etcd ({' and '.join(ways)})", began)
        self.network.mend(host)

    def part_leader(self):
        self.part_leader_from_etcd("there", "back")

    def lose_etcds_answers(self):
        """Etcd does as the leader asks, and the leader does not learn it."""
        self.part_leader_from_etcd("back")

    def lose_answers_about_a_death(self):
        self.kill_worker()
        time.sleep(self.random.choice([0, 0.005, 0.05]))
        self.lose_etcds_answers()

    def cut_off_leader_of_a_death(self):
        self.kill_worker()
        time.sleep(self.random.choice([0, 0.005, 0.05]))
        self.cut_leader_off()

    def hide_leader_from_nodes(self):
        # Agents leave a silent leader after 5 s, and their workers have 20.
        host, hidden_s = self.leading(), self.random.choice([1, 4, 6, 7, 8])
        for node in self.node_hosts:
            self.network.cut_one_way(node, host)
            self.network.cut_one_way(host, node)
        time.sleep(hidden_s)
        self.network.mend(host)

    def cut_etcds_leader_off(self):
        host = self.etcd_hosts[self.etcd_leader() - 1]
        self.network.cut(host)
        time.sleep(self.random.uniform(0.5, 6))
        self.network.mend(host)

    def cut_both_leaders_off(self):
        """Of the daemons, and of etcd, whose next leader gives the lease its full time once more. It happens where CHAOS_DEEDS names it: etcd may
        hold an election twice, and no time is too long for that."""
        hosts, began = [self.leading(), self.etcd_hosts[self.etcd_leader() - 1]], time.monotonic()
        for host in hosts:
            self.network.cut(host)
        self.next_leads("leader and etcd's leader cut off", began)
        for host in hosts:
            self.network.mend(host)

    def kill_worker(self):
        os.kill(self.random.choice([pid for epoch, _, pid in self.worker_starts() if epoch == self.epochs]), signal.SIGKILL)
        self.epochs += 1

    def is_calm(self):
        """A daemon leads, etcd has a leader, and the epoch that has to run runs on both nodes."""
        terms = self.terms()
        output = self.output(self.daemons[terms[-1][1]])
        if output.rfind("serving the rendezvous") < output.rfind("this daemon leads") or not self.etcd_leader():
            return False
        status = self.run_at(self.node_hosts[0], find_program(CONVENE), "status", "job", "--json", "--endpoint", self.endpoints)
        if status is None:
            return False
        job = json.loads(status)["jobs"][0]
        starts = [start for start in self.worker_starts() if start[0] == self.epochs]
        is_heard = all(float(node["heard_seconds_ago"]) < 3 for node in job["nodes"])  # each tells its state every 2.5 s
        return (int(job["epoch"]) == self.epochs and [node["state"] for node in job["nodes"]] == ["running"] * 2 and len(starts) == 4
                and is_heard)

    def check(self):
        starts = self.worker_starts()
        self.assertEqual(sorted(start[:2] for start in starts), [(epoch, rank) for epoch in range(1, self.epochs + 1) for rank in range(4)],
                         f"each rank starts once an epoch, and epochs are as many as workers died\n{self.all_logs()}")
        for epoch, _, pid in starts:
            if epoch == self.epochs:
                os.kill(pid, 0)
        terms = [term for term, _ in self.terms()]
        self.assertEqual(len(terms), len(set(terms)), "no two daemons lead in one term")

    def test_cables_are_pulled(self):
        self.start_all()
        deeds = [self.cut_leader_off, self.part_leader, self.lose_etcds_answers, self.lose_answers_about_a_death,
                 self.cut_off_leader_of_a_death, self.hide_leader_from_nodes, self.cut_etcds_leader_off]
        if named := os.environ.get("CHAOS_DEEDS"):
            deeds = [getattr(self, name) for name in named.split(",")]
        for number in range(int(os.environ.get("CHAOS_KILLS", len(deeds)))):
            if number % len(deeds) == 0:
                self.random.shuffle(deeds)
            deed = deeds[number % len(deeds)]
            print(f"deed {number + 1}: {deed.__name__}", flush=True)
            deed()
            wait_until(self.is_calm, 60, lambda: f"calm after deed {number + 1}: {self.terms()} {self.worker_starts()[-8:]} {self.all_logs()}")
            self.check()
        self.end_all()


if __name__ == "__main__":
    unittest.main()
