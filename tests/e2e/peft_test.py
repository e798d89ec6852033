"""Adapters of Hugging Face's PEFT: trained further as PEFT trains them, on several layouts, and given back.

Needs PEFT in the environment of tests: tools/torch_environment --transformers.
"""

import glob
import json
import os
import unittest

from tests.support import torch_environment
from tests.support.convene_testing import find_program
from tests.support.torch_testing import CONVENE, TorchTestCase, need_torch

TRAIN = "worker_runtime/trainer/convene-train"
SCRIPT = "tests/e2e/peft_script.py"
# 24 samples of 16 bytes: one step takes them all, in whatever order.
TEXT = "the cat sat on the mat, and the dog lay down by it. " * 8
SAMPLES = 24
LAYOUTS = ([], ["--tp-size", 2], ["--pp-size", 2], ["--zero-stage", 3], ["--zero-stage", 2, "--micro-batch-size", 5])


def setUpModule():
    need_torch()
    if not glob.glob(f"{torch_environment.VENV}/lib/python3*/site-packages/peft"):
        why = f"SKIPPED: no PEFT in {torch_environment.VENV} (tools/torch_environment --transformers brings it)"
        print(why, flush=True)
        raise unittest.SkipTest(why)


class PeftTest(TorchTestCase):
    def run_to_end(self, program, *arguments):
        return self.finish(self.start_torch(program, *arguments), 300)

    def script_says(self, *arguments):
        said = self.run_to_end(torch_environment.PYTHON, find_program(SCRIPT), *arguments)
        return [json.loads(line) for line in said.splitlines() if line[:1] in "0123456789{"]

    def train(self, adapter, name, *flags, ranks=1):
        """Trains from the adapter; the losses."""
        self.run_to_end(CONVENE, "run", "--standalone", "--nproc-per-node", ranks, find_program(TRAIN), "--init-adapter", adapter, "--data",
                        self.path("data.txt"), "--steps", 5, "--global-batch-size", SAMPLES, "--sequence-length", 16, "--validation-fraction", 0,
                        "--device", "cpu", "--tokenizer", "byte", "--lr-schedule", "constant", "--learning-rate", 0.01, "--warmup-steps", 0, "--epsilon",
                        1e-3, "--clip-grad-norm", 0, "--token-cache-dir", self.path("cache"), "--checkpoint-dir", self.path(name), "--metrics-file",
                        self.path(f"{name}.jsonl"), *flags)
        with open(self.path(f"{name}.jsonl"), encoding="utf-8") as f:
            return [line["loss"] for line in map(json.loads, f) if "loss" in line]

    def export(self, name, *flags):
        output = self.path(f"{name}.{len(flags)}")
        self.run_to_end(CONVENE, "checkpoint", "export", self.path(name), "--output", output, *flags)
        return output

    def test_adapters_learn_as_peft_teaches_them_and_go_back(self):
        with open(self.path("data.txt"), "w", encoding="ascii") as f:
            f.write(TEXT[:SAMPLES * 16 + 1])
        base = self.path("models")
        wanted = self.script_says("make", base, self.path("data.txt"))[-1]
        self.assertEqual(sorted(wanted), ["deepseek_v3", "gpt2", "llama", "mixtral", "qwen3", "qwen3_moe"])
        questions, bounds = [], []
        for family, losses in wanted.items():
            model = os.path.join(base, family)
            experts = ["--router-balance-loss", 0] if family == "deepseek_v3" else []
            layouts = LAYOUTS if family in ("llama", "gpt2") else LAYOUTS[:2] + (["--ep-size", 2],) if family == "qwen3_moe" else LAYOUTS[:2]
            for number, layout in enumerate(layouts):
                name = f"{family}{number}"
                for loss, expected in zip(self.train(model + ".peft", name, *layout, *experts, ranks=2 if layout else 1), losses):
                    self.assertAlmostEqual(loss, expected, places=4)
                adapters = self.export(name, "--format", "peft")
                questions.append({"adapters": [adapters, model + ".trained"]})
                bounds.append((0, 1e-5))
            questions += [{"logits": [model, adapters, self.export(name)]}, {"logits": [model, adapters, model]}]
            bounds += [(0, 1e-4), (1e-2, 100)]
        with open(self.path("questions"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(question) + "\n" for question in questions)
        answers = self.script_says("compare", self.path("questions"))
        self.assertEqual(len(answers), len(questions))
        for question, answer, (least, most) in zip(questions, answers, bounds):
            self.assertTrue(least <= answer < most, f"{question}: {answer}")


if __name__ == "__main__":
    unittest.main()
