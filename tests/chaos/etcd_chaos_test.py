"""Daemons that share an etcd, its members and the workers are killed and stopped at random: no epoch twice, no worker restarts but for its own death.

CHAOS_SEED=N repeats a run's choices (not its timing), CHAOS_KILLS=N changes their number.
"""

import json
import os
import random
import signal
import time
import unittest

from tests.support.convene_testing import CONVENE, find_program, wait_until
from tests.support.etcd_testing import EtcdTestCase

DEEDS = int(os.environ.get("CHAOS_KILLS", "8"))
MOVED_WALL_CLOCK = "tests/e2e/libmoved_wall_clock.so"
LEASE_S = 4  # the default


class EtcdChaosTest(EtcdTestCase):

    def setUp(self):
        super().setUp()
        seed = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
        print(f"seed {seed}: CHAOS_SEED={seed} makes the same choices", flush=True)
        self.random = random.Random(seed)

    def leading(self):
        return self.terms()[-1][1]

    def restart_daemon(self, port, signal_number):
        self.daemons[port].send_signal(signal_number)
        self.daemons[port].wait(20)
        self.start_daemon(port, LEASE_S)

    def kill_leader(self):
        self.restart_daemon(self.leading(), signal.SIGKILL)

    def end_leader(self):
        self.restart_daemon(self.leading(), signal.SIGTERM)

    def kill_any_daemon(self):
        self.restart_daemon(self.random.choice(self.ports), signal.SIGKILL)

    def pause(self, process, most_s):
        process.send_signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(0.1, most_s))
        process.send_signal(signal.SIGCONT)

    def pause_leader(self):
        self.pause(self.daemons[self.leading()], 2 * LEASE_S)

    def pause_member(self):
        self.pause(self.random.choice(self.members), LEASE_S)

    def kill_member(self):
        # The one that leads in two of three cases.
        number = self.etcd_leader() - 1 if self.random.random() < 0.67 else self.random.randrange(3)
        self.members[number].kill()
        self.members[number].wait()
        time.sleep(self.random.uniform(0, 2))
        self.members[number] = self.start_member(number)

    def set_clock(self):
        """The wall clock of all daemons, of those that are started later too, by up to a day."""
        link = self.path("clock.new")
        os.symlink(str(self.random.randint(-86400, 86400)), link)
        os.replace(link, self.clock_file)

    def start_daemon(self, port, lease_s=LEASE_S):
        self.clock_file = self.path("clock")
        super().start_daemon(port, lease_s, LD_PRELOAD=find_program(MOVED_WALL_CLOCK), MOVED_WALL_CLOCK=self.clock_file)

    def kill_worker(self):
        os.kill(self.random.choice([pid for epoch, _, pid in self.worker_starts() if epoch == self.epochs]), signal.SIGKILL)
        self.epochs += 1

    def fill_up_etcd(self):
        """Nothing is decided meanwhile, and nobody who does not lead can lead."""
        self.fill_etcd()
        if self.random.random() < 0.7:
            self.kill_worker()
        if self.random.random() < 0.3:
            self.kill_any_daemon()
        time.sleep(self.random.uniform(0, LEASE_S))
        self.make_room_in_etcd()

    def kill_worker_and_leader(self):
        port = self.leading()
        self.kill_worker()
        time.sleep(self.random.choice([0, 0.01, 0.1]))
        self.restart_daemon(port, signal.SIGKILL)

    def is_calm(self):
        """A daemon leads, all members of etcd answer, and the epoch that has to run runs on both nodes."""
        port = self.leading()
        output = self.output(self.daemons[port])
        if output.rfind("serving the rendezvous") < output.rfind("this daemon leads") or not self.etcd_leader():
            return False
        asked = self.start(CONVENE, "status", "job", "--json", "--endpoint", f"127.0.0.1:{port}")
        if asked.wait(20) != 0:
            return False
        job = json.loads(self.output(asked))["jobs"][0]
        starts = [start for start in self.worker_starts() if start[0] == self.epochs]
        return int(job["epoch"]) == self.epochs and [node["state"] for node in job["nodes"]] == ["running"] * 2 and len(starts) == 4

    def check(self):
        starts = self.worker_starts()
        self.assertEqual(sorted(start[:2] for start in starts), [(epoch, rank) for epoch in range(1, self.epochs + 1) for rank in range(4)],
                         "each rank starts once an epoch, and epochs are as many as workers died")
        for epoch, _, pid in starts:
            if epoch == self.epochs:
                os.kill(pid, 0)
        terms = [term for term, _ in self.terms()]
        self.assertEqual(len(terms), len(set(terms)), "no two daemons lead in one term")

    def test_random_deeds(self):
        self.start_etcd(3, "--quota-backend-bytes", str(16 << 20))
        self.start_daemons(lease_s=LEASE_S)
        self.start_agents("--max-restarts", 100000)
        self.epochs = 1
        deeds = [self.kill_leader, self.end_leader, self.kill_any_daemon, self.pause_leader, self.pause_member, self.kill_member,
                 self.set_clock, self.kill_worker, self.kill_worker_and_leader, self.fill_up_etcd]
        for number in range(DEEDS):
            wait_until(self.is_calm, 60, lambda: f"calm after deed {number}: {self.terms()} {self.worker_starts()[-8:]} "
                       + "".join(self.output(process)[-1500:] for process in [*self.daemons.values(), *self.agents]))
            self.check()
            deed = self.random.choice(deeds)
            print(f"deed {number + 1}: {deed.__name__}", flush=True)
            deed()
        wait_until(self.is_calm, 60, "calm at the end")
        self.check()
        self.end_all()


if __name__ == "__main__":
    unittest.main()
