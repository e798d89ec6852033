"""Epochs fail, each for another reason: the incident reports tell which is which, and what was done."""

import json
import os
import pickle
import re
import shutil
import signal
import unittest

from tests.support.convene_testing import CONVENE, CONVENED, ConveneTestCase, wait_until

# Rank 1 fails in another way in each life of the job; rank 0 waits to be stopped.
WORKER = """
import ctypes, mmap, os, sys, time
life, group, ways = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), sys.argv[1], sys.argv[2:]
way = ways[life] if life < len(ways) else "end"
if os.environ["RANK"] == "1":
    print(f"life {life} pid {os.getpid()}", flush=True)
    if way == "raise":
        raise ValueError("the shapes do not match")
    if way == "crash":
        ctypes.string_at(0)
    if way == "abort":
        os.abort()
    if way == "exit":
        sys.exit(3)
    if way == "hoard":
        with open(os.path.join(group, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))
        hoard = bytearray(b"1") * (400 << 20)
    if way == "full disk":
        with open("/dev/full", "w") as file:
            file.write("a checkpoint")
    if way == "cut file":
        with open(os.environ["CUT_FILE"], "w+b") as file:
            file.truncate(1 << 20)
            mapped = mmap.mmap(file.fileno(), 1 << 20)
            file.truncate(0)
            mapped[4096]
    if way == "cut data":
        raise RuntimeError("data/shard_0007.bin is truncated: 512 of 4096 bytes")
    if way == "silent peer":
        import socket
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            socket.create_connection(nobody.getsockname())
    if way == "end":
        sys.exit(0)
time.sleep(0 if way == "end" else 600)
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

    def ask(self, command, *words, code=0, **environment):
        return self.finish(self.start(CONVENE, command, *words, "--endpoint", self.endpoint, **environment), 30, code)

    def run_job(self, *ways):
        """A job of one node whose rank 1 fails in these ways, one after the other; "kill" and "terminate" are done here."""
        return self.start(CONVENE, "run", "--rdzv-endpoint", self.endpoint, "--rdzv-id", "run", "--rdzv-conf", "is_host=0",
                          "--nproc-per-node", 2, "--max-restarts", len(ways), "--no-python", "/usr/bin/python3", self.path("worker.py"),
                          self.group.path, *ways, log="job.log", CUT_FILE=self.path("cut"))

    def kill_in_life(self, job, life, number):
        """Its pid."""
        pid = wait_until(lambda: re.search(rf"life {life} pid (\d+)", self.output(job)), 60, f"life {life}").group(1)
        os.kill(int(pid), number)
        return pid

    def reports(self):
        """The oldest first."""
        return [json.loads(line) for line in self.ask("incidents", "run", "--json").splitlines()][::-1]

    def test_each_failure_has_a_report_with_the_right_verdict(self):
        follower = self.start(CONVENE, "events", "run", "-f", "--endpoint", self.endpoint, log="events.log")
        wait_until(lambda: "knows no job run; `convene status` lists its jobs; waiting for it to begin" in self.output(follower), 30, "the wait")
        self.assertIn("knows no job run", self.ask("events", "run", code=64))
        job = self.run_job("raise", "crash", "kill", *(["hoard"] if self.group.path else []))
        wait_until(lambda: "start here" in self.output(job), 30, "the first epoch")
        killed = self.kill_in_life(job, 2, signal.SIGKILL)
        self.finish(job, 60)

        self.finish(follower, 30)
        reports = self.reports()
        verdicts = [report["verdict"] for report in reports]
        self.assertEqual(verdicts, ["code", "code", "kill"] + (["node"] if self.group.path else []))
        first = reports[0]
        self.assertEqual(first["certainty"], "sure")
        self.assertIn("ValueError: the shapes do not match", first["failures"][0]["last_log_lines"])
        self.assertEqual(first["failures"][0]["exit_code"], 1)
        self.assertRegex(first["outcome"], "^epoch 2 formed: ")
        self.assertEqual(reports[1]["failures"][0]["signal"], signal.SIGSEGV)
        self.assertEqual(reports[2]["failures"][0]["pid"], killed)
        if self.group.path:
            self.assertRegex(reports[3]["evidence"][0], "OOM kill|no memory left")

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

    def dump(self, rank, collectives, ranks=2):
        """As Gloo's recorder of PyTorch 2.15 leaves it: "" in pg_config is the group "0" of the entries."""
        frames = [{"name": "all_reduce", "filename": "/x/torch/distributed/c.py", "line": 1}, {"name": "step", "filename": "/home/me/train.py", "line": 41}]
        entries = [{"collective_seq_id": number, "is_p2p": False, "process_group": ("0", "default_pg"), "profiling_name": what, "input_sizes": [[4]],
                    "frames": frames, "retired": number < len(collectives)} for number, what in enumerate(collectives, 1)]
        config = {"": {"name": "", "desc": "", "ranks": str(list(range(ranks)))}}
        with open(self.path(f"dumps/trace_{rank}"), "wb") as file:
            pickle.dump({"version": "2.10", "pg_config": config, "entries": entries}, file, protocol=2)

    def program(self, name, text):
        os.makedirs(self.path("bin"), exist_ok=True)
        with open(self.path("bin/" + name), "w", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o755)) as file:
            file.write("#!/bin/sh\n" + text)

    def test_dumps_of_pytorchs_recorder_are_read_here_and_by_torchs_own_reader(self):
        job = self.run_job("raise")
        self.finish(job, 60)
        prefix = self.path("dumps/trace_")
        asked = ["run", 1, "--torch-dumps", prefix]
        path = {"PATH": self.path("bin") + ":/usr/bin:/bin"}
        self.assertIn("--torch-dumps: list", self.ask("incidents", *asked, code=64))
        os.mkdir(self.path("dumps"))
        self.assertRegex(self.ask("incidents", *asked, code=64), r'no file in .*/dumps begins with "trace_": give what TORCH_FR_DUMP_TEMP_FILE is')
        self.dump(0, ["gloo:all_reduce"] * 4, 3)
        self.dump(1, ["gloo:all_reduce"] * 3, 3)
        self.assertIn("NUMBER", self.ask("incidents", "run", "--torch-dumps", prefix, code=64))
        missed = ("  PyTorch's flight recorder:\n    group 0: rank 2 left no dump\n    group 0: collective 4, gloo:all_reduce of [[4]], /home/me/train.py:41, "
                  "was started by rank 0, and not by rank 1\n    ")
        self.assertIn(missed + "torchfrtrace was not asked: it is not in PATH", self.ask("incidents", *asked, PATH="/usr/bin:/bin"))
        short = self.ask("incidents", *asked[:-1], self.path("dumps/tra"), code=64, PATH="/usr/bin:/bin")
        self.assertIn("no file is named tra and a rank's number", short)
        self.program("torchfrtrace", 'echo "$@"\necho "tabulate is not installed. Proceeding without it." >&2\necho "missing ranks: {1}" >&2\n' * 2)
        said = self.ask("incidents", *asked, **path)
        self.assertIn("ValueError: the shapes do not match", said)
        self.assertIn(missed + "torchfrtrace:\n      --allow-incomplete-ranks --prefix=trace_ " + self.path("dumps") + "\n      missing ranks: {1}\n  then:",
                      said)
        # It ends with a traceback where the recorder is Gloo's: the reading here stands.
        self.program("torchfrtrace", 'echo "Traceback:"; echo "  File builder.py"; echo "KeyError: (\'0\', 0)"; exit 1\n')
        self.assertIn(missed + "torchfrtrace failed: KeyError: ('0', 0)\n  then:", self.ask("incidents", *asked, **path))
        self.dump(1, ["gloo:all_reduce", "gloo:broadcast"], 2)
        self.dump(0, ["gloo:all_reduce"] * 2, 2)
        self.assertIn("group 0: collective 2 is not the same on all ranks: gloo:all_reduce of [[4]], /home/me/train.py:41 on rank 0; gloo:broadcast",
                      self.ask("incidents", *asked, **path))
        self.dump(1, ["gloo:all_reduce"] * 2, 2)
        self.assertIn("all ranks with a dump started collective 2, gloo:all_reduce of [[4]], /home/me/train.py:41; it did not end on ranks 0, 1",
                      self.ask("incidents", *asked, **path))
        # 200,000 collectives have room, 100,000 of each dump here.
        self.dump(0, ["gloo:all_reduce"] * 100007, 2)
        self.dump(1, ["gloo:broadcast"] + ["gloo:all_reduce"] * 99999, 2)
        said = self.ask("incidents", *asked, **path)
        self.assertIn("group 0: the newest collectives were compared; 7 older ones of rank 0 were left out, for want of room\n", said)
        self.assertIn("group 0: collective 100001, gloo:all_reduce of [[4]], /home/me/train.py:41, was started by rank 0, and not by rank 1\n", said)
        self.assertNotIn("not the same", said)
        with open(prefix + "1", "wb") as file:
            pickle.dump({"pg_config": {}, "entries": [{"is_p2p": False, "process_group": ["0"], "collective_seq_id": "x", "profiling_name": "",
                                                          "input_sizes": [], "retired": True}]}, file)
        self.assertIn("    the dumps trace_* are not as PyTorch writes them: TypeError: ", self.ask("incidents", *asked, code=64, **path))
        # Where both readers fail the report stands, and the exit code says so. A dump runs no code.
        with open(prefix + "1", "wb") as file:
            file.write(b"cos\nsystem\n(S'touch " + self.path("ran").encode() + b"'\ntR.")
        said = self.ask("incidents", *asked, code=64, **path)
        self.assertIn("trace_1 cannot be read: UnpicklingError: it names os.system, which no dump does", said)
        self.assertIn("ValueError: the shapes do not match", said)
        self.assertFalse(os.path.exists(self.path("ran")))
        # Nor does a module that lies where Python would look, and many words do not hide the exit code.
        with open(self.path("bin/json.py"), "w", encoding="ascii") as file:
            file.write("open(" + repr(self.path("ran")) + ", 'w')\n")
        for number in range(2, 1000):
            shutil.copy(prefix + "1", prefix + f"{number}")
        self.ask("incidents", *asked, code=64, PYTHONPATH=self.path("bin"), **path)
        self.assertFalse(os.path.exists(self.path("ran")))

    def test_what_a_signal_a_disk_or_a_peer_did_is_told_apart_and_what_comes_again_is_counted(self):
        expected = {"terminate": "kill", "abort": "code", "full disk": "data", "cut file": "data", "cut data": "data",
                    "silent peer": "network", "exit": "code"}
        ways = [*expected, "exit", "exit"]
        job = self.run_job(*ways)
        self.kill_in_life(job, 0, signal.SIGTERM)
        self.finish(job, 90)
        reports = self.reports()
        self.assertEqual([(way, report["verdict"]) for way, report in zip(ways, reports)],
                         [(way, expected[way]) for way in ways])
        self.assertEqual(len(reports), len(ways))
        self.assertEqual([report["times_here"] for report in reports[-3:]], [1, 2, 3])
        self.assertIn("3 times: look at that node", self.ask("incidents", "run", len(ways)))

    def node(self, rank):
        place = ["--rdzv-endpoint", self.endpoint, "--rdzv-id", "run", "--nnodes", 2, "--node-rank", rank, "--local-addr", "127.0.0.1",
                 "--rdzv-conf", "is_host=0,keep_alive_interval=1,keep_alive_max_attempt=3", "--max-restarts", 9]
        return self.start(CONVENE, "run", *place, "--", "sh", "-c", "echo epoch $CONVENE_EPOCH runs; exec sleep 600", log=f"node{rank}.log")

    def test_a_node_that_dies_is_stopped_or_falls_silent_is_told_apart(self):
        stays, goes = self.node(0), self.node(1)
        ends = [(signal.SIGKILL, "node"), (signal.SIGTERM, "kill"), (signal.SIGSTOP, "network")]

        def epochs():
            return [int(number) for number in re.findall(r"epoch (\d+) runs", self.output(stays))]

        last = 0
        for signal_number, verdict in ends:
            # An epoch may be replaced before its workers have said a word.
            last = wait_until(lambda: max((epoch for epoch in epochs() if epoch > last), default=0), 60, f"an epoch above {last}")
            goes.send_signal(signal_number)
            if signal_number != signal.SIGSTOP:
                goes.wait(30)
            left, goes = goes, self.node(1)
            wait_until(lambda: max(epochs()) > last, 60, lambda: self.output(stays)[-500:])
            first = next(report for report in self.reports() if int(report["epoch"]) >= last)
            self.assertEqual(first["verdict"], verdict)
        left.kill()
        for node in (stays, goes):
            node.terminate()
        for node in (stays, goes):
            node.wait(30)


if __name__ == "__main__":
    unittest.main()
