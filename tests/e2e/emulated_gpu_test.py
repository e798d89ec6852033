"""convene-train --device cuda on the emulated GPU (worker_runtime/device/emulated) learns what --device cpu learns.

The two devices add in another order, so figures differ a little. Losses are about 5.5, norms of gradients about 2. In fp32 a unit in the last
place of such a loss is 5e-7; a mean over 120 tokens shows far less of it (1e-8 was seen in losses, 1e-7 in norms, over five steps).
FP32_DELTA is two units. In bf16 a unit in the last place of an activation is 2^-8 of it, and a sum that is rounded to the other side
moves it by as much: 1e-4 was seen in losses, 4e-4 in norms. Muon makes whole steps of gradients that are small, and so of their rounding: 5e-7 was
seen in norms, over five steps.
"""

import json
import os
import re
import shutil
import signal
import unittest

from tests.support.convene_testing import (CONVENE, CONVENE_TRAIN, CONVENED, ConveneTestCase, find_program, read_metrics,
                                           wait_until)

EMULATED_TRAIN = "tests/e2e/convene_train_emulated"
STEPS = 5
FP32_DELTA = 1e-6
MUON_DELTA = 1e-5
BF16_DELTA = 2e-3


class EmulatedGpuTest(ConveneTestCase):

    def train(self, program, name, order="forward", first_step=1, environment=None, **changes):
        """(loss, norm of the gradient) of each step from `first_step` on, which must be the first of this run. Its output is then self.said."""
        metrics = self.path(f"{name}.jsonl")
        # Two blocks of the smallest model; rows of 40 tokens, which do not fill two tiles of attention; three microbatches, so that both
        # gradient buffers meet the one activation slot in turns.
        arguments = {
            "layers": 2, "sequence_length": 40, "global_batch_size": 3, "validation_samples": 1, "steps": STEPS, "checkpoint_dir": None,
            "checkpoint_every": None, "metrics_file": metrics, **changes}
        started = self.start(program, *self.train_arguments(**arguments), **{"CONVENE_EMULATED_ORDER": order, **(environment or {})})
        self.said = self.finish(started, 120)
        self.assertEqual("CUDA graphs  on" in self.said, "cuda_graphs" in changes, self.said)
        steps = [(line["loss"], line["grad_norm"]) for line in read_metrics(metrics)]
        self.assertEqual(len(steps), arguments["steps"] + 1 - first_step)
        return steps

    def assert_close(self, one, other, delta):
        for step, pair in enumerate(zip(one, other), start=1):
            for first, second in zip(*pair):
                self.assertAlmostEqual(first, second, delta=delta, msg=f"step {step} of {one} and {other}")

    def test_in_fp32_a_gpu_learns_what_a_cpu_learns(self):
        on_cpu = self.train(CONVENE_TRAIN, "cpu", device="cpu", precision="fp32")
        self.assertLess(on_cpu[-1][0], on_cpu[0][0] - 0.2)
        on_gpu = self.train(EMULATED_TRAIN, "gpu", device="cuda", precision="fp32")
        self.assert_close(on_cpu, on_gpu, FP32_DELTA)
        # The same bits whatever order threads and streams run in, op by op or as graphs.
        again = self.train(EMULATED_TRAIN, "graphs", order="reverse", device="cuda", precision="fp32", cuda_graphs="true")
        self.assertEqual(again, on_gpu)

    def test_experts_latents_sinks_and_muon_learn_on_a_gpu_what_they_learn_on_a_cpu(self):
        for model, optimizer, delta in (("moe-tiny", "adamw", FP32_DELTA), ("mla-tiny", "muon", MUON_DELTA), ("gpt-oss-tiny", "muon", MUON_DELTA)):
            with self.subTest(model):
                common = {"model": model, "optimizer": optimizer, "precision": "fp32"}
                on_cpu = self.train(CONVENE_TRAIN, f"{model}-cpu", device="cpu", **common)
                self.assertLess(on_cpu[-1][0], on_cpu[0][0] - 0.1)
                on_gpu = self.train(EMULATED_TRAIN, f"{model}-gpu", order="random", device="cuda", **common)
                self.assert_close(on_cpu, on_gpu, delta)

    def test_a_start_takes_the_choices_that_an_earlier_one_timed_and_gives_the_same_bits(self):
        def train(name, fastest, **changes):
            """(curve, products known, products timed); the other algorithm than `fastest` is slow, and the two round differently."""
            curve = self.train(EMULATED_TRAIN, name, environment={"CONVENE_EMULATED_FASTEST": fastest}, device="cuda", precision="fp32", **changes)
            said = re.search(r"algorithms of products: (\d+) known, (\d+) timed in [\d.]+ s; kept (.+)", self.said)
            self.assertIsNotNone(said, self.said)
            return curve, int(said.group(1)), int(said.group(2)), said.group(3)

        curve, known, timed, place = train("first", "1")
        self.assertEqual(known, 0)
        self.assertGreater(timed, 5)
        again, known_again, timed_again, place_again = train("again", "0")
        self.assertEqual((again, known_again, timed_again, place_again), (curve, timed, 0, place))
        # Without the file the clock decides, and it shows.
        other, known_other, timed_other, place_other = train("other", "0", tuning_dir="none")
        self.assertNotEqual(other, curve)
        self.assertEqual((known_other, timed_other, place_other), (0, timed, "nowhere"))
        # A torn file is set aside, with one line, and timed anew.
        path = place.split("in ", 1)[1]
        with open(path, encoding="ascii") as file:
            whole = file.read()
        with open(path, "w", encoding="ascii") as file:
            file.write(whole[:len(whole) // 2])
        _, known_mended, timed_mended, _ = train("mended", "1")
        self.assertEqual((known_mended, timed_mended), (0, timed))
        self.assertEqual(self.said.count("is not used"), 1, self.said)
        with open(path, encoding="ascii") as file:
            mended = file.read()
        self.assertEqual(*(sorted(line.split(" ", 1)[1] for line in text.splitlines()[2:-1]) for text in (mended, whole)))
        # With the flag nothing is timed, and nothing is said.
        self.train(EMULATED_TRAIN, "flag", device="cuda", precision="fp32", deterministic="true")
        self.assertNotIn("algorithms of products", self.said)

    def test_a_spare_with_an_open_gpu_goes_on_with_the_same_bits(self):
        undisturbed = self.train(EMULATED_TRAIN, "cold", device="cuda", precision="fp32", deterministic="true", steps=40)
        program = self.path("convene-train")  # The agent knows the trainer by its name.
        os.symlink(find_program(EMULATED_TRAIN), program)
        job = self.start(CONVENE, "run", "--standalone", "--max-restarts", 3, "--warm-workers", "auto", "--no-python", program,
                         *self.train_arguments(layers=2, sequence_length=40, global_batch_size=3, validation_samples=1, steps=40, device="cuda",
                                               precision="fp32", deterministic="true", checkpoint_every=1))
        wait_until(lambda: "spares that are ready to become workers: 1" in self.output(job), 60, lambda: self.output(job))
        self.wait_for_step(3)
        os.kill(self.workers()[0], signal.SIGKILL)
        text = self.finish(job, 120)
        self.assertIn("1 of 1 workers start from spares", text)
        self.assertNotIn("start cold", text)
        self.assertEqual([(line["loss"], line["grad_norm"]) for line in read_metrics(self.path("metrics.jsonl"))], undisturbed)

    def test_a_trace_shows_when_the_gpu_worked_by_the_hosts_clock(self):
        trace = self.path("trace.json")
        self.train(EMULATED_TRAIN, "traced", device="cuda", precision="fp32", trace="steps=2:3", trace_file=trace)
        with open(trace, encoding="utf-8") as file:
            slices = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
        steps = [event for event in slices if event["name"] in ("step 2", "step 3")]
        passes = [event for event in slices if "microbatch" in event["args"]]
        products = [event for event in slices if event["name"] == "MatMul"]
        self.assertEqual(len(steps), 2)
        self.assertEqual(len(passes), 2 * 2 * 3)  # steps, directions, micro batches
        inexact = 5000
        for event in passes:
            self.assertGreater(event["ts"], min(step["ts"] for step in steps) - inexact)
            self.assertLess(event["ts"] + event["dur"], max(step["ts"] + step["dur"] for step in steps) + inexact)
            self.assertGreater(sum(event["ts"] <= product["ts"] and product["ts"] + product["dur"] <= event["ts"] + event["dur"] + 0.0015
                                   for product in products), 5)

    def test_a_rank_with_a_gpu_tells_the_job_how_long_it_computes(self):
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", 0, log="daemon.log")
        port = wait_until(lambda: re.search(r"rendezvous on 127.0.0.1:(\d+)", self.output(daemon)), 30, "the daemon").group(1)
        self.start(CONVENE, "run", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "run", "--rdzv-conf", "is_host=0", "--no-python",
                   find_program(EMULATED_TRAIN), *self.train_arguments(layers=2, sequence_length=40, global_batch_size=3, steps=100_000,
                                                                       device="cuda", checkpoint_dir=None, checkpoint_every=None))

        def rank_that_tells():
            text = self.finish(self.start(CONVENE, "status", "--endpoint", f"127.0.0.1:{port}", "--json"), 20)
            ranks = [rank for job in json.loads(text)["jobs"] for node in job["nodes"] for rank in node["ranks"]]
            return next((rank for rank in ranks if rank["compute_ms"] > 0), None)

        rank = wait_until(rank_that_tells, 90, "a rank's times")
        self.assertLess(rank["wait_ms"], rank["compute_ms"])  # it is alone

    def test_a_card_that_is_too_old_is_refused_before_anything_starts(self):
        train = self.start(EMULATED_TRAIN, *self.train_arguments(device="cuda"), CONVENE_EMULATED_CAPABILITY="75")
        output = self.finish(train, 120, expected_code=64)
        self.assertIn("emulated GPU is too old (its compute capability is 7.5): take a card of 8.0 or later", output)

    def test_a_gpu_whose_shards_lie_in_host_memory_learns_the_same(self):
        on_gpu = self.train(EMULATED_TRAIN, "gpu", device="cuda", precision="fp32")
        # A host that does not wait for gradients, or a copy that does not wait for the host, works on old data in one of the orders.
        for order in ("forward", "reverse", "random"):
            for stage, offload in ((1, "optimizer"), (3, "all")):
                with self.subTest(order=order, offload=offload):
                    offloaded = self.train(EMULATED_TRAIN, f"{offload}-{order}", order=order, device="cuda", precision="fp32",
                                           zero_stage=stage, offload=offload)
                    self.assert_close(on_gpu, offloaded, FP32_DELTA)

    def test_a_gpu_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(self):
        for name, changes in (("kept", {}), ("offloaded", {"zero_stage": 1, "offload": "optimizer"})):
            with self.subTest(name):
                saved = self.path(f"saved-{name}")
                common = {"device": "cuda", "precision": "bf16", "checkpoint_dir": saved, "checkpoint_every": 2, "checkpoint_keep": STEPS, **changes}
                whole = self.train(EMULATED_TRAIN, name, order="random", **common)
                for step in range(3, STEPS + 1):
                    shutil.rmtree(f"{saved}/step_{step:08}", ignore_errors=True)
                resumed = self.train(EMULATED_TRAIN, f"{name}-resumed", order="forward", first_step=3, **common)
                self.assertEqual(resumed, whole[2:])

    def test_a_gpu_goes_on_from_the_nodes_memory_without_a_checkpoint_directory(self):
        program = self.path("convene-train")  # The agent knows the trainer by its name.
        os.symlink(find_program(EMULATED_TRAIN), program)
        job = self.start(CONVENE, "run", "--standalone", "--nproc-per-node", 1, "--max-restarts", 1, "--no-python", program,
                         *self.train_arguments(device="cuda", layers=2, steps=400, checkpoint_dir=None, checkpoint_every=None, replicate_every=2))
        self.wait_for_step(6)
        os.kill(self.workers()[0], signal.SIGKILL)
        wait_until(lambda: "from the nodes' memory" in self.output(job) or job.poll() is not None, 60, "a restart")
        self.assertIsNone(job.poll(), self.output(job))
        job.send_signal(signal.SIGTERM)
        self.finish(job, 60, 128 + signal.SIGTERM)

    def test_a_gpu_goes_back_from_a_spike_as_a_cpu_does(self):
        common = {"precision": "fp32", "max_gradient_spike": 1.06, "spike_window": 2, "learning_rate": 1e-9, "on_spike": "rollback",
                  "max_rollbacks": 1, "checkpoint_every": 2}
        on_cpu = self.train(CONVENE_TRAIN, "cpu", device="cpu", checkpoint_dir=self.path("of-cpu"), **common)
        on_gpu = self.train(EMULATED_TRAIN, "gpu", order="random", device="cuda", checkpoint_dir=self.path("of-gpu"), **common)
        self.assert_close(on_cpu, on_gpu, FP32_DELTA)
        self.assertEqual([read_metrics(self.path(f"{name}.jsonl"))[-1]["rollbacks"] for name in ("cpu", "gpu")], [1, 1])

    def test_in_bf16_a_gpu_learns_what_a_cpu_learns(self):
        # Documents of about twenty bytes, which do not see each other.
        common = {"precision": "bf16", "recompute": "full", "packed_documents": "true", "eod_token": ord("g")}
        on_cpu = self.train(CONVENE_TRAIN, "cpu", device="cpu", **common)
        on_gpu = self.train(EMULATED_TRAIN, "gpu", order="random", device="cuda", **common)
        self.assert_close(on_cpu, on_gpu, BF16_DELTA)


if __name__ == "__main__":
    unittest.main()
