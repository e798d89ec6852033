"""Four epochs fail, each for another reason: the incident reports tell which is which, and what was done."""

import json
import os
import re
import signal
import unittest

from tests.support.convene_testing import CONVENE, CONVENED, ConveneTestCase, wait_until

# Rank 1 fails in another way in each life of the job; rank 0 waits to be stopped.
WORKER = """
import ctypes, os, sys, time
life, group = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), sys.argv[1]
if os.environ["RANK"] == "1":
    print(f"life {life} pid {os.getpid()}", flush=True)
    if life == 0:
        raise ValueError("the shapes do not match")
    if life == 1:
        ctypes.string_at(0)
    if life == 3 and group:
        with open(os.path.join(group, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))
        hoard = bytearray(b"1") * (400 << 20)
    if life == 4 or (life == 3 and not group):
        sys.exit(0)
time.sleep(0 if life == 4 or (life == 3 and not group) else 600)
"""


class MemoryGroup:
    """A cgroup of 40 MiB; its path is "" where this test may make none."""

    def __init__(self):
        self.path = ""
        for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            path = os.path.join(root, f"convene_incidents_test.{os.getpid()}")
            try:
                os.mkdir(path)
            except OSError:
                continue
            try:
                with open(os.path.join(path, limit), "w", encoding="ascii") as file:
                    file.write("40000000")
                self.path = path
                return
            except OSError:
                os.rmdir(path)

    def remove(self):
        if self.path:
            os.rmdir(self.path)


class IncidentsTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        self.group = MemoryGroup()
        self.addCleanup(self.group.remove)
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", 0, log="daemon.log")
        text = wait_until(lambda: re.search(r"rendezvous on 127.0.0.1:(\d+)", self.output(daemon)), 30, "the daemon")
        self.endpoint = f"127.0.0.1:{text.group(1)}"
        with open(self.path("worker.py"), "w", encoding="utf-8") as file:
            file.write(WORKER)

    def ask(self, command, *words, code=0):
        return self.finish(self.start(CONVENE, command, *words, "--endpoint", self.endpoint), 30, code)

    def test_each_failure_has_a_report_with_the_right_verdict(self):
        job = self.start(CONVENE, "run", "--rdzv-endpoint", self.endpoint, "--rdzv-id", "run", "--rdzv-conf", "is_host=0",
                         "--nproc-per-node", 2, "--max-restarts", 9, "--no-python", "/usr/bin/python3", self.path("worker.py"),
                         self.group.path, log="job.log")
        wait_until(lambda: "start here" in self.output(job), 30, "the first epoch")
        follower = self.start(CONVENE, "events", "run", "-f", "--endpoint", self.endpoint, log="events.log")
        killed = wait_until(lambda: re.search(r"life 2 pid (\d+)", self.output(job)), 60, "the third life")
        os.kill(int(killed.group(1)), signal.SIGKILL)
        self.finish(job, 60)

        self.finish(follower, 30)
        reports = [json.loads(line) for line in self.ask("incidents", "run", "--json").splitlines()]
        verdicts = [report["verdict"] for report in reversed(reports)]
        self.assertEqual(verdicts, ["code", "code", "kill"] + (["node"] if self.group.path else []))
        first = reports[-1]
        self.assertEqual(first["certainty"], "sure")
        self.assertIn("ValueError: the shapes do not match", first["failures"][0]["last_log_lines"])
        self.assertEqual(first["failures"][0]["exit_code"], 1)
        self.assertRegex(first["outcome"], "^epoch 2 formed: ")
        self.assertEqual(reports[-2]["failures"][0]["signal"], signal.SIGSEGV)
        self.assertEqual(reports[-3]["failures"][0]["pid"], killed.group(1))
        if self.group.path:
            self.assertRegex(reports[0]["evidence"][0], "OOM kill|no memory left")

        listed = self.ask("incidents", "run")
        self.assertRegex(listed, r"#1 .* epoch 1  code \(sure\)  rank 1 on .*: exit code 1")
        self.assertRegex(listed, r"#3 .* epoch 3  kill")
        self.assertRegex(self.ask("incidents", "run", 1), r"first cause: rank 1 on .*\n(.*\n)*.*ValueError: the shapes do not match")
        self.assertIn("run run has no incident 77", self.ask("incidents", "run", 77, code=64))
        self.assertIn("knows no job other", self.ask("incidents", "other", code=64))

        events = [json.loads(line) for line in self.output(follower).splitlines() if line.startswith("{")]
        kinds = [event["kind"] for event in events]
        self.assertEqual(kinds[:4], ["node joined", "epoch formed", "failure", "stop"])
        self.assertEqual(kinds[-1], "job over")
        self.assertEqual([int(event["number"]) for event in events], list(range(1, len(events) + 1)))
        self.assertIn("failure: rank 1 on ", self.ask("events", "run", "--text"))


if __name__ == "__main__":
    unittest.main()
