"""`convene bench` as a person starts it: alone, under `convene run` on two nodes, under mpirun; saved and compared; with a rank that dies."""

import json
import os
import re
import shutil
import signal
import unittest

from tests.support.convene_testing import CONVENE, ConveneTestCase, environment_of, find_program, free_port, wait_until

_QUICK = ["-b", "8", "-e", "64K", "-f", "8", "-n", "3", "-w", "1"]
_OPERATIONS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "sendrecv"]


class BenchTest(ConveneTestCase):

    def bench(self, *words, code=0):
        return self.finish(self.start(CONVENE, "bench", *words), 60, code)

    def test_all_operations_in_nccl_tests_columns_saved_and_compared(self):
        saved = self.path("saved.json")
        said = self.bench("--nproc-per-node", "3", *_QUICK, "--save", saved)
        rows = [line.split() for line in said.splitlines() if line and not line.startswith("#")]
        self.assertEqual(list(dict.fromkeys(row[0] for row in rows)), _OPERATIONS)
        for row in rows:
            self.assertEqual(len(row), 10, row)
            self.assertEqual(row[9], "0", row)
        self.assertIn("# Out of bounds values : 0 OK", said)
        self.assertRegex(said, r"# Avg bus bandwidth    : [0-9.e-]+")
        with open(saved, encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual([row["operation"] for row in result["rows"]], [row[0] for row in rows])
        again = self.bench("--nproc-per-node", "3", *_QUICK, "--compare", saved, "broadcast")
        self.assertEqual(len(re.findall(r"^ broadcast +\d+ +[0-9.]+ +[0-9.]+ +[0-9.]+x", again, re.MULTILINE)), 5, again)
        self.assert_nothing_left()

    def test_two_nodes_of_a_run_measure_their_link(self):
        place = ["--nnodes", "2", "--nproc-per-node", "2", "--rdzv-id", "pairs", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
        job = [*place, "--local-addr", "127.0.0.1", "--", find_program(CONVENE), "bench", "--pairs", "--json", "-e", "1M"]
        nodes = [self.start(CONVENE, "run", *job, log=f"node{i}.log") for i in range(2)]
        texts = [self.finish(node, 60) for node in nodes]
        lines = "\n".join(re.sub(r"^\[\d+\] ", "", line) for line in "\n".join(texts).splitlines() if re.match(r"\[0\] ", line))
        pairs = json.loads(lines)["pairs"]
        # Of each node the first rank: both are on this machine.
        self.assertEqual(len(pairs["members"]), 2)
        self.assertGreater(pairs["bytes_per_second"][1], 1e6)
        self.assertEqual(pairs["bytes_per_second"][0], 0)

    def test_in_a_pod_whose_rank_counts_pods(self):
        pod = ["env", "RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={free_port()}"]
        said = self.finish(self.start(CONVENE, "bench", "--nproc-per-node", "2", *_QUICK, "all_reduce", prefix=pod), 60)
        self.assertIn("# convene bench: 2 ranks", said)

    def test_no_rank_gets_the_join_token(self):
        token = "Xz3Vq0k7sT1mN8bYw5Jr2aPfL9dH4eGc"
        bench = self.start(CONVENE, "bench", "--nproc-per-node", "2", "-b", "4M", "-e", "4M", "-n", "1000000", "all_reduce", CONVENE_JOIN_TOKEN=token)
        wait_until(lambda: "# convene bench" in self.output(bench), 30, "the first words")
        for pid in (bench.pid, *self.workers().values()):
            self.assertFalse(token in str(environment_of(pid)))
        bench.send_signal(signal.SIGTERM)
        self.finish(bench, 30, 143)
        with open(self.path("token"), "w", encoding="ascii", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
            file.write(token)
        self.bench("--join-token-file", self.path("token"), "--nproc-per-node", "2", *_QUICK, "broadcast")

    def test_under_mpirun(self):
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun here: Debian's package openmpi-bin has it")
        prefix = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]
        said = self.finish(self.start(CONVENE, "bench", *_QUICK, "all_reduce", prefix=prefix, T=self.directory), 60)
        self.assertEqual(said.count("# convene bench: 2 ranks"), 1, said)
        self.assertEqual(said.count("Out of bounds values : 0 OK"), 1, said)

    def test_a_rank_that_dies_ends_the_bench(self):
        bench = self.start(CONVENE, "bench", "--nproc-per-node", "3", "-b", "4M", "-e", "4M", "-n", "1000000", "all_reduce")
        wait_until(lambda: "# convene bench" in self.output(bench), 30, "the first words")
        os.kill(self.workers()[2], signal.SIGKILL)
        said = self.finish(bench, 30, 137)
        self.assertIn("SIGKILL", said)
        self.assert_nothing_left()

    def test_bad_input_is_64_and_told(self):
        self.assertIn("the operation `allreduce` is unknown", self.bench("allreduce", code=64))
        self.assertIn("--maxbytes", self.bench("-b", "1M", "-e", "1K", code=64))
        self.assertIn("no result that --save wrote", self.bench("--nproc-per-node", "1", "--compare", "/proc/self/status", code=64))
        self.assertIn("the last rank is 1", self.bench("--nproc-per-node", "2", "--root", "2", code=64))


if __name__ == "__main__":
    unittest.main()
