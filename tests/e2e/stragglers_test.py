"""A rank or a disk that is slow is found and named while the job runs, a quiet job raises no alarm, and a spare replaces a slow node."""

import json
import os
import re
import shutil
import signal
import threading
import time
import unittest

from tests.support.convene_testing import CONVENE, CONVENED, ConveneTestCase, find_program, wait_until

RANKS = 8
# A step is many short sleeps, so that a busy machine makes no rank slower than another, and a stop of the process does.
WORKER = """
import mmap, os, struct, sys, time
from progress import Progress

rank, ranks, steps = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(sys.argv[1])
board = mmap.mmap(os.open(sys.argv[2] + os.environ["CONVENE_EPOCH"], os.O_RDWR | os.O_CREAT), 8 * ranks)
progress = Progress(tells_every_phase=True)
for step in range(1, steps + 1):
    begin = time.monotonic()
    if os.path.exists(sys.argv[3] + str(rank)):  # this rank's disk is slow
        time.sleep(0.12)
    read = time.monotonic()
    for _ in range(40):
        time.sleep(0.01)
    arrived = time.monotonic()
    board[8 * rank:8 * rank + 8] = struct.pack("<q", step)
    while min(struct.unpack(f"<{ranks}q", board[:])) < step:  # all ranks wait for the slowest
        time.sleep(0.002)
    progress.tell(step, wait_s=time.monotonic() - arrived, data_s=read - begin, loss=1 / step, tokens=100)
    if rank == 0:
        print(f"finished step {step}", flush=True)
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

    def job(self, steps):
        return self.start(CONVENE, "run", "--rdzv-endpoint", self.endpoint, "--rdzv-id", "run", "--rdzv-conf", "is_host=0",
                          "--nproc-per-node", RANKS, "--no-python", "/usr/bin/python3", self.path("worker.py"), steps, self.path("board"),
                          self.path("slow_disk"), log="job.log")

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
        self.assertIn(text[0], self.output(self.daemon))
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
        with open(f"/proc/{pid}/environ", "rb") as file:
            ranks = re.findall(rb"(?:^|\0)RANK=(\d+)", file.read())
        return int(ranks[0]) if ranks else None


if __name__ == "__main__":
    unittest.main()
