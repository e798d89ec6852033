"""convene.checkpoint: a killed worker's state comes back from memory, whole and of one step on all ranks; bad input and bad disks."""

import json
import os
import unittest

from tests.support.convene_testing import find_program
from tests.support.torch_testing import CONVENE, TorchTestCase, need_torch

RANKS = 2


def setUpModule():
    need_torch()


class TorchCheckpointTest(TorchTestCase):
    def run_script(self, name, *arguments, restarts=0):
        packages = os.path.dirname(os.path.dirname(find_program("tools/deploy/python/convene/checkpoint.py")))
        job = self.start_torch(CONVENE, "run", "--standalone", "--nproc-per-node", RANKS, "--max-restarts", restarts, find_program(f"tests/e2e/{name}.py"),
                               *arguments, PYTHONPATH=packages, PYTHONDONTWRITEBYTECODE="1", log=f"{len(os.listdir(self.path('.')))}.log")
        text = self.finish(job, 200)
        self.assert_nothing_left()
        return text

    def train(self, name, *arguments):
        folder = self.path(name)
        os.mkdir(folder)
        self.run_script("torch_checkpoint_script", "--folder", folder, *arguments, restarts=2 * len(arguments))
        results = []
        for rank in range(RANKS):
            with open(f"{folder}/result.{rank}", encoding="ascii") as file:
                results.append(json.load(file))
        return results

    def test_killed_within_a_save_and_between_saves(self):
        """Of the step of the first death the other rank has a whole copy, the dead one has not. The files are gone before each death."""
        for whole, got in zip(self.train("whole"), self.train("dies", "--dies")):
            self.assertEqual((whole["starts"], got["starts"]), ([], [5, 8]))
            self.assertEqual(got["losses"], whole["losses"])
            self.assertEqual(got["weights"], whole["weights"])

    def test_bad_input_and_bad_disks(self):
        text = self.run_script("torch_checkpoint_cases", self.path("."))
        self.assertEqual(text.count("is right"), 10 * RANKS, text)


if __name__ == "__main__":
    unittest.main()
