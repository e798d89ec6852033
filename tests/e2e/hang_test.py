"""A worker hangs: the report names the place where it stands, and the job goes on without anybody's help."""

import os
import re
import shutil
import signal
import unittest

from tests.support.convene_testing import (CONVENE, CONVENE_TRAIN, CONVENED, ConveneTestCase, find_program,
                                           read_metrics, wait_until)

# The limits are given, because automatic ones are 30 s at the least (//agent/core:hang_detector_test tests those).
_LIMIT = ("--hang-timeout", "step=3,checkpoint=3")
_HANG_S = 60
_REPORT = r"hang: no step for [\d.]+ s \(limit 3 s\), phase (step|checkpoint)"


class HangTest(ConveneTestCase):

    def start_trainer(self):
        return self.start(
            CONVENE, "run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, *_LIMIT,
            find_program(CONVENE_TRAIN),
            *self.train_arguments(steps=1000000, checkpoint_every=200, checkpoint_keep=2), log="trainer.log")

    def start_script(self):
        """A Python program with the class of the wheel, that hangs in its first life. A shell has started it, which is the agent's worker."""
        shutil.copy(find_program("tools/deploy/python/convene/progress.py"), self.path("progress.py"))
        script = self.path("worker.py")
        with open(script, "w", encoding="utf-8") as out:
            out.write("""
import os, time
from progress import Progress
progress = Progress(tells_every_phase=True)
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(1, 60 if restarts == 0 else 10):
    time.sleep(0.05)
    progress.tell(step)
while restarts == 0:
    time.sleep(1)
""")
        return self.start(CONVENE, "run", "--standalone", "--max-restarts", 1, *_LIMIT, "--no-python",
                          "/bin/sh", "-c", f"/usr/bin/python3 {script}; exit $?", log="script.log")

    def test_workers_that_stand_still_are_reported_with_their_stacks_and_the_jobs_go_on(self):
        trainer = self.start_trainer()
        script = self.start_script()
        # A trainer that is stopped from outside, as by a device that never answers.
        # The agent has looked at it more than once by then, and neither a checkpoint nor a validation is near.
        self.wait_for_step(410)
        stopped = self.workers()[1]
        os.kill(stopped, signal.SIGSTOP)
        text = wait_until(lambda: "epoch 2" in self.output(trainer) and self.output(trainer), _HANG_S,
                          "the trainer's second epoch")
        self.assertRegex(text, _REPORT)
        self.assertRegex(text, r"as the kernel sees them:\n.*T \(stopped\)")
        # The other rank answers SIGUSR2 with the stacks of its threads.
        self.assertIn("SIGUSR2: the stacks of all threads; the program goes on", text)
        self.assertIn("convene::worker::", text)
        wait_until(lambda: any(m["epoch"] == 2 for m in read_metrics(self.path("metrics.jsonl"))), 60,
                   "a step of the second epoch")
        trainer.send_signal(signal.SIGTERM)
        trainer.wait(40)

        text = self.finish(script, _HANG_S)
        self.assertRegex(text, _REPORT + ", step 59")
        self.assertRegex(text, r"as the kernel sees them:\n.*python3: ")
        self.assertRegex(text, r'File ".*worker.py", line \d+ in <module>')  # It answers SIGUSR2 by itself.
        self.assert_nothing_left()

    def test_a_rank_that_is_stopped_on_one_of_two_nodes_is_the_first_cause_on_both(self):
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", 0, log="daemon.log")
        endpoint = "127.0.0.1:" + wait_until(lambda: re.search(r"rendezvous on 127.0.0.1:(\d+)", self.output(daemon)), 30, "the daemon").group(1)
        nodes = [self.start(CONVENE, "run", "--rdzv-endpoint", endpoint, "--rdzv-id", "run", "--nnodes", 2, "--node-rank", number,
                            "--local-addr", "127.0.0.1", "--nproc-per-node", 2, *_LIMIT, find_program(CONVENE_TRAIN),
                            *self.train_arguments(steps=1000000, checkpoint_every=1000000), log=f"node{number}.log") for number in range(2)]
        self.wait_for_step(410)  # The agents have looked more than once by then.
        os.kill(self.workers()[3], signal.SIGSTOP)
        for node in nodes:
            said = self.finish(node, _HANG_S, 1)
            self.assertRegex(said, r"The first failure was rank 3 .*hang: no step for [\d.]+ s \(limit 3 s\)")
            self.assertIn("stopped by a signal (state T)", said)
        report = self.finish(self.start(CONVENE, "incidents", "run", 1, "--endpoint", endpoint), 30)
        self.assertRegex(report, r"first cause: rank 3 on ")
        self.assertRegex(report, r"#1 .*  kill \(likely\)")
        # Each rank tells for which one its collective waits; the first of such a chain waits for rank 3.
        self.assertRegex(report, r"rank 2: \w+ #\d+ of [\w ]+ waits for rank \d")
        self.assertRegex(report, r"rank [012] on .*: step \d+, \w+, \w+ #\d+ of [\w ]+ waits for rank 3")

    def test_pages_are_gone_when_the_job_is(self):
        text = self.finish(self.start(CONVENE, "run", "--standalone", "--nproc-per-node", 2, "--no-python",
                                      "/bin/sh", "-c", "test -w $CONVENE_PROGRESS && echo page=$CONVENE_PROGRESS"), 30)
        pages = re.findall(r"page=(\S+)", text)
        self.assertEqual(len(set(pages)), 2, text)
        self.assertFalse([page for page in pages if os.path.exists(page)])


if __name__ == "__main__":
    unittest.main()
