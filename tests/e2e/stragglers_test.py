"""A rank or a disk that is slow is found and named while the job runs, a quiet job raises no alarm, and a spare replaces a slow node.

CONVENE_QUIET_STEPS=1000 (`tools/nightly stragglers`) also runs jobs of so many quiet steps, with what the watch costs them, and a busy neighbour.
"""

import json
import os
import re
import shutil
import signal
import threading
import time
import unittest

from tests.support.convene_testing import CONVENE, CONVENED, CONVENE_TRAIN, ConveneTestCase, find_program, wait_until

RANKS = 8
QUIET_STEPS = int(os.environ.get("CONVENE_QUIET_STEPS", "0"))
# A step is many short sleeps, so that a busy machine makes no rank slower than another, and a stop of the process does. A neighbour on the
# same core slows the part that computes.
WORKER = """
import mmap, os, struct, sys, time
from progress import Progress

rank, ranks, steps = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
parts, computes = int(os.environ.get("PARTS", 40)), float(os.environ.get("COMPUTES", 0))
told = 0
board = mmap.mmap(os.open(sys.argv[2] + os.environ["CONVENE_EPOCH"], os.O_RDWR | os.O_CREAT), 8 * ranks)
progress = Progress(tells_every_phase=True)
for step in range(1, steps + 1):
    begin = time.monotonic()
    if os.path.exists(sys.argv[3] + str(rank)):  # this rank's disk is slow
        time.sleep(0.12)
    read = time.monotonic()
    for _ in range(parts):
        end = time.thread_time() + computes
        while time.thread_time() < end:
            pass
        time.sleep(0.01 - computes)
    arrived = time.monotonic()
    board[8 * rank:8 * rank + 8] = struct.pack("<q", step)
    while min(struct.unpack(f"<{ranks}q", board[:])) < step:  # all ranks wait for the slowest
        time.sleep(0.002)
    before = time.thread_time()
    progress.tell(step, wait_s=time.monotonic() - arrived, data_s=read - begin, loss=1 / step, tokens=100)
    told += time.thread_time() - before
    if rank == 0:
        print(f"finished step {step}", flush=True)
print(f"telling took {told}", flush=True)
"""
# Takes 0.6 of one core, before all others there.
NEIGHBOUR = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
print("here", flush=True)
while True:
    end = time.monotonic() + 0.012
    while time.monotonic() < end:
        pass
    time.sleep(0.008)
