"""convene-train --device cuda on the emulated GPU (worker_runtime/device/emulated), beside --device cpu."""

import unittest

from tests.support.convene_testing import CONVENE_TRAIN, ConveneTestCase, read_metrics

EMULATED_TRAIN = "tests/e2e/convene_train_emulated"


class EmulatedGpuTest(ConveneTestCase):

    def losses(self, program, name, order="forward", **changes):
        metrics = self.path(f"{name}.jsonl")
        self.finish(self.start(program, *self.train_arguments(
            metrics_file=metrics, checkpoint_dir=self.path(f"checkpoints-{name}"), token_cache_dir=self.path(f"tokens-{name}"),
            precision="fp32", steps=12, **changes), CONVENE_EMULATED_ORDER=order), 120)
        losses = [line["loss"] for line in read_metrics(metrics) if "loss" in line]
        self.assertEqual(len(losses), 12)
        return losses

    def test_a_gpu_learns_what_a_cpu_learns_and_the_same_bits_in_any_order_of_threads(self):
        on_cpu = self.losses(CONVENE_TRAIN, "cpu", device="cpu")
        self.assertLess(on_cpu[-1], on_cpu[0] - 0.3)
        on_gpu = self.losses(EMULATED_TRAIN, "gpu", device="cuda")
        for cpu, gpu in zip(on_cpu, on_gpu):
            self.assertAlmostEqual(cpu, gpu, delta=1e-4)
        self.assertEqual(self.losses(EMULATED_TRAIN, "random", order="random", device="cuda"), on_gpu)
        self.assertEqual(self.losses(EMULATED_TRAIN, "graphs", order="reverse", device="cuda", cuda_graphs="true"), on_gpu)


if __name__ == "__main__":
    unittest.main()
