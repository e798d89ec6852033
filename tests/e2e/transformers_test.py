"""Folders of Hugging Face's transformers, 4 and 5: imported, trained from, exported, loaded again; of each family.

Needs transformers in the environment of tests: tools/torch_environment --transformers. tools/nightly tests both versions.
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
FIRST_LETTER = 0x4e00
# Beside the window of families that have one, which is 7.
PROMPTS = [[(7 + 31 * i * i + length) % 256 for i in range(length)] for length in (1, 5, 19)]
NEW_TOKENS = 24


def setUpModule():
    need_torch()
    if not glob.glob(f"{torch_environment.VENV}/lib/python3*/site-packages/transformers"):
        why = f"SKIPPED: no transformers in {torch_environment.VENV} (tools/torch_environment --transformers brings it)"
        print(why, flush=True)
        raise unittest.SkipTest(why)


def text_of(ids):
    return "".join(chr(FIRST_LETTER + one) for one in ids)


def write_letters(path):
    """A tokenizer of 256 letters, each a token: every answer is a text, and shows its ids."""
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
                   "model": {"type": "BPE", "vocab": {text_of([one]): one for one in range(256)}, "merges": []}}, f)


class TransformersTest(TorchTestCase):
    def run_to_end(self, program, *arguments, **environment):
        return self.finish(self.start_torch(program, *arguments, **environment), 300)

    def script_says(self, *arguments):
        return self.run_to_end(torch_environment.PYTHON, find_program(SCRIPT), *arguments)

    def make(self, name):
        """A folder with one of each family."""
        self.script_says("make", self.path(name))
        folders = [os.path.join(self.path(name), family) for family in sorted(os.listdir(self.path(name)))]
        self.assertEqual(len(folders), 20)
        return folders

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
        folders = self.make("made")
        for folder in folders:
            self.through_convene(folder)
        pairs = [path for folder in folders for end in (".again", ".trained") for path in (folder, folder + end)]
        said = [json.loads(line) for line in self.script_says("compare", *pairs).splitlines() if line.startswith("{")]
        self.assertEqual(len(said), 2 * len(folders))
        for folder, again, trained in zip(folders, said[::2], said[1::2]):
            self.assertTrue(again["same"], folder)
            self.assertLess(again["logits"], 1e-5, folder)
            self.assertFalse(trained["same"], folder)
            self.assertGreater(trained["logits"], 1e-3, folder)

    def test_each_family_goes_on_with_a_text_as_transformers_does(self):
        folders = self.make("asked")
        write_letters(self.path("tokenizer.json"))
        with open(self.path("prompts.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"prompt": text_of(prompt)}) + "\n" for prompt in PROMPTS)
        with open(self.path("prompts.json"), "w", encoding="ascii") as f:
            json.dump(PROMPTS, f)
        said = self.script_says("generate", self.path("prompts.json"), NEW_TOKENS, *folders)
        said = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        self.assertEqual(len(said), len(folders))
        for folder, wanted in zip(folders, said):
            with self.subTest(family=os.path.basename(folder)):
                # Else the choice would be a matter of rounding.
                self.assertGreater(wanted["distance"], 1e-4)
                answers = self.path("answers.jsonl")
                self.run_to_end(CONVENE, "generate", "--model", folder, "--tokenizer", self.path("tokenizer.json"), "--device", "cpu", "--prompts",
                                self.path("prompts.jsonl"), "--output", answers, "--max-new-tokens", NEW_TOKENS, "--ignore-end",
                                PATH=f"{os.path.dirname(os.path.abspath(find_program(TRAIN)))}:{os.environ['PATH']}")
                with open(answers, encoding="utf-8") as f:
                    self.assertEqual([json.loads(line)["text"] for line in f], [text_of(ids) for ids in wanted["tokens"]])

    def test_two_layouts_begin_with_one_loss(self):
        self.make("layouts")
        for family in ("llama", "gpt2", "phi3", "qwen3_moe", "gpt_oss"):
            folder = self.path(f"layouts/{family}")
            alone = self.train(folder, family + ".1")
            for flags in (["--tp-size", 2], ["--pp-size", 2], ["--zero-stage", 3]):
                both = self.train(folder, f"{family}{flags[0]}", *flags, ranks=2)
                self.assertLess(abs(alone[0] - both[0]), 1e-5)

    def test_as_many_questions_are_answered_right_as_by_pytorch(self):
        self.make("asked")
        for family in ("llama", "gpt_oss"):
            folder = self.path(f"asked/{family}")
            wanted = json.loads(self.script_says("choices", folder, self.path("choices.bin")).splitlines()[-1])
            said = self.run_to_end(CONVENE, "evaluate", "--model", folder, "--device", "cpu", "--choices", self.path("choices.bin"),
                                   PATH=f"{os.path.dirname(find_program(TRAIN))}:{os.environ['PATH']}")
            found = re.search(r"60 questions, right (\S+) by the loss of an ending \(acc\), (\S+) by", said)
            self.assertEqual([float(number) for number in found.groups()], [round(wanted["acc"], 4), round(wanted["acc_norm"], 4)])


if __name__ == "__main__":
    unittest.main()
