"""`convene checkpoint` as a person uses it: what is there, weights out and in again, and mistakes."""

import json
import os
import re
import shutil
import struct
import unittest

from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase, make_text


class CheckpointCommandTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        make_text(self.path("text.txt"), 3000)
        self.train("--steps", 6, "--checkpoint-every", 2, "--checkpoint-keep", 3, "--checkpoint-dir", self.path("run"))
        self.steps = [self.path(f"run/step_0000000{step}") for step in (2, 4, 6)]

    def train(self, *flags):
        shape = [] if "--init-from" in flags else ["--layers", 2, "--hidden-size", 32, "--ffn-size", 48, "--heads", 4, "--kv-heads", 2, "--head-size", 8,
                                                   "--vocabulary-size", 256]
        return self.finish(self.start(CONVENE_TRAIN, "--data", self.path("text.txt"), "--sequence-length", 32, *shape, *flags, "--device", "cpu",
                                      "--token-cache-dir", self.path("cache")), 60)

    def checkpoint(self, *arguments, code=0):
        return self.finish(self.start(CONVENE, "checkpoint", *arguments), 60, code)

    def test_what_is_there_is_told(self):
        self.assertEqual([line.split(": ")[0] for line in self.checkpoint("list", self.path("run")).splitlines() if "step_" in line], self.steps[::-1])
        shown = self.checkpoint("show", self.path("run"))
        self.assertIn(self.steps[2] + ": step 6, ", shown)
        self.assertIn("  256 x 32  model.embed_tokens.weight\n", shown)
        count = sum(int(rows) * int(columns) for rows, columns in re.findall(r"^  (\d+) x (\d+)  ", shown, re.MULTILINE))
        self.assertIn(f"  {count} parameters\n", shown)
        self.assertEqual(self.checkpoint("verify", *self.steps).count(": whole\n"), 3)
        self.damage(self.steps[1])
        said = self.checkpoint("verify", *self.steps, code=1)
        self.assertEqual(said.count(": whole\n"), 2)
        self.assertIn("1 of 3 checkpoints are not whole, as said above", said)
        self.assertEqual(self.checkpoint("verify", self.path("run")), f"{self.steps[2]}: whole\n")  # a job's newest
        self.damage(self.steps[2])
        self.assertIn(self.steps[2], self.checkpoint("verify", self.path("run"), code=1))
        self.assertIn("cache has no checkpoints", self.checkpoint("verify", self.path("cache"), code=1))

    def test_a_size_that_no_layer_of_a_model_of_experts_has_makes_no_other_model(self):
        shape = ["--model", "moe-tiny", "--layers", 2, "--ffn-size", 192, "--expert-ffn-size", 96]
        command = [CONVENE_TRAIN, *shape, "--data", self.path("text.txt"), "--sequence-length", 32, "--device", "cpu", "--token-cache-dir", self.path("cache")]
        self.finish(self.start(*command, "--steps", 1, "--checkpoint-dir", self.path("experts")), 60)
        self.checkpoint("export", self.path("experts"), "--output", self.path("folder"))
        self.assertRegex(self.checkpoint("diff", self.path("experts"), self.path("folder")), r"^0 of \d+ tensors differ")
        self.assertIn("finished: 1 steps", self.finish(self.start(*command, "--steps", 1, "--init-from", self.path("folder")), 60))

    def damage(self, checkpoint):
        name = max((os.path.join(checkpoint, name) for name in os.listdir(checkpoint)), key=os.path.getsize)
        with open(name, "r+b") as file:
            file.seek(os.path.getsize(name) // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))

    def test_weights_go_out_and_come_in_again(self):
        self.checkpoint("export", self.path("run"), "--output", self.path("folder"), "--positions", 128)
        with open(self.path("folder/config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual((config["model_type"], config["hidden_size"], config["max_position_embeddings"]), ("llama", 32, 128))
        self.assertIn("its max_position_embeddings, 4096, is a guess", self.checkpoint("export", self.path("run"), "--output", self.path("guessed")))
        self.checkpoint("import", self.path("folder"), "--output", self.path("again"))
        same = self.checkpoint("diff", self.path("run"), self.path("again"))
        self.assertRegex(same, r"^0 of \d+ tensors differ")
        self.checkpoint("export", self.path("folder"), "--output", self.path("alone"), "--format", "safetensors")
        with open(self.path("alone"), "rb") as alone, open(self.path("folder/model.safetensors"), "rb") as whole:
            self.assertEqual(alone.read(), whole.read())
        # Weights alone: a run begins with them, and none goes on from them.
        self.assertIn("finished: 3 steps", self.train("--init-from", self.path("again"), "--steps", 3, "--checkpoint-dir", self.path("tuned")))
        self.assertNotIn("guess", self.checkpoint("export", self.path("tuned"), "--output", self.path("given")))
        with open(self.path("given/config.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["max_position_embeddings"], 128)
        said = self.train("--init-from", self.path("folder"), "--steps", 3)
        self.assertIn("finished: 3 steps", said)
        self.assertRegex(said, rf"begins with the weights of {self.path('folder')}, read in [0-9.]+ s\n")
        other = self.checkpoint("diff", self.steps[0], self.steps[2], "--rows", 3)
        self.assertEqual(other.count(" at ("), 3)
        self.checkpoint("average", self.steps[0], self.steps[2], "--output", self.path("mean"))
        sizes = [float(self.checkpoint("diff", self.steps[place], self.path("mean"), "--rows", 1).split("\n")[1].split()[0]) for place in (0, 2)]
        self.assertAlmostEqual(sizes[0], sizes[1], delta=1e-6 + 1e-3 * sizes[0])
        self.assertAlmostEqual(sizes[0], float(other.split("\n")[1].split()[0]) / 2, delta=1e-6 + 1e-3 * sizes[0])

    def test_old_ones_go_when_it_is_said(self):
        self.assertIn("removed 2 of 3 checkpoints", self.checkpoint("prune", self.path("run"), "--keep", 1))
        self.assertEqual(sorted(name for name in os.listdir(self.path("run")) if name.startswith("step_")), ["step_00000006"])

    def test_a_damaged_one_does_not_count_as_one_to_keep(self):
        self.damage(self.steps[2])
        said = self.checkpoint("prune", self.path("run"), "--keep", 1)
        self.assertIn("removed 1 of 3 checkpoints", said)
        self.assertIn(f"{self.steps[2]} does not count as one to keep", said)
        self.checkpoint("verify", self.steps[1])
        self.damage(self.steps[1])
        self.assertIn("is whole, so none was removed", self.checkpoint("prune", self.path("run"), "--keep", 1, code=1))
        self.assertTrue(os.path.exists(self.steps[1]))

    def test_a_mistake_costs_one_paragraph_and_leaves_nothing(self):
        self.checkpoint("export", self.path("run"), "--output", self.path("folder"))
        shutil.copytree(self.path("folder"), self.path("cut"))
        name = self.path("cut/model.safetensors")
        os.truncate(name, os.path.getsize(name) - 4)
        shutil.copytree(self.path("folder"), self.path("huge"))
        with open(self.path("huge/model.safetensors"), "r+b") as file:
            file.write(struct.pack("<Q", 1 << 60))
        os.mkdir(self.path("empty"))
        for arguments, code, words in (
                (["export", self.path("run"), "--output", self.path("folder")], 64, "is there already"),
                (["export", self.path("run"), "--output", self.path("new"), "--tokenizer", self.path("text.txt")], 64, "--tokenizer"),
                (["export", self.path("run"), "--output", "/proc/new"], None, "/proc/new"),
                (["export", self.path("run"), "--output", self.path("new"), "--format", "llmc"], 64, "hold GPT-2 alone"),
                (["export", self.path("run"), "--output", self.path("empty"), "--format", "safetensors"], 64, "the output is one file"),
                (["export", self.path("run"), "--output", self.path("new"), "--format", "llmc", "--positions", 9], 64, "--format hf alone"),
                (["import", self.path("cut"), "--output", self.path("new")], 64, "cut/model.safetensors"),
                (["import", self.path("huge"), "--output", self.path("new")], 64, "huge/model.safetensors"),
                (["import", self.path("text.txt"), "--output", self.path("new")], 64, "text.txt"),
                (["show", self.path("none")], 64, "none"),
                (["list", self.path("cache")], 64, "has no checkpoints"),
                (["average", self.steps[0], "--output", self.path("new")], 64, "name two checkpoints or more"),
                (["prune", self.path("run")], 64, "say with --keep N"),
                (["diff", self.steps[0]], 64, "name two checkpoints or folders")):
            with self.subTest(arguments=arguments):
                process = self.start(CONVENE, "checkpoint", *arguments)
                process.wait(60)
                said = self.output(process)
                self.assertEqual(process.returncode if code is None else code, process.returncode, said)
                self.assertNotEqual(process.returncode, 0)
                self.assertIn(words, said)
                self.assertFalse(os.path.exists(self.path("new")))


if __name__ == "__main__":
    unittest.main()
