"""Warm workers of convene-train: a spare becomes a rank as a new process would, and whatever is killed, the training goes on with the same losses."""

import glob
import os
import re
import shutil
import signal
import unittest

from tests.support.convene_testing import (CONVENE, CONVENE_TRAIN, CONVENED, ConveneTestCase, environment_of, find_program, processes_with,
                                           read_metrics, wait_until)

WORKERS = 2


def ready(workers=WORKERS):
    return f"spares that are ready to become workers: {workers}"


def warm(workers=WORKERS):
    return f"{workers} of {workers} workers start from spares"


READY, WARM = ready(), warm()


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


class WarmTrainerTest(ConveneTestCase):

    def train(self, program=None, spares="auto", workers=WORKERS, steps=100_000, **changes):
        return self.start(CONVENE, "run", "--standalone", "--nproc-per-node", workers, "--max-restarts", 9, "--warm-workers", spares, "--no-python",
                          program or find_program(CONVENE_TRAIN), *self.train_arguments(steps=steps, **changes))

    def said(self, job, text, times=1):
        wait_until(lambda: self.output(job).count(text) >= times, 60, lambda: f'"{text}" in\n{self.output(job)}')

    def companions(self, job):
        """Parent and spares: children of the agent that show the parent's environment, and whose session has no rank; the parent is the oldest."""
        found = [pid for pid in processes_with(self.marker)
                 if parent_of(pid) == job.pid and environment_of(pid).get("CONVENE_WARM", "").startswith("parent:")]
        return sorted(found)

    def rank(self, number):
        return wait_until(lambda: self.workers().get(number), 30, f"rank {number}")

    def kill_cold_worker(self):
        """Of the first epoch, whose workers show their ranks in their environment."""
        os.kill(self.rank(1), signal.SIGKILL)

    def curve(self, metrics="metrics.jsonl"):
        return {line["step"]: (line["loss"], line["grad_norm"]) for line in read_metrics(self.path(metrics))}

    def next_epoch(self, epoch):
        wait_until(lambda: any(line["epoch"] >= epoch for line in read_metrics(self.path("metrics.jsonl"))), 60, f"a step of epoch {epoch}")

    def check_curve(self, workers, steps, **changes):
        """A job whose rank 1 is killed, and which goes on with spares, has the losses and norms of one that nobody disturbs."""
        self.finish(self.train(spares=0, workers=workers, steps=steps, metrics_file=self.path("cold.jsonl"), checkpoint_dir=self.path("cold"), **changes), 120)
        job = self.train(workers=workers, steps=steps, **changes)
        self.said(job, ready(workers))
        wait_until(lambda: glob.glob(self.path("checkpoints/step_????????/manifest")), 60, "a checkpoint")
        self.kill_cold_worker()
        self.said(job, warm(workers))
        text = self.finish(job, 120)
        self.assertIn("resumed after step", text)
        self.assertEqual(len(self.curve()), steps)
        self.assertEqual(self.curve(), self.curve("cold.jsonl"))
        self.assertNotIn("start cold", text)
        self.assert_nothing_left()

    def test_spares_become_data_parallel_ranks_of_the_same_curve(self):
        self.check_curve(2, steps=200)

    def test_spares_become_ranks_of_tensors_and_stages_of_the_same_curve(self):
        self.check_curve(4, steps=40, tp_size=2, pp_size=2)

    def test_a_spare_is_in_the_place_of_the_process_that_it_replaces(self):
        job = self.train()
        self.said(job, READY)
        spares = self.companions(job)[1:]
        self.wait_for_step(10)
        cold = [self.rank(number) for number in range(WORKERS)]
        seen = self.facts(cold)
        self.kill_cold_worker()
        self.said(job, WARM)
        self.next_epoch(2)
        for pid in spares:
            self.assertEqual(parent_of(pid), job.pid)
            self.assertEqual(os.getsid(pid), pid)
        wait_until(lambda: self.facts(spares) == seen, 20, lambda: f"{self.facts(spares)} as {seen}")

    @staticmethod
    def facts(pids):
        """Signals of each, and the kinds of files that all have open; checkpoints come and go."""
        signals, fds = [], []
        for pid in pids:
            with open(f"/proc/{pid}/status", encoding="ascii") as file:
                status = dict(line.split(":", 1) for line in file)
            signals.append([status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")])
            for name in os.listdir(f"/proc/{pid}/fd"):
                try:
                    target = os.readlink(f"/proc/{pid}/fd/{name}")
                except FileNotFoundError:
                    continue
                if "/checkpoints/" not in target:
                    fds.append(target if target.startswith("/") else target.split(":[")[0])
        return signals, sorted(fds)

    def test_a_node_that_joins_finds_ranks_that_start_from_spares(self):
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", 0, log="daemon.log")
        endpoint = wait_until(lambda: re.search(r"rendezvous on (127.0.0.1:\d+)", self.output(daemon)), 30, "the daemon").group(1)

        def node(rank):
            return self.start(CONVENE, "run", "--nnodes", "1:2", "--nproc-per-node", 1, "--rdzv-endpoint", endpoint, "--rdzv-id", "grows", "--node-rank", rank,
                              "--max-restarts", 3, "--warm-workers", "auto", find_program(CONVENE_TRAIN), *self.train_arguments(steps=100_000),
                              log=f"agent{rank}.log")

        first = node(0)
        self.said(first, ready(1))
        self.wait_for_step(10)
        node(1)
        self.said(first, warm(1))
        wait_until(lambda: any(line["world_size"] == 2 for line in read_metrics(self.path("metrics.jsonl"))), 60, "a step of two ranks")

    def test_killed_spares_and_a_killed_parent_are_replaced(self):
        job = self.train()
        self.said(job, READY)
        for pid in self.companions(job):
            os.kill(pid, signal.SIGKILL)
        self.said(job, READY, 2)
        self.wait_for_step(10)
        self.kill_cold_worker()
        self.said(job, WARM)
        self.next_epoch(2)
        self.assertNotIn("start cold", self.output(job))

    def test_a_spare_that_is_killed_in_its_hand_over_is_a_worker_that_failed(self):
        job = self.train()
        self.said(job, READY)
        self.wait_for_step(10)
        spares = self.companions(job)[1:]
        self.assertEqual(len(spares), WORKERS)
        for pid in spares:
            os.kill(pid, signal.SIGSTOP)
        self.kill_cold_worker()
        self.said(job, WARM)
        os.kill(spares[0], signal.SIGKILL)
        self.said(job, f"(pid {spares[0]}) failed: killed by SIGKILL")
        self.next_epoch(3)

    def test_a_killed_agent_takes_parent_and_spares_with_it(self):
        job = self.train()
        self.said(job, READY)
        job.kill()
        job.wait(10)
        self.assert_nothing_left()

    def test_a_changed_program_starts_cold_with_a_word(self):
        program = self.path("convene-train")
        shutil.copy(find_program(CONVENE_TRAIN), program)
        job = self.train(program)
        self.said(job, READY)
        self.wait_for_step(10)
        # As an update does: another file in its place.
        shutil.copy(program, program + ".new")
        os.rename(program + ".new", program)
        self.kill_cold_worker()
        self.said(job, f"the workers start cold, until a start has been seen again: {program} has changed")
        self.next_epoch(2)

    def test_another_configuration_is_read_by_a_spare_as_by_a_new_process(self):
        config = self.path("train.yaml")
        with open(config, "w", encoding="utf-8") as file:
            file.write("learning_rate: 1e-3\nwarmup_steps: 0\n")
        job = self.train(config=config)
        self.said(job, READY)
        self.wait_for_step(10)
        with open(config, "w", encoding="utf-8") as file:
            file.write("learning_rate: 2e-3\nwarmup_steps: 0\n")
        self.kill_cold_worker()
        self.said(job, WARM)
        self.next_epoch(2)
        rates = {line["epoch"]: line["learning_rate"] for line in read_metrics(self.path("metrics.jsonl"))}
        self.assertAlmostEqual(rates[1], 1e-3, delta=1e-5)
        self.assertAlmostEqual(rates[2], 2e-3, delta=2e-5)


if __name__ == "__main__":
    unittest.main()
