"""`convene plan` as a person and a program use it, and its files in the hands of the trainer and of bash."""

import json
import os
import re
import subprocess
import unittest

from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase


class PlanTest(ConveneTestCase):

    def plan(self, *arguments, code=0):
        return self.finish(self.start(CONVENE, "plan", *arguments), 20, code)

    def write(self, name, text):
        path = self.path(name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_the_seeds_question(self):
        said = self.plan("--model", "llama-3-70b", "--gpus", "1024", "--tokens", "2T", "--sequence-length", "4096", "--global-batch-size", "2048",
                         "--explain")
        self.assertIn("llama-3-70b: 70.6B parameters", said)
        days = float(re.search(r"2\.0T tokens in ([0-9.]+) days", said).group(1))
        self.assertTrue(15 < days < 26, days)
        self.assertEqual(said.count("this is the choice"), 1)

    def test_json_is_json_and_agrees_with_the_text(self):
        job = ["--model", "qwen3-30b-a3b", "--gpus", "16", "--tokens", "1T", "--layouts", "1"]
        answer = json.loads(self.plan(*job, "--json"))
        self.assertEqual(answer["gpus"], 16)
        best = answer["layouts"][0]
        self.assertAlmostEqual(sum(best["seconds"].values()), best["step_seconds"], delta=1e-6 * best["step_seconds"])
        parts = dict(best["memory_bytes"])
        self.assertAlmostEqual(parts.pop("total"), sum(parts.values()), delta=100)
        self.assertIn(f"{best['days']:.1f} days", self.plan(*job))

    def test_where_nothing_fits_the_answer_says_what_to_change_and_the_code_is_1(self):
        job = ["--model", "llama-3-405b", "--gpus", "8"]
        self.assertIn("fits", self.plan(*job, code=1))
        answer = json.loads(self.plan(*job, "--json", code=1))
        self.assertEqual(answer["layouts"], [])
        self.assertNotEqual(answer["ways_to_fit"], [])

    def test_the_trainer_plans_the_same_memory_with_the_emitted_file(self):
        job = ["--model", "llama-3.2-1b", "--gpus", "8", "--sequence-length", "2048", "--tp-size", "2", "--data", self.write("text.txt", "words " * 999)]
        config = self.write("train.yaml", self.plan(*job, "--emit", "train.yaml"))
        best = json.loads(self.plan(*job, "--json"))["layouts"][0]
        said = self.finish(self.start(CONVENE_TRAIN, "--config", config, "--print-memory-plan", "--device", "cpu", HOME=self.directory), 60)
        self.assertIn("x tp2 x pp1 on 8 ranks", said)
        gib = float(re.search(r"each of its 8 ranks, on .*: ([0-9.]+) GiB", said).group(1))
        # On a GPU the head's logits take up to 512 MiB at once, on a CPU 64.
        memory = best["memory_bytes"]
        self.assertLess(abs(gib * 2**30 - (memory["total"] - memory["logits"])), 0.05 * memory["total"] + 2**28)

    def test_a_model_is_also_a_folder_of_hugging_face_and_the_trainer_takes_the_file_as_it_is(self):
        folder = self.path("my models/tiny $(one)")
        os.makedirs(folder)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
                       "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 512}, file)
        job = ["--model", folder + "/", "--gpus", "2", "--sequence-length", "64", "--data", self.write("text.txt", "words " * 999)]
        self.assertEqual(json.loads(self.plan(*job, "--json"))["parameters"], 213_568)
        config = self.write("train.yaml", self.plan(*job, "--emit", "train.yaml"))
        said = self.finish(self.start(CONVENE_TRAIN, "--config", config, "--print-memory-plan", "--device", "cpu", HOME=self.directory), 60)
        self.assertIn("213,568 parameters", said)
        self.assertIn("\n#SBATCH --job-name=tiny___one_\n", self.plan(*job, "--emit", "sbatch"))
        self.assertIn("hf download", self.plan("--model", self.path("none"), code=64))

    def test_bash_reads_the_batch_file(self):
        said = self.plan("--gpus", "16", "--emit", "sbatch")
        subprocess.run(["bash", "-n", self.write("train.sbatch", said)], check=True)
        # A task without a number gets one CPU, for all workers of its node.
        self.assertIn("\n#SBATCH --cpus-per-task=96\n", said)
        self.assertIn(" || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n", said)
        self.assertIn("\nsrun --kill-on-bad-exit=0 ", said)  # Without exec: srun answers a TERM of its own with KILL.

    def test_bad_input_is_64_and_told(self):
        self.assertIn('did you mean "llama-3-70b"', self.plan("--model", "llama-3-70", code=64))
        self.assertIn("h100", self.plan("--gpu", "h10", code=64))
        self.assertIn("--nodes-of", self.plan("--gpus", "12", code=64))
        self.assertIn("no layout of 8 GPUs is legal for this model, batch and sequence. Without --tp-size 3 some are. ",
                      self.plan("--tp-size", "3", code=64))
        self.assertIn("`convene bench --save FILE all_reduce compute` writes the file: ", self.plan("--measure", self.path("none"), code=64))
        self.assertIn("no layout fits", self.plan("--model", "llama-3-405b", "--emit", "sbatch", code=64))
        self.assertIn("did you mean node?", self.plan("--cluster", self.write("cluster.yaml", "gpu: h100\nnodes: 4\n"), code=64))


if __name__ == "__main__":
    unittest.main()
