"""A worker dies in the middle; the job goes on from its checkpoint as if nothing had happened."""

import os
import signal

from tests.support import side_by_side
from tests.support.convene_testing import (CONVENE, CONVENE_TRAIN, ConveneTestCase, find_program,
                                           read_metrics, wait_until)


class KillWorkerTest(ConveneTestCase):

    def run_job(self, name, kill_rank=None, nproc=4, held_step=None, **changes):
        """A rank is killed after step 12; or while the checkpoint after `held_step` is being written."""
        metrics = self.path(f"{name}.jsonl")
        job = self.start(
            CONVENE, "run", "--standalone", "--nproc-per-node", nproc, "--max-restarts", 3,
            find_program(CONVENE_TRAIN),
            *self.train_arguments(metrics_file=metrics, checkpoint_dir=self.path(name), **changes),
            log=f"{name}.log", **({} if held_step is None else self.slow_disk(f"/step_{held_step:08d}/")))
        if held_step is not None:
            # All steps up to the next checkpoint are made meanwhile.
            wait_until(lambda: f"the checkpoint after step {held_step} is still being written" in self.output(job), 60, "a wait")
            self.assertEqual(read_metrics(metrics)[-1]["step"], held_step + 5)
            self.assertFalse(os.path.exists(self.path(f"{name}/step_{held_step:08d}/manifest")))
        elif kill_rank is not None:
            self.wait_for_step(12, metrics=metrics)
        if kill_rank is not None:
            os.kill(self.workers()[kill_rank], signal.SIGKILL)
        if held_step is not None:
            wait_until(lambda: any(m["epoch"] > 1 for m in read_metrics(metrics)), 60, "the next epoch")
            os.remove(self.path("hold"))
        text = self.finish(job, 120)
        self.assert_nothing_left()
        return read_metrics(metrics), text

    def check_same_curve_after_kill(self, held_step=None, **changes):
        whole, _ = self.run_job("whole", **changes)
        killed, text = self.run_job("killed", kill_rank=1, held_step=held_step, **changes)
        self.assertIn("SIGKILL", text)
        self.assertEqual([m["step"] for m in killed], list(range(1, 31)))
        self.assertGreater(killed[-1]["epoch"], whole[-1]["epoch"])
        # Same layout: bitwise equal, before the kill and from the checkpoint on.
        for one, other in zip(whole, killed):
            self.assertEqual((one["loss"], one["grad_norm"]), (other["loss"], other["grad_norm"]),
                             f"step {one['step']}")
        return killed

    def test_the_curve_is_bitwise_the_same_after_a_kill_with_all_axes(self):
        self.check_same_curve_after_kill(nproc=8, tp_size=2, pp_size=2)

    def test_the_curve_is_bitwise_the_same_after_a_kill_with_data_parallel_ranks(self):
        self.check_same_curve_after_kill(nproc=4)

    def test_a_kill_while_a_checkpoint_is_being_written_costs_that_one_alone(self):
        killed = self.check_same_curve_after_kill(nproc=2, held_step=20)
        self.assertEqual([m["step"] for m in killed if m["epoch"] > 1][0], 16)

    def test_a_run_from_given_weights_begins_with_them_again_before_its_first_checkpoint(self):
        self.run_job("given", nproc=1, steps=5)
        killed = self.check_same_curve_after_kill(nproc=2, init_from=self.path("given"), checkpoint_every=100)
        self.assertEqual([m["step"] for m in killed if m["epoch"] > 1][0], 1)

    def test_adapters_learn_on_beside_their_base_after_a_kill(self):
        self.run_job("given", nproc=1, steps=5)
        killed = self.check_same_curve_after_kill(nproc=4, tp_size=2, init_from=self.path("given"), lora_rank=16, lora_dropout=0.1, zero_stage=3)
        self.assertGreater([m["step"] for m in killed if m["epoch"] > 1][0], 1)

    def test_adapters_go_on_beside_the_weights_that_they_began_with_though_the_other_job_saves_again(self):
        adapters = {"init_from": self.path("given"), "lora_rank": 4, "lr_schedule": "constant", "warmup_steps": 0}
        self.run_job("given", nproc=1, steps=5)
        whole, _ = self.run_job("whole", nproc=2, steps=10, **adapters)
        self.run_job("cut", nproc=2, steps=5, **adapters)
        self.run_job("given", nproc=1, steps=10)
        rest, text = self.run_job("cut", nproc=2, steps=10, **adapters)
        self.assertNotIn("was trained beside", text)
        self.assertEqual([m["step"] for m in rest], list(range(1, 11)))
        for one, other in zip(whole, rest):
            self.assertEqual((one["loss"], one["grad_norm"]), (other["loss"], other["grad_norm"]), f"step {one['step']}")

    def test_the_curve_of_experts_is_bitwise_the_same_after_a_kill(self):
        self.check_same_curve_after_kill(nproc=8, model="moe-tiny", layers=2, ep_size=2, tp_size=2, pp_size=2)

    def test_the_curve_of_sharded_experts_with_a_routers_bias_is_bitwise_the_same_after_a_kill(self):
        self.check_same_curve_after_kill(nproc=4, model="deepseek-tiny", layers=2, router_bias_rate=0.01, ep_size=4, zero_stage=3)

    def test_experts_go_on_under_another_layout_with_the_same_losses(self):
        values = {"model": "moe-tiny", "layers": 2, "lr_schedule": "constant", "warmup_steps": 0}
        whole, _ = self.run_job("whole", nproc=1, steps=20, **values)
        self.run_job("first", nproc=8, steps=10, tp_size=2, pp_size=2, ep_size=2, **values)
        rest, _ = self.run_job("first", nproc=4, steps=20, ep_size=4, zero_stage=3, **values)
        self.assertEqual([m["step"] for m in rest], list(range(1, 21)))
        self.assertEqual([m["layout"] for m in rest[9:11]], ["dp2 (ep2) x tp2 x pp2", "dp4 (ep4) x tp1 x pp1"])
        for one, other in zip(whole, rest):
            for key in ("loss", "grad_norm"):
                self.assertLess(abs(one[key] / other[key] - 1), 1e-4, f"{key} of step {one['step']}")

    def test_a_checkpoint_goes_on_under_another_layout(self):
        whole, _ = self.run_job("whole", nproc=1, steps=20)
        self.run_job("first", nproc=4, steps=10, tp_size=2, dp_size=2)
        rest, _ = self.run_job("first", nproc=2, steps=20, pp_size=2)
        self.assertEqual([m["step"] for m in rest], list(range(1, 21)))
        # The learning rate's cosine knows the whole length, so only the steps of equal plans compare.
        self.assertEqual(rest[10]["layout"], "dp1 x tp1 x pp2")
        self.assertEqual(whole[-1]["tokens"], rest[-1]["tokens"])


if __name__ == "__main__":
    side_by_side.main(at_once=3)
