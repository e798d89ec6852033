"""TensorBoard reads what a job told it, through a kill."""

import json
import os
import signal
import subprocess
import unittest

from tests.support import tokenizer_environment
from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase, find_program, read_metrics

# The scalars of a folder by tag, as TensorBoard itself reads them: [[step, value], ...].
READER = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
events.Reload()
print(json.dumps({tag: [[each.step, each.value] for each in events.Scalars(tag)] for tag in events.Tags()['scalars']}))
"""


def has_tensorboard():
    command = [tokenizer_environment.PYTHON, "-c", "import tensorboard"]
    return os.path.exists(command[0]) and subprocess.run(command, capture_output=True, check=False).returncode == 0


class TensorboardTest(ConveneTestCase):

    @unittest.skipUnless(has_tensorboard(), "SKIPPED: no tensorboard (tools/tokenizer_environment)")
    def test_each_step_is_there_once_also_after_a_kill(self):
        job = self.start(CONVENE, "run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 3, find_program(CONVENE_TRAIN),
                         *self.train_arguments(tensorboard_dir=self.path("tb")))
        self.wait_for_step(12)
        os.kill(self.workers()[1], signal.SIGKILL)
        self.finish(job, 120)
        self.assertEqual(len(os.listdir(self.path("tb"))), 2)  # a file for each start
        done = subprocess.run([tokenizer_environment.PYTHON, "-c", READER, self.path("tb")], capture_output=True, text=True, check=True, timeout=120)
        scalars = json.loads(done.stdout.splitlines()[-1])
        metrics = read_metrics(self.path("metrics.jsonl"))
        for key in ("loss", "grad_norm", "learning_rate", "tokens"):
            told = scalars[f"train/{key}"]
            self.assertEqual([step for step, _ in told], list(range(1, 31)))
            for (_, value), line in zip(told, metrics):
                self.assertAlmostEqual(value, line[key], delta=1e-6 * abs(line[key]))
        self.assertEqual([step for step, _ in scalars["validation/loss"]][-1], 30)
        self.assertIn("checkpoint/seconds", scalars)

    def test_a_folder_that_cannot_be_made_is_told_before_the_first_step(self):
        with open(self.path("file"), "w", encoding="ascii"):
            pass
        said = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(tensorboard_dir=self.path("file/tb"))), 60, 64)
        self.assertIn("tensorboard_dir", said)
        self.assertIn("file", said)
        self.assertEqual(said.count("step 1/"), 0)


if __name__ == "__main__":
    unittest.main()
