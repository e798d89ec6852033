"""Warm workers of an unmodified PyTorch program, at a restart and at a second run's first start: the same losses, with PyTorch's own imports."""

import json
import os
import unittest

from tests.support.convene_testing import find_program, wait_until
from tests.support.torch_testing import CONVENE, TorchTestCase, need_torch

# The script imports most at init_process_group, and the rest in its first steps.
RECORDS = 2


def setUpModule():
    need_torch()


class TorchWarmTest(TorchTestCase):

    def train(self, name, *flags, crash_rank=-1):
        script = [find_program("tests/e2e/torch_ddp_script.py"), "--checkpoint", self.path(f"{name}.pt"), "--result", self.path(f"{name}.json"),
                  "--crash-rank", crash_rank, "--crash-when", self.path("now")]
        return self.start_torch(CONVENE, "run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, *flags, *script, log=f"{name}.log")

    def result(self, name):
        with open(self.path(f"{name}.json"), encoding="ascii") as file:
            return json.load(file)

    def has_all_spares(self, job):
        parts = self.output(job).split("the parent of warm workers has imported")
        return len(parts) == RECORDS + 1 and "spares that are ready to become workers: 2" in parts[-1]

    def test_a_killed_worker_is_replaced_warm_and_the_loss_is_the_same(self):
        self.finish(self.train("whole"), 200)
        job = self.train("warm", "--warm-workers", "auto", crash_rank=1)
        wait_until(lambda: self.has_all_spares(job), 200, lambda: f"spares in\n{self.output(job)}")
        with open(self.path("now"), "w", encoding="ascii"):
            pass
        text = self.finish(job, 200)
        self.assert_nothing_left()
        self.assertIn("2 of 2 workers start from spares", text)
        self.assertNotIn("start cold", text)
        self.assertNotIn("only when their script does", text)
        warm, whole = self.result("warm"), self.result("whole")
        self.assertEqual((whole["attempt"], warm["attempt"], warm["first_epoch"]), (0, 1, 2))
        self.assertEqual(warm["loss"], whole["loss"])
        self.check_second_run(whole)

    def check_second_run(self, whole):
        """The same command again, from the start. Its worker is killed before new spares are there."""
        for name in ("warm.pt", "warm.json", "warm.log"):
            os.remove(self.path(name))
        text = self.finish(self.train("warm", "--warm-workers", "auto", crash_rank=1), 200)
        self.assert_nothing_left()
        self.assertIn("the first start waits", text)
        self.assertIn("2 of 2 workers start from spares", text.split("failed: killed")[0])
        self.assertNotIn("start cold", text)
        self.assertEqual(self.result("warm")["loss"], whole["loss"])


if __name__ == "__main__":
    unittest.main()
