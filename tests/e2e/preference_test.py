"""Pairs of answers (--preference-beta): the steps are PyTorch's, on every kind of layout and over a restart.

Needs transformers in the environment of tests: tools/torch_environment --transformers.
"""

import array
import glob
import json
import os
import shutil
import unittest

from tests.support import torch_environment
from tests.support.convene_testing import find_program
from tests.support.torch_testing import CONVENE, TorchTestCase, need_torch

TRAIN = "worker_runtime/trainer/convene-train"
SCRIPT = "tests/e2e/preference_script.py"
STEPS = 10
WEIGHTS = 2e-5  # as far as a weight may be from PyTorch's behind the last step: 1.2e-5 was seen with AVX2, where both add in another order than with AVX-512
PAIRS = [{"prompt": f"{a} and {b}? ", "chosen": "yes, " + a, "rejected": "no" + " never" * (i % 3)}
         for i, (a, b) in enumerate([("cat", "dog"), ("sun", "sea"), ("red", "blue"), ("one", "two"), ("oak", "elm"), ("ice", "tea"), ("day", "night")])]
LAYOUTS = (["--dp-size", 2], ["--tp-size", 2], ["--pp-size", 2, "--pp-schedule", "zb-h1"], ["--cp-size", 2, "--cp-method", "ring"], ["--zero-stage", 3])


