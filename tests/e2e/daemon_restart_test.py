"""The rendezvous daemon is killed and started again, and no worker notices."""

import os
import re
import signal
import time

from tests.support import side_by_side
from tests.support.convene_testing import (CONVENE, CONVENED, CONVENE_TRAIN, ConveneTestCase,
                                           find_program, read_metrics, wait_until)

# The worker writes that it has begun, and works until the file $DONE exists.
_WAIT = 'until [ -e "$DONE" ]; do sleep 0.05; done;'
_WORKER = f'echo "$CONVENE_EPOCH $RANK $$" >> "$STARTS"; {_WAIT}'


class DaemonRestartTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        self.port = 0
        self.daemon = None
        self.starts = 0

    def start_daemon(self):
        """On the port of the daemon before, with its state directory; returns at once."""
        self.starts += 1
        self.daemon = self.start(
            CONVENED, "--host", "127.0.0.1", "--port", self.port, "--state-dir", self.path("state"),
            log=f"daemon{self.starts}.log")

    def wait_for_daemon(self):
        match = wait_until(lambda: re.search(r"serving.*127\.0\.0\.1:(\d+)", self.output(self.daemon)), 20,
                           "the daemon's address in its log")
        self.port = int(match.group(1))

    def kill_daemon(self):
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    def wait_until_back(self, nodes):
        """Until `nodes` nodes have taken their places again."""
        wait_until(lambda: self.output(self.daemon).count(" is back in epoch ") >= nodes, 20,
                   f"{nodes} nodes back at the daemon: {self.output(self.daemon)}")

    def start_agent(self, node_rank, *program, nnodes="2", lease_s=5):
        return self.start(
            CONVENE, "run", "--nnodes", nnodes, "--nproc-per-node", 2, "--rdzv-endpoint",
            f"127.0.0.1:{self.port}", "--rdzv-id", "job", "--node-rank", node_rank,
            "--rdzv-conf", f"keep_alive_interval={lease_s / 3},keep_alive_max_attempt=3",
            *program, log=f"agent{node_rank}.log", STARTS=self.path("starts"), DONE=self.path("done"))

    def start_workers(self, **options):
        return [self.start_agent(rank, "--no-python", "sh", "-c", _WORKER, **options)
                for rank in (0, 1)]

    def worker_starts(self):
        """(epoch, rank, pid) of each start of a worker."""
        if not os.path.exists(self.path("starts")):
            return []
        with open(self.path("starts"), encoding="utf-8") as lines:
            return [tuple(map(int, line.split())) for line in lines]

    def end_work(self, agents):
        with open(self.path("done"), "w", encoding="utf-8"):
            pass
        for agent in agents:
            self.finish(agent, 60)
        self.assert_only_daemon_left()

    def assert_only_daemon_left(self):
        self.daemon.send_signal(signal.SIGTERM)
        self.daemon.wait(20)
        self.assert_nothing_left()

    def test_a_new_agent_does_not_serve_in_place_of_a_killed_daemon(self):
        self.start_daemon()
        self.wait_for_daemon()
        self.kill_daemon()
        agent = self.start(CONVENE, "run", "--rdzv-endpoint", f"127.0.0.1:{self.port}",
                           "--rdzv-id", "other", "--no-python", "true", log="other.log")
        wait_until(lambda: "belongs to the convened with --state-dir" in self.output(agent), 20,
                   "what the agent does about it")
        self.start_daemon()
        self.finish(agent, 30)
        self.assertNotIn("hosting the rendezvous", self.output(agent))
        self.assert_only_daemon_left()

    def test_five_kills_of_the_daemon_and_no_worker_notices(self):
        self.start_daemon()
        self.wait_for_daemon()
        agents = self.start_workers()
        wait_until(lambda: len(self.worker_starts()) == 4, 30, "four workers")
        before = self.worker_starts()
        for _ in range(5):
            self.kill_daemon()
            self.start_daemon()
            self.wait_for_daemon()
            self.wait_until_back(2)
        self.assertEqual(self.worker_starts(), before)
        for _, _, pid in before:
            os.kill(pid, 0)
        self.end_work(agents)
        self.assertEqual(self.worker_starts(), before)

    def test_a_training_goes_on_through_five_kills(self):
        self.start_daemon()
        self.wait_for_daemon()
        agents = [self.start_agent(rank, find_program(CONVENE_TRAIN), *self.train_arguments(steps=150))
                  for rank in (0, 1)]
        self.wait_for_step(3)
        before = self.workers()
        self.assertEqual(len(before), 4)
        for _ in range(5):
            step = read_metrics(self.path("metrics.jsonl"))[-1]["step"]
            self.kill_daemon()
            self.wait_for_step(step + 2)
            self.start_daemon()
            self.wait_for_daemon()
            self.wait_until_back(2)
        self.assertEqual(self.workers(), before)
        for agent in agents:
            self.finish(agent, 120)
        metrics = read_metrics(self.path("metrics.jsonl"))
        self.assertEqual([m["step"] for m in metrics], list(range(1, 151)))
        self.assertEqual({m["epoch"] for m in metrics}, {1})
        self.assert_only_daemon_left()

    def test_a_daemon_that_is_away_longer_than_a_lease_stops_nobody(self):
        self.start_daemon()
        self.wait_for_daemon()
        agents = self.start_workers(lease_s=3)
        wait_until(lambda: len(self.worker_starts()) == 4, 30, "four workers")
        before = self.worker_starts()
        self.kill_daemon()
        away_until = time.monotonic() + 7
        wait_until(lambda: time.monotonic() > away_until, 10, "more than two leases")
        self.start_daemon()
        self.wait_for_daemon()
        self.wait_until_back(2)
        self.end_work(agents)
        self.assertEqual(self.worker_starts(), before)
        for text in map(self.output, agents):
            self.assertLessEqual(text.count("the stream to the rendezvous ended"), 2, text)  # closed, then refused; not each try
            self.assertEqual(text.count("the rendezvous answers again"), 1, text)

    def test_a_failure_while_the_daemon_is_away_restarts_the_workers_once_it_is_back(self):
        self.start_daemon()
        self.wait_for_daemon()
        agents = [self.start_agent(rank, "--max-restarts", 1, "--no-python", "sh", "-c", _WORKER)
                  for rank in (0, 1)]
        wait_until(lambda: len(self.worker_starts()) == 4, 30, "four workers")
        self.kill_daemon()
        victim = [pid for _, rank, pid in self.worker_starts() if rank == 3][0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: "stopping the workers of epoch 1: rank 3" in "".join(map(self.output, agents)),
                   10, "the failure in the agent's log")
        self.start_daemon()
        self.wait_for_daemon()
        wait_until(lambda: len(self.worker_starts()) == 8, 30, "four workers again")
        self.assertEqual([epoch for epoch, _, _ in self.worker_starts()], [1] * 4 + [2] * 4)
        self.end_work(agents)
        self.assertIn("rank 3", self.output(self.daemon))

    def start_uploaders(self, wait):
        """Node 0's workers end with 0, and their uploads go on until the work is done; `wait` is what node 1's workers do."""
        script = (f'echo "$CONVENE_EPOCH $RANK $$" >> "$STARTS"; upload() {{ {_WAIT} }}; [ "$RANK" -ge 2 ] || '
                  f'{{ upload > /dev/null 2>&1 & exit 0; }}; {wait}')
        agents = [self.start_agent(rank, "--no-python", "sh", "-c", script) for rank in (0, 1)]
        wait_until(lambda: "(--leftover-grace): sh (pid" in self.output(agents[0]), 30,
                   lambda: "\n".join(["no upload"] + [self.output(agent) for agent in agents] + [self.output(self.daemon)]))
        return agents

    def test_a_job_that_has_succeeded_needs_no_daemon_for_its_uploads(self):
        self.start_daemon()
        self.wait_for_daemon()
        agents = self.start_uploaders(wait="exit 0")
        self.finish(agents[1], 20)  # It does not wait for an upload of another node.
        self.kill_daemon()
        self.assertIsNone(agents[0].poll())
        with open(self.path("done"), "w", encoding="utf-8"):
            pass
        self.finish(agents[0], 20)
        self.assertEqual(len(self.worker_starts()), 4)
        self.assert_nothing_left()

    def test_a_success_is_not_lost_when_the_daemon_is_killed_during_an_upload(self):
        self.start_daemon()
        self.wait_for_daemon()
        agents = self.start_uploaders(wait=_WAIT)
        self.kill_daemon()
        self.start_daemon()
        self.wait_for_daemon()
        self.wait_until_back(2)
        self.end_work(agents)
        self.assertEqual(len(self.worker_starts()), 4)

    def test_an_agent_killed_while_the_daemon_is_away_is_missed(self):
        self.start_daemon()
        self.wait_for_daemon()
        agents = self.start_workers(nnodes="1:2", lease_s=3)
        wait_until(lambda: [e for e, _, _ in self.worker_starts()].count(self.latest_epoch()) == 4,
                   30, "four workers of one epoch")
        epoch = self.latest_epoch()
        self.kill_daemon()
        agents[1].kill()
        self.start_daemon()
        self.wait_for_daemon()
        wait_until(lambda: [e for e, _, _ in self.worker_starts()].count(epoch + 1) == 2, 30,
                   "an epoch of the node that is left")
        self.assertIn("node rank 1) is lost: silent for its lease", self.output(self.daemon))
        self.end_work(agents[:1])

    def latest_epoch(self):
        return max((epoch for epoch, _, _ in self.worker_starts()), default=0)

    def test_two_daemons_do_not_share_a_directory(self):
        self.start_daemon()
        self.wait_for_daemon()
        second = self.start(CONVENED, "--host", "127.0.0.1", "--port", 0, "--state-dir",
                            self.path("state"))
        text = self.finish(second, 20, expected_code=64)
        self.assertIn(f"is in use by process {self.daemon.pid}", text)

    def test_a_damaged_journal_is_refused_with_what_to_do(self):
        os.mkdir(self.path("state"))
        with open(os.path.join(self.path("state"), "journal"), "w", encoding="utf-8") as journal:
            journal.write("something else\n")
        self.start_daemon()
        text = self.finish(self.daemon, 20, expected_code=64)
        self.assertIn("is no journal of convened", text)
        self.assertIn("move the file away", text)


if __name__ == "__main__":
    side_by_side.main(at_once=3)
