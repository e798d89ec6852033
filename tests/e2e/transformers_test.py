"""Folders of Hugging Face's transformers, 4 and 5: imported, trained from, exported, loaded again; of each family.

CONVENE_TRANSFORMERS names folders with other versions to test (pip install --target FOLDER transformers==4.57.6), with ':' between them.
"""

import glob
import json
import os
import re
import unittest

from tests.support import torch_environment
from tests.support.convene_testing import find_program
from tests.support.torch_testing import CONVENE, TorchTestCase, need_torch

TRAIN = "worker_runtime/trainer/convene-train"
SCRIPT = "tests/e2e/transformers_script.py"
STEPS = 5


def setUpModule():
    need_torch()
    if not libraries():
        why = f"SKIPPED: no transformers in {torch_environment.VENV}, and no CONVENE_TRANSFORMERS"
        print(why, flush=True)
        raise unittest.SkipTest(why)


def libraries():
    """For PYTHONPATH; "" is the environment's own."""
    own = [""] if glob.glob(f"{torch_environment.VENV}/lib/python3*/site-packages/transformers") else []
    return own + [path for path in os.environ.get("CONVENE_TRANSFORMERS", "").split(":") if path]


class TransformersTest(TorchTestCase):
    def run_to_end(self, program, *arguments, **environment):
        return self.finish(self.start_torch(program, *arguments, **environment), 300)

    def script_says(self, library, *arguments):
        variables = {"PYTHONPATH": library} if library else {}
        return self.run_to_end(torch_environment.PYTHON, find_program(SCRIPT), *arguments, **variables)

    def train(self, folder, name, *flags, ranks=1):
        """Trains from the folder; the losses."""
        with open(self.path("data.txt"), "w", encoding="ascii") as f:
            f.write("the cat sat on the mat. " * 400)
        self.run_to_end(CONVENE, "run", "--standalone", "--nproc-per-node", ranks, find_program(TRAIN), "--init-from", folder, "--data",
                        self.path("data.txt"), "--steps", STEPS, "--global-batch-size", 4, "--sequence-length", 24, "--device", "cpu",
                        "--token-cache-dir", self.path("cache"), "--checkpoint-dir", self.path(name), "--metrics-file", self.path(f"{name}.jsonl"), *flags)
        with open(self.path(f"{name}.jsonl"), encoding="utf-8") as f:
            return [line["loss"] for line in map(json.loads, f) if "loss" in line]

    def export(self, checkpoint, output):
        self.run_to_end(CONVENE, "checkpoint", "export", checkpoint, "--format", "hf", "--output", output)

    def through_convene(self, folder):
        self.run_to_end(CONVENE, "checkpoint", "import", folder, "--output", folder + ".imported")
        self.export(folder + ".imported", folder + ".again")
        job = "job." + folder.replace("/", "_")
        losses = self.train(folder, job)
        self.assertEqual(len(losses), STEPS)
        self.assertLess(losses[-1], losses[0])
        self.export(self.path(job), folder + ".trained")

    def test_each_family_goes_in_and_comes_out(self):
        for number, library in enumerate(libraries()):
            base = self.path(f"made{number}")
            self.script_says(library, "make", base)
            folders = [os.path.join(base, family) for family in sorted(os.listdir(base))]
            self.assertEqual(len(folders), 20)
            for folder in folders:
                self.through_convene(folder)
            pairs = [path for folder in folders for end in (".again", ".trained") for path in (folder, folder + end)]
            said = [json.loads(line) for line in self.script_says(library, "compare", *pairs).splitlines() if line.startswith("{")]
            self.assertEqual(len(said), 2 * len(folders))
            for folder, again, trained in zip(folders, said[::2], said[1::2]):
                self.assertTrue(again["same"], folder)
                self.assertLess(again["logits"], 1e-5, folder)
                self.assertFalse(trained["same"], folder)
                self.assertGreater(trained["logits"], 1e-3, folder)

    def test_two_layouts_begin_with_one_loss(self):
        base = self.path("layouts")
        self.script_says(libraries()[0], "make", base)
        for family in ("llama", "gpt2", "phi3", "qwen3_moe", "gpt_oss"):
            folder = os.path.join(base, family)
            alone = self.train(folder, family + ".1")
            for flags in (["--tp-size", 2], ["--pp-size", 2], ["--zero-stage", 3]):
                both = self.train(folder, f"{family}{flags[0]}", *flags, ranks=2)
                self.assertLess(abs(alone[0] - both[0]), 1e-5)

    def test_as_many_questions_are_answered_right_as_by_pytorch(self):
        base = self.path("asked")
        self.script_says(libraries()[0], "make", base)
        for family in ("llama", "gpt_oss"):
            folder = os.path.join(base, family)
            wanted = json.loads(self.script_says(libraries()[0], "choices", folder, self.path("choices.bin")).splitlines()[-1])
            said = self.run_to_end(CONVENE, "evaluate", "--model", folder, "--device", "cpu", "--choices", self.path("choices.bin"),
                                   PATH=f"{os.path.dirname(find_program(TRAIN))}:{os.environ['PATH']}")
            found = re.search(r"60 questions, right (\S+) by the loss of an ending \(acc\), (\S+) by", said)
            self.assertEqual([float(number) for number in found.groups()], [round(wanted["acc"], 4), round(wanted["acc_norm"], 4)])


if __name__ == "__main__":
    unittest.main()