"""
STOPPED_S, PERIOD_S = 0.06, 0.26  # a process that is stopped for 23 % of the time works 30 % longer


class StragglersTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", 0, log="daemon.log")
        self.daemon = daemon
        text = wait_until(lambda: re.search(r"rendezvous on 127.0.0.1:(\d+)", self.output(daemon)), 30, "the daemon")
        self.endpoint = f"127.0.0.1:{text.group(1)}"
        shutil.copy(find_program("tools/deploy/python/convene/progress.py"), self.path("progress.py"))
        with open(self.path("worker.py"), "w", encoding="utf-8") as file:
            file.write(WORKER)
        for epoch in range(1, 4):
            with open(self.path(f"board{epoch}"), "wb") as file:
                file.write(bytes(8 * RANKS))

    def job(self, steps, **environment):
        return self.start(CONVENE, "run", "--rdzv-endpoint", self.endpoint, "--rdzv-id", "run", "--rdzv-conf", "is_host=0",
                          "--nproc-per-node", RANKS, "--no-python", "/usr/bin/python3", self.path("worker.py"), steps, self.path("board"),
                          self.path("slow_disk"), log="job.log", **environment)

    def status(self):
        return json.loads(self.finish(self.start(CONVENE, "status", "run", "--endpoint", self.endpoint, "--json"), 20))["jobs"][0]

    def step(self, job):
        found = re.findall(r"finished step (\d+)", self.output(job))
        return int(found[-1]) if found else 0

    def slow_down(self, pid, ended):
        while not ended.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(PERIOD_S - STOPPED_S)

    def test_a_rank_that_is_slowed_by_30_percent_is_named_with_default_settings(self):
        job = self.job(steps=150)
        wait_until(lambda: self.step(job) >= 40, 90, "step 40")
        status = self.status()
        self.assertEqual(status["stragglers"], [])
        ranks = status["nodes"][0]["ranks"]
        self.assertEqual([rank["local_rank"] for rank in ranks], list(range(RANKS)))
        for rank in ranks:
            self.assertGreater(rank["compute_ms"], 350)
            self.assertGreater(int(rank["memory_bytes"]), 1 << 20)
            self.assertGreater(rank["tokens_per_second"], 50)

        pids = {self.rank_of(pid): pid for pid in self.workers_of(job)}
        ended = threading.Event()
        slower = threading.Thread(target=self.slow_down, args=(pids[5], ended))
        begin = self.step(job)
        slower.start()
        try:
            text = wait_until(self.stragglers, 60, "a straggler")
            took = self.step(job) - begin
        finally:
            ended.set()
            slower.join()
        print(f"found after {took} steps")
        self.assertEqual(len(text), 1, text)
        self.assertRegex(text[0], r"^rank 5 on .*: slow rank, by \d+ %: it works")
        wait_until(lambda: text[0] in self.output(self.daemon), 30, "the same in the daemon's log, which follows the event")
        self.assertLessEqual(took, 36)

        # The same job goes on, quiet again, and then with a slow disk.
        wait_until(lambda: '"straggler gone"' in self.events(), 60, "a straggler that is gone")
        begin = self.step(job)
        open(self.path("slow_disk2"), "w", encoding="ascii").close()
        text = wait_until(lambda: self.stragglers()[1:], 60, "a slow disk")
        took = self.step(job) - begin
        print(f"the disk was found after {took} steps")
        self.assertRegex(text[0], r"^rank 2 on .*: slow disk, by \d+ %")
        self.assertLessEqual(took, 36)
        job.terminate()
        job.wait(30)

    def test_a_slow_node_is_put_out_at_the_next_restart_and_the_spare_takes_its_place(self):
        nodes = [self.start(CONVENE, "run", "--rdzv-endpoint", self.endpoint, "--rdzv-id", "run", "--rdzv-conf", "is_host=0", "--nnodes",
                            "4:4", "--spares", 1, "--node-rank", number, "--local-addr", "127.0.0.1", "--straggler-policy", "exclude",
                            "--max-restarts", 1, "--no-python", "/usr/bin/python3", self.path("worker.py"), 1000, self.path("board"),
                            self.path("slow_disk"),
                            log=f"node{number}.log") for number in range(5)]
        wait_until(lambda: any(self.step(node) >= 30 for node in nodes), 60, "step 30")
        node_of = {self.rank_of(pid): (node, pid) for node in nodes for pid in self.workers_of(node)}
        slow, pid = node_of[2]
        ended = threading.Event()
        slower = threading.Thread(target=self.slow_down, args=(pid, ended))
        slower.start()
        try:
            wait_until(self.stragglers, 60, "a straggler")
        finally:
            ended.set()
            slower.join()
        os.kill(node_of[0][1], signal.SIGKILL)
        wait_until(lambda: '"node excluded"' in self.events(), 30, self.events)
        wait_until(lambda: sum(len(self.workers_of(node)) for node in nodes if node is not slow) == 4, 30,
                   "four workers beside the slow node")
        self.assertEqual(self.status()["epoch"], "2")
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait(30)

    @unittest.skipUnless(QUIET_STEPS, "for tools/nightly")
    def test_quiet_steps_raise_no_alarm_and_cost_nothing(self):
        begin = time.monotonic()
        job = self.job(QUIET_STEPS, PARTS="20")
        wait_until(lambda: self.step(job) >= QUIET_STEPS - 1, QUIET_STEPS, "the last steps")
        seconds = time.monotonic() - begin
        # The agent's and the daemon's whole work: heartbeats, logs and all.
        watch = sum(self.cpu_seconds(pid) for pid in (job.pid, self.daemon.pid))
        self.finish(job, 30)
        self.assertEqual([event for event in self.events().splitlines() if "straggler" in event], [])
        told = [float(each) for each in re.findall(r"telling took ([0-9.e-]+)", self.output(job))]
        self.assertEqual(len(told), RANKS)
        of_steps = (watch + sum(told)) / (RANKS * seconds)
        print(f"{QUIET_STEPS} steps of {RANKS} ranks in {seconds:.0f} s, no alarm: a tell took {sum(told) / RANKS / QUIET_STEPS * 1e6:.0f} us, agent "
              f"and daemon {watch:.2f} s of CPU: {of_steps:.3%} of the ranks' time")
        self.assertLess(of_steps, 0.002)

    @unittest.skipUnless(QUIET_STEPS, "for tools/nightly")
    def test_a_quiet_trainer_raises_no_alarm(self):
        job = self.start(CONVENE, "run", "--rdzv-endpoint", self.endpoint, "--rdzv-id", "run", "--rdzv-conf", "is_host=0", "--nproc-per-node", 8,
                         find_program(CONVENE_TRAIN), *self.train_arguments(steps=QUIET_STEPS, checkpoint_every=QUIET_STEPS, global_batch_size=32,
                                                                               sequence_length=128), log="job.log")
        self.finish(job, 600)
        events = self.events()
        self.assertIn("job over", events)
        self.assertEqual([event for event in events.splitlines() if "straggler" in event], [])

    @unittest.skipUnless(QUIET_STEPS, "for tools/nightly")
    def test_a_rank_with_a_busy_neighbour_is_named(self):
        *others, core = sorted(os.sched_getaffinity(0))
        if not others or os.geteuid() != 0:
            self.skipTest("it needs two cores, and root for a neighbour who goes first")
        job = self.job(steps=400, COMPUTES="0.0005")
        wait_until(lambda: self.step(job) >= 40, 120, "step 40")
        self.assertEqual(self.stragglers(), [])
        for pid in self.workers_of(job):
            os.sched_setaffinity(pid, {core} if self.rank_of(pid) == 3 else others)
        begin = self.step(job)
        neighbour = self.start("/usr/bin/python3", "-c", NEIGHBOUR, core)
        wait_until(lambda: self.output(neighbour), 20, "the neighbour")
        text = wait_until(self.stragglers, 90, "a straggler")
        took = self.step(job) - begin
        print(f"the busy neighbour's rank was found after {took} steps: {text[0]}")
        self.assertEqual(len(text), 1, text)
        self.assertRegex(text[0], r"^rank 3 on .*: slow rank, by \d+ %: it works")
        self.assertLessEqual(took, 36)
        job.terminate()
        job.wait(30)

    @staticmethod
    def cpu_seconds(pid):
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stragglers(self):
        """The texts of all that were found so far."""
        return [event["text"] for event in map(json.loads, self.events().splitlines()) if event["kind"] == "straggler found"]

    def events(self):
        return self.finish(self.start(CONVENE, "events", "run", "--endpoint", self.endpoint), 20)

    def workers_of(self, job):
        with open(f"/proc/{job.pid}/task/{job.pid}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split() if self.rank_of(int(pid)) is not None]

    @staticmethod
    def rank_of(pid):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                ranks = re.findall(rb"(?:^|\0)RANK=(\d+)", file.read())
        except (FileNotFoundError, ProcessLookupError):  # it ended since its parent named it
            return None
        return int(ranks[0]) if ranks else None


if __name__ == "__main__":
    unittest.main()
