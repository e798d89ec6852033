"""convene.checkpoint: a killed worker's state comes back from memory, whole and of one step on all ranks; bad input and bad disks."""

import json
import os
import re
import unittest

from tests.support.convene_testing import CONVENED, find_program, wait_until
from tests.support.torch_testing import CONVENE, TorchTestCase, need_torch

RANKS = 2


def setUpModule():
    need_torch()


class TorchCheckpointTest(TorchTestCase):
    def start_script(self, flags, name, *arguments):
        packages = os.path.dirname(os.path.dirname(find_program("tools/deploy/python/convene/checkpoint.py")))
        return self.start_torch(CONVENE, "run", *flags, find_program(f"tests/e2e/{name}.py"), *arguments, PYTHONPATH=packages, PYTHONDONTWRITEBYTECODE="1",
                                log=f"{len(os.listdir(self.path('.')))}.log")

    def run_script(self, name, *arguments, restarts=0):
        text = self.finish(self.start_script(["--standalone", "--nproc-per-node", RANKS, "--max-restarts", restarts], name, *arguments), 200)
        self.assert_nothing_left()
        return text

    def results(self, folder):
        results = []
        for rank in range(RANKS):
            with open(f"{folder}/result.{rank}", encoding="ascii") as file:
                results.append(json.load(file))
        return results

    def train(self, name, *arguments):
        folder = self.path(name)
        os.mkdir(folder)
        self.run_script("torch_checkpoint_script", "--folder", folder, *arguments, restarts=2 * len(arguments))
        return self.results(folder)

    def test_killed_within_a_save_and_between_saves(self):
        """Of the step of the first death the other rank has a whole copy, the dead one has not. The files are gone before each death."""
        for whole, got in zip(self.train("whole"), self.train("dies", "--dies")):
            self.assertEqual((whole["starts"], got["starts"]), ([], [5, 8]))
            self.assertEqual(got["losses"], whole["losses"])
            self.assertEqual(got["weights"], whole["weights"])

    def test_a_lost_nodes_state_comes_from_the_other_node(self):
        """No file is written: what the new node's rank needs stands in the memory of the node that is left."""
        daemon = self.start_torch(CONVENED, "--host", "127.0.0.1", "--port", 0, log="daemon.log")
        port = wait_until(lambda: re.search(r"127\.0\.0\.1:(\d+)", self.output(daemon)), 10, "the daemon's address").group(1)
        folder = self.path("nodes")
        os.mkdir(folder)

        def start_node(rank):
            return self.start_script(["--nnodes", RANKS, "--nproc-per-node", 1, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "states",
                                      "--node-rank", rank, "--max-restarts", 3], "torch_checkpoint_script", "--folder", folder, "--replicas", 1)
        first, lost = start_node(0), start_node(1)
        self.wait_for_file(f"{folder}/rests", 100)
        lost.kill()
        again = start_node(1)
        for node in (first, again):
            self.finish(node, 200)
        daemon.kill()
        daemon.wait()
        for whole, got in zip(self.train("whole"), self.results(folder)):
            self.assertEqual(got["starts"], [6])
            self.assertEqual((got["losses"], got["weights"]), (whole["losses"], whole["weights"]))

    def test_bad_input_and_bad_disks(self):
        text = self.run_script("torch_checkpoint_cases", self.path("."))
        self.assertEqual(text.count("is right"), 11 * RANKS, text)


if __name__ == "__main__":
    unittest.main()