def read_folder(folder):
    """The float tensors of its one file."""
    with open(f"{folder}/model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    tensors = {name: array.array("f", data[slice(*entry["data_offsets"])]) for name, entry in header.items() if name != "__metadata__"}
    assert all(entry["dtype"] == "F32" for name, entry in header.items() if name != "__metadata__"), header
    return tensors


def setUpModule():
    need_torch()
    if not glob.glob(f"{torch_environment.VENV}/lib/python3*/site-packages/transformers"):
        why = f"SKIPPED: no transformers in {torch_environment.VENV} (tools/torch_environment --transformers brings it)"
        print(why, flush=True)
        raise unittest.SkipTest(why)


class PreferenceTest(TorchTestCase):
    def train(self, name, *flags, ranks=1, code=0, **changes):
        """The metrics of the steps, or what a run that ends with another code says."""
        options = {"init-from": self.path("model"), "chat-template": self.path("model"), "tokenizer": "byte", "data": self.path("pairs.jsonl"),
                   "preference-beta": 0.3, "steps": STEPS, "global-batch-size": len(PAIRS), "micro-batch-size": 2, "sequence-length": 64,
                   "validation-fraction": 0, "device": "cpu", "lr-schedule": "constant", "learning-rate": 0.01, "warmup-steps": 0, "epsilon": 1e-3,
                   "beta1": 0.9, "beta2": 0.95, "weight-decay": 0, "clip-grad-norm": 0, "token-cache-dir": self.path("cache"),
                   "checkpoint-dir": self.path(name), "metrics-file": self.path(f"{name}.jsonl"), **changes}
        arguments = [text for key, value in options.items() for text in (f"--{key}", value)]
        said = self.finish(self.start_torch(CONVENE, "run", "--standalone", "--nproc-per-node", ranks, find_program(TRAIN), *arguments, *flags), 120, code)
        if code != 0:
            return said
        with open(self.path(f"{name}.jsonl"), encoding="utf-8") as f:
            return [line for line in map(json.loads, f) if "grad_norm" in line]

    def check(self, name, wanted, steps):
        """The steps of a run, and the weights behind the last one."""
        self.assertEqual(len(steps), STEPS)
        for i, step in enumerate(steps):
            self.assertAlmostEqual(step["loss"], wanted["losses"][i], delta=2e-5)
            self.assertAlmostEqual(step["grad_norm"], wanted["norms"][i], delta=1e-4 * wanted["norms"][i])
            self.assertAlmostEqual(step["reward_margin"], wanted["margins"][i], delta=1e-4)
            if i > 0:  # before the first update all margins are 0, but for rounding
                self.assertAlmostEqual(step["reward_accuracy"], wanted["right"][i], delta=1e-9)
        self.finish(self.start_torch(CONVENE, "checkpoint", "export", self.path(name), "--format", "hf", "--output",
                                     self.path(f"{name}_hf")), 60)
        ours, theirs = read_folder(self.path(f"{name}_hf")), read_folder(self.path("model/trained"))
        self.assertEqual(set(ours), set(theirs))
        for tensor, numbers in theirs.items():
            apart = max(abs(a - b) for a, b in zip(ours[tensor], numbers, strict=True))
            self.assertLess(apart, WEIGHTS, tensor)

    def test_pairs_teach_as_in_pytorch_on_every_layout_and_over_a_restart(self):
        with open(self.path("pairs.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps(pair) + "\n" for pair in PAIRS)
        os.mkdir(self.path("model"))
        said = self.finish(self.start_torch(torch_environment.PYTHON, find_program(SCRIPT), self.path("model"), self.path("pairs.jsonl"), STEPS), 300)
        wanted = json.loads([line for line in said.splitlines() if line.startswith("{")][-1])
        with open(self.path("model/chat_template.jinja"), "w", encoding="ascii") as f:
            f.write("{% for message in messages %}[{{ message.content }}]{% endfor %}")
        self.assertAlmostEqual(wanted["losses"][0], 0.693147, delta=1e-5)
        self.assertLess(wanted["losses"][-1], 0.6)
        self.check("one", wanted, self.train("one"))
        for i, layout in enumerate(LAYOUTS):
            with self.subTest(layout=layout):
                self.check(f"layout{i}", wanted, self.train(f"layout{i}", *layout, ranks=2))
        # The references are those of the first weights: kept, or made once more.
        self.train("again", steps=2)
        self.assertEqual(len(self.train("again", steps=3)), 3)
        os.remove(self.path("again/references"))
        self.check("again", wanted, self.train("again", "--tp-size", 2, ranks=2))
        # Other first weights at the same path: a run that begins anew makes them again, so its loss begins at log 2.
        for step in glob.glob(self.path("again/step_*")):
            shutil.rmtree(step)
        shutil.copyfile(self.path("again_hf/model.safetensors"), self.path("model/model.safetensors"))
        self.assertAlmostEqual(self.train("again", steps=1)[0]["loss"], 0.693147, delta=1e-5)
        self.refuse()

    def refuse(self):
        self.assertIn("needs an even sequence_length", self.train("no", code=64, **{"sequence-length": 63}))
        self.assertIn("which dropout would change", self.train("no", "--lora-rank", 2, "--lora-dropout", 0.1, code=64))
        self.assertIn("cp_method ring or allgather", self.train("no", "--cp-size", 2, "--cp-method", "ulysses", ranks=2, code=64))
        with open(self.path("one.jsonl"), "w", encoding="ascii") as f:
            f.write('{"prompt": "a", "chosen": "b"}\n')
        self.assertIn("the record has no 'rejected'", self.train("no", code=64, data=self.path("one.jsonl")))
        with open(self.path("empty.jsonl"), "w", encoding="ascii") as f:
            f.write('{"prompt": "a", "chosen": "b", "rejected": "c"}\n{"prompt": "a", "chosen": "", "rejected": "c"}\n')
        said = self.train("no", code=64, data=self.path("empty.jsonl"))
        self.assertIn("'chosen' has no answer", said)
        self.assertRegex(said, r"empty\.jsonl.*line 2|empty\.jsonl:2")
        with open(self.path("same.jsonl"), "w", encoding="ascii") as f:
            f.write('{"prompt": "a", "chosen": "b", "rejected": "b"}\n' * 9)
        self.assertIn("all chosen answers are the rejected ones", self.train("no", code=64, data=self.path("same.jsonl")))


if __name__ == "__main__":
    unittest.main()
