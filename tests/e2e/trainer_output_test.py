"""The trainer's output about its device: the memory plan, the profile, a run in bf16."""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase, read_metrics, wait_until


def device_totals(text):
    """The bytes of each table of a memory plan about the device."""
    units = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    tables = re.findall(r"^on the device +(\w+) +share$(.*?)^total +([\d.]+) +100.0%$", text,
                        re.MULTILINE | re.DOTALL)
    return [float(total) * units[unit] for unit, _, total in tables]


class TrainerOutputTest(ConveneTestCase):

    def test_the_memory_plan_needs_neither_ranks_nor_data(self):
        changes = {"data": "no/such/file.txt", "pp_size": 2, "tp_size": 2, "model": "llama-3-405b",
                   "precision": "bf16"}
        text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(**changes),
                                      "--print-memory-plan"), 20)
        self.assertIn("stage 0 of 2", text)
        self.assertIn("stage 1 of 2", text)
        totals = device_totals(text)
        # Per rank a quarter of 405 billion parameters: 2 bytes, 4 of gradients, 12 of the optimizer.
        self.assertEqual(len(totals), 2)
        for total in totals:
            self.assertGreater(total, 18 * 405e9 / 4)
            self.assertLess(total, 20 * 405e9 / 4)
        self.assertFalse(os.path.exists(self.path("checkpoints")))

    def test_a_memory_plan_that_is_lost_is_no_success(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            words = [str(word) for word in (CONVENE_TRAIN, *self.train_arguments(), "--print-memory-plan")]
            done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"stdout does not take the memory plan", done.stderr)

    def test_the_memory_plan_has_a_short_table_for_each_kind_of_rank(self):
        text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(pp_size=8, tp_size=2),
                                      "--print-memory-plan"), 20)
        self.assertIn("\nstage 0 of 8, each of its 2 ranks, on CPU", text)
        # 1f1b: an earlier stage keeps more micro batches.
        self.assertIn("\nstages 1 to 6 (shown: 1, which takes the most) of 8, each of its 2 ranks", text)
        self.assertIn("\nstage 7 of 8, each of its 2 ranks", text)
        self.assertEqual(len(device_totals(text)), 3)
        self.assertLess(len(text.splitlines()), 100)

    def test_the_memory_plan_has_the_copy_that_is_saved_beside_the_training(self):
        for value in ("true", "false"):
            text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(checkpoint_in_background=value), "--print-memory-plan"), 20)
            self.assertEqual("copy for checkpoints" in text, value == "true", text)

    def test_the_memory_plan_has_the_copies_in_the_nodes_memory(self):
        totals = {}
        for replicas in (0, 1):
            text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(replicas=replicas, replicate_every=5), "--print-memory-plan"), 20)
            self.assertIn(f"copies in the node's memory: {2 + 2 * replicas} shards, ", text)
            totals[replicas] = text
        self.assertNotEqual(totals[0], totals[1])

    def test_no_more_threads_compute_than_there_are_cpus(self):
        cpus = len(os.sched_getaffinity(0))  # of which a container's quota may keep fewer busy
        for wanted, at_most in ((1, 1), (cpus + 6, cpus)):
            text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(), "--print-memory-plan", OMP_NUM_THREADS=str(wanted)), 20)
            self.assertIn(int(re.search(r"^device +CPU, (\d+) thread", text, re.MULTILINE)[1]), range(1, at_most + 1))

    def test_full_recomputation_keeps_less(self):
        totals = []
        for recompute in ["none", "selective", "full"]:
            text = self.finish(self.start(
                CONVENE_TRAIN, *self.train_arguments(recompute=recompute, sequence_length=512),
                "--print-memory-plan"), 20)
            totals += device_totals(text)
        self.assertGreater(totals[0], totals[1])
        self.assertGreater(totals[1], totals[2])

    def test_a_profile_accounts_for_the_whole_step(self):
        text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(validation_every=4),
                                      "--profile"), 60)
        self.assertIn("profile of 27 steps", text)
        shares = {name: float(share) for name, share in
                  re.findall(r"^(\S+) +[\d.]+ +(-?[\d.]+)%$", text, re.MULTILINE)}
        self.assertEqual(set(shares),
                         {"products", "attention", "optimizer", "memory-bound", "communication",
                          "gaps"})
        self.assertAlmostEqual(sum(shares.values()), 100, delta=0.3)
        self.assertGreater(shares["gaps"], 0)

    def test_validation_sets_are_told_by_name_alike_on_one_rank_and_on_three(self):
        sets = [self.path(name) for name in ("digits.txt", "letters.txt")]
        for path, text in zip(sets, ("0123456789" * 40, "abcdefghij" * 90)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        flags = ["--validation-data", f"digits={sets[0]}", f"letters={sets[1]}"]
        changes = {"steps": 6, "validation_every": 3, "checkpoint_dir": None, "checkpoint_every": None}
        found = []
        for ranks in (1, 3):
            metrics = self.path(f"{ranks}.jsonl")
            text = self.finish(self.start(CONVENE, "run", "--standalone", "--nproc-per-node", str(ranks), CONVENE_TRAIN,
                                          *self.train_arguments(metrics_file=metrics, **changes), *flags), 60)
            self.assertRegex(text, r"validation loss of letters [0-9.]+ after step 6, [0-9.]+ bits a byte")
            self.assertRegex(text, r"  loss  .* validation [0-9.]+, [0-9.]+ bits a byte, digits [0-9.]+, [0-9.]+ bits a byte, letters [0-9.]+, ")
            self.assertEqual(text.count(", digits "), 1)  # the last one alone
            with open(metrics, encoding="utf-8") as file:
                found.append([line for line in map(json.loads, file) if "validation_loss" in line])
            self.assertEqual([(line["step"], line.get("validation_set")) for line in found[-1]],
                             [(step, name) for step in (3, 6) for name in (None, "digits", "letters")])
        for one, three in zip(*found):
            self.assertAlmostEqual(one["validation_loss"], three["validation_loss"], places=4)
        self.assertEqual(len({line["validation_loss"] for line in found[0]}), 6)

    def test_padding_is_no_load_of_experts(self):
        changes = {"model": "moe-tiny", "steps": 3, "global_batch_size": 1, "validation_every": 0, "checkpoint_dir": None, "checkpoint_every": None}
        found = []
        for ranks in (1, 2):  # of two ranks one has padding alone
            metrics = self.path(f"{ranks}.jsonl")
            self.finish(self.start(CONVENE, "run", "--standalone", "--nproc-per-node", str(ranks), CONVENE_TRAIN,
                                   *self.train_arguments(metrics_file=metrics, **changes)), 60)
            found.append(read_metrics(metrics))
        self.assertEqual(len(found[1]), 3)
        for one, two in zip(*found):
            for key in ("loss", "balance_loss", "expert_load", "expert_entropy", "experts_in_pieces"):
                self.assertAlmostEqual(one[key], two[key], places=4, msg=key)

    def test_spikes_are_skipped_by_the_rule_also_after_a_resume_and_on_other_ranks(self):
        flags = ["--max-loss-spike", "1.001", "--max-gradient-spike", "1.06", "--spike-window", "4", "--max-skipped-steps", "9"]

        def run(name, ranks, steps):
            arguments = self.train_arguments(metrics_file=self.path(f"{name}.jsonl"), checkpoint_dir=self.path(name), steps=steps,
                                             validation_every=0, learning_rate=1e-7, lr_schedule="constant", warmup_steps=0)
            text = self.finish(self.start(CONVENE, "run", "--standalone", "--nproc-per-node", str(ranks), CONVENE_TRAIN, *arguments, *flags), 60)
            return text, [line for line in read_metrics(self.path(f"{name}.jsonl")) if "loss" in line]

        text, whole = run("whole", 1, 30)
        means, count = [0, 0], 0
        skipped = []
        for line in whole:
            values = (line["loss"], line["grad_norm"])
            is_spike = count >= 4 and (values[0] > 1.001 * means[0] or values[1] > 1.06 * means[1])
            self.assertEqual(line.get("skipped", "") in ("loss_spike", "gradient_spike"), is_spike, line)
            if is_spike:
                skipped.append(line["step"])
                self.assertIn(f"skipped step {line['step']}: the ", text)
                continue
            count += 1
            means = [mean + (value - mean) / min(count, 4) for mean, value in zip(means, values)]
        self.assertGreater(len(skipped), 3)
        self.assertLess(len(skipped), 25)
        self.assertEqual({line.get("skipped") for line in whole}, {None, "loss_spike", "gradient_spike"})
        self.assertIn(f"skipped     {len(skipped)} of 30 steps changed no weight: loss or gradient was a spike", text)
        for ranks in (1, 2):
            name = f"resumed on {ranks}"
            run(name, 1, 13)
            _, resumed = run(name, ranks, 30)
            self.assertEqual([line.get("skipped") for line in resumed], [line.get("skipped") for line in whole])
            for one, other in zip(whole, resumed):
                self.assertAlmostEqual(one["loss"], other["loss"], delta=0 if ranks == 1 else 1e-4)

    def test_a_spike_takes_the_training_back_past_its_samples_also_after_it_dies(self):
        def run(name, ranks, *flags):
            arguments = self.train_arguments(metrics_file=self.path(f"{name}.jsonl"), checkpoint_dir=self.path(name), checkpoint_every=5,
                                             checkpoint_keep=20, steps=40, validation_every=0, learning_rate=1e-9, lr_schedule="constant",
                                             warmup_steps=0)
            text = self.finish(self.start(CONVENE, "run", "--standalone", "--nproc-per-node", str(ranks), CONVENE_TRAIN, *arguments, *flags), 90)
            return text, [line for line in read_metrics(self.path(f"{name}.jsonl")) if "loss" in line]

        _, plain = run("plain", 1)
        flags = ["--max-loss-spike", "1.001", "--spike-window", "4", "--max-skipped-steps", "30", "--on-spike", "rollback", "--max-rollbacks", "2"]
        text, back = run("back", 1, *flags)
        # The weights hardly move, so a batch has its loss whenever it comes. The rule, with the plain run's losses:
        step, skipped, saved, spikes, mean, expected = 0, 0, {0: (0, 0)}, [], 0.0, {}
        count = 0
        while step < 40:
            step += 1
            loss = plain[step + skipped - 1]["loss"] if step + skipped <= 40 else back[step - 1]["loss"]
            expected[step] = loss
            if count >= 4 and loss > 1.001 * mean:
                if len(spikes) < 2:
                    spikes.append(step)
                    begin = (step - 1) // 5 * 5
                    skipped += step - begin
                    step, (count, mean) = begin, saved[begin]
                    continue
            else:
                count += 1
                mean += (loss - mean) / min(count, 4)
            saved[step] = (count, mean)
        self.assertEqual(len(spikes), 2)
        for number, spike in enumerate(spikes, 1):
            self.assertIn(f"rolled back: step {spike} was a spike, so the training goes on after step {(spike - 1) // 5 * 5}, "
                          f"past the samples that led there; {number} of at most 2 rollbacks", text)
        self.assertEqual([line["step"] for line in back], list(range(1, 41)))
        self.assertIn("finished: 40 steps, after 2 rollbacks\n", text)
        made = 40 + sum(spike - (spike - 1) // 5 * 5 for spike in spikes)
        self.assertRegex(text, rf"skipped +\d+ of {made} steps changed no weight: loss or gradient was a spike")
        for line in back:
            self.assertAlmostEqual(line["loss"], expected[line["step"]], delta=1e-5)
        self.assertEqual(back[-1]["rollbacks"], 2)
        self.assertIn("loss_spike", {line.get("skipped") for line in back})
        # A run that dies leaves its checkpoints up to then: of before the first spike, and of behind the last one.
        for ranks, last in ((1, (spikes[0] - 1) // 5 * 5), (1, 30), (2, (spikes[0] - 1) // 5 * 5)):
            for directory in os.listdir(self.path("back")):
                if directory.startswith("step_") and int(directory[5:]) > last:
                    shutil.rmtree(os.path.join(self.path("back"), directory))
            _, again = run("back", ranks, *flags)
            for one, other in zip(back, again):
                self.assertAlmostEqual(one["loss"], other["loss"], delta=0 if ranks == 1 else 1e-4)
                self.assertEqual((one.get("rollbacks"), one.get("skipped")), (other.get("rollbacks"), other.get("skipped")))

    def test_the_way_back_after_a_spike_is_a_phase_of_its_own(self):
        """A step's limit would end the job while the ranks read their checkpoint."""
        with open(self.path("page"), "wb") as page:
            page.write(b"CONVPRG1".ljust(4096, b"\0"))
        # The metrics file loses lines on the way back, and on no other.
        trainer = self.start(CONVENE_TRAIN, *self.train_arguments(steps=40, validation_every=0, learning_rate=1e-9, lr_schedule="constant",
                                                                  warmup_steps=0),
                             "--max-loss-spike", "1.001", "--spike-window", "4", "--max-skipped-steps", "30", "--on-spike", "rollback",
                             "--max-rollbacks", "1", prefix=("env", "RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=1"),
                             CONVENE_PROGRESS=self.path("page"), **self.slow_disk("/metrics.jsonl.tmp."))
        wait_until(lambda: glob.glob(self.path("metrics.jsonl.tmp.*")), 60, "the way back")
        with open(self.path("page"), "rb") as page:
            phase = page.read()[40:64].rstrip(b"\0").decode()
        os.remove(self.path("hold"))
        self.assertIn("rolled back: step ", self.finish(trainer, 60))
        self.assertEqual(phase, "rollback")

    def test_behind_a_rollback_a_ramp_neither_repeats_nor_leaves_out_a_sample(self):
        def run(name, steps, *flags, **changes):
            arguments = self.train_arguments(metrics_file=self.path(f"{name}.jsonl"), checkpoint_dir=self.path(name), checkpoint_every=2,
                                             steps=steps, validation_every=0, learning_rate=1e-9, lr_schedule="constant", warmup_steps=0,
                                             **changes)
            text = self.finish(self.start(CONVENE_TRAIN, *arguments, *flags), 60)
            return text, [line for line in read_metrics(self.path(f"{name}.jsonl")) if "loss" in line]

        # The weights hardly move, so each sample has its loss whenever it comes.
        _, alone = run("alone", 90, global_batch_size=1)
        text, back = run("back", 16, "--rampup-batch-size", "2,2,40", "--max-loss-spike", "1.0001", "--spike-window", "4",
                         "--max-skipped-steps", "30", "--on-spike", "rollback", "--max-rollbacks", "1")
        spike, begin = map(int, re.search(r"rolled back: step (\d+) was a spike, so the training goes on after step (\d+),", text).groups())
        batches = [2] * 7 + [4] * 4 + [6] * 2 + [8] * 3
        left_out = sum(batches[begin:spike])
        # The rollback lies within the ramp, so what it leaves out moves the samples at which the batch would grow.
        self.assertLess(spike, 11)
        for line in back:
            step = line["step"]
            first = sum(batches[:step - 1]) + (left_out if step > begin else 0)
            losses = [sample["loss"] for sample in alone[first:first + batches[step - 1]]]
            self.assertAlmostEqual(line["loss"], sum(losses) / len(losses), delta=1e-4)

    def test_a_ramp_of_the_batch_goes_on_in_its_midst_on_another_layout(self):
        ramp = ["--rampup-batch-size", "2,2,40"]

        def run(name, flags, steps):
            self.finish(self.start(CONVENE, "run", "--standalone", "--nproc-per-node", "4", CONVENE_TRAIN, *self.train_arguments(
                metrics_file=self.path(f"{name}.jsonl"), checkpoint_dir=self.path(name), steps=steps, validation_every=0, warmup_steps=2,
                lr_schedule="constant"), *ramp, *flags), 60)
            return [line for line in read_metrics(self.path(f"{name}.jsonl")) if "loss" in line]

        whole = run("whole", [], 16)
        # Steps of 2 samples up to 14 consumed, of 4 up to 30, of 6 up to 42, then of 8; 32 tokens each.
        batches = [2] * 7 + [4] * 4 + [6] * 2 + [8] * 3
        self.assertEqual([line["tokens"] for line in whole], [32 * sum(batches[:step]) for step in range(1, 17)])
        run("cut", [], 9)
        resumed = run("cut", ["--pp-size", "2", "--tp-size", "2"], 16)
        for one, other in zip(whole, resumed):
            self.assertEqual(one["tokens"], other["tokens"])
            self.assertAlmostEqual(one["loss"], other["loss"], places=4)
        ramp.clear()
        text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(checkpoint_dir=self.path("cut"), steps=20)), 60, 64)
        self.assertIn("--rampup-batch-size as they are the sample order would break", text)

    def test_muon_goes_on_from_its_checkpoint_on_another_layout(self):
        def run(name, flags, steps):
            self.finish(self.start(CONVENE, "run", "--standalone", "--nproc-per-node", "4", CONVENE_TRAIN, *self.train_arguments(
                metrics_file=self.path(f"{name}.jsonl"), checkpoint_dir=self.path(name), steps=steps, validation_every=0, warmup_steps=2,
                lr_schedule="constant", optimizer="muon"), *flags), 60)
            return [line for line in read_metrics(self.path(f"{name}.jsonl")) if "loss" in line]

        whole = run("whole", [], 16)
        self.assertLess(whole[-1]["loss"], whole[0]["loss"] - 0.3)
        for name, flags in (("of stages", ["--tp-size", "2", "--pp-size", "2"]), ("sharded", ["--zero-stage", "3"])):
            run(name, [], 9)
            for one, other in zip(whole, run(name, flags, 16)):
                self.assertAlmostEqual(one["loss"], other["loss"], places=4)

    def test_the_communication_of_each_axis_is_told(self):
        text = self.finish(self.start(
            CONVENE, "run", "--standalone", "--nproc-per-node", "4", CONVENE_TRAIN,
            *self.train_arguments(validation_every=4, pp_size=2), "--comm-log"), 60)
        self.assertIn("communication of 27 steps", text)
        self.assertIn("[0] each line has the figures of the rank with the median time; in a group the rank with the shortest time came last\n", text)
        table = text.partition("communication of")[2]
        lines = {name: figures.split() for name, figures in re.findall(r"^\[0\] (\w[\w ]+?)  +(\d[^\n]*)$", table, re.MULTILINE)}
        self.assertEqual(set(lines), {"dp reduce_scatter", "dp gather all_gather", "world all_reduce", "pp send", "pp recv"})
        ranks, calls, megabytes, milliseconds, algbw, busbw, _, *ends = lines["dp reduce_scatter"]
        self.assertEqual((ranks, calls), ("4", "1.0"))
        shortest, longest = float(ends[0]), float(ends[3])
        self.assertLessEqual(shortest, float(milliseconds))
        self.assertLessEqual(float(milliseconds), longest)
        self.assertEqual(len({ends[2], ends[5]} & {"0,", "1,", "2,", "3,", "0", "1", "2", "3"}), 2)
        self.assertAlmostEqual(float(algbw), float(megabytes) / float(milliseconds), delta=0.05 * float(algbw) + 0.001)
        self.assertAlmostEqual(float(busbw), float(algbw) / 2, delta=0.001)  # (n - 1) / n of two ranks
        self.assertEqual(lines["pp recv"][:3], ["4", "4.0", "0.008"])  # a row of 32 x 64 floats
        self.assertEqual(lines["pp recv"][4:7], ["-", "-", "-"])

    def test_tokens_go_to_experts_beside_the_shared_ones(self):
        # Large shared experts, so that the way of the tokens has much to hide behind.
        text = self.finish(self.start(
            CONVENE, "run", "--standalone", "--nproc-per-node", "2", CONVENE_TRAIN,
            *self.train_arguments(model="deepseek-tiny", layers=3, ep_size=2, shared_ffn_size=1024, validation_every=0), "--comm-log"), 120)
        line = re.search(r"^\[0\] ep all_to_all_v .* ([\d.]+)%  ", text, re.MULTILINE)
        self.assertIsNotNone(line, text)
        self.assertGreater(float(line[1]), 0)

    def test_a_stop_costs_the_rest_of_the_step_that_runs(self):
        # Steps of half a second or more, so that the signal comes in the midst of one.
        job = self.start(CONVENE_TRAIN, *self.train_arguments(
            steps=1000, model="llama-15m", global_batch_size=16, micro_batch_size=4,
            sequence_length=128, validation_every=0, checkpoint_every=0))
        self.wait_for_step(1, timeout_s=120)
        finished = read_metrics(self.path("metrics.jsonl"))[-1]
        time.sleep(0.2 * finished["step_seconds"])
        job.send_signal(signal.SIGTERM)
        text = self.finish(job, 120, 143)
        self.assertIn(f"stopped after step {finished['step'] + 1}\n", text)
        self.assertIn(f"the same command goes on from step {finished['step'] + 1} to step 1000\n", text)
        self.assertTrue(os.path.exists(
            self.path(f"checkpoints/step_{finished['step'] + 1:08d}/manifest")))

    def test_two_ranks_learn_in_bf16(self):
        self.finish(self.start(
            CONVENE, "run", "--standalone", "--nproc-per-node", "2", CONVENE_TRAIN,
            *self.train_arguments(precision="bf16", reduce_dtype="bf16", recompute="selective",
                                  steps=40)), 60)
        losses = [line["loss"] for line in read_metrics(self.path("metrics.jsonl"))
                  if "loss" in line]
        self.assertEqual(len(losses), 40)
        self.assertLess(losses[-1], losses[0] - 0.5)
        self.assert_nothing_left()

    def test_messages_train_alike_on_one_rank_and_on_three(self):
        with open(self.path("chat.jinja"), "w", encoding="utf-8") as file:
            file.write("{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
                       "{% else %}[{{ m.content }}]{% endif %}{% endfor %}")
        with open(self.path("chat.jsonl"), "w", encoding="utf-8") as file:
            for number in range(300):
                # Answers of other lengths, so that ranks count other numbers of targets.
                file.write(json.dumps({"messages": [
                    {"role": "user", "content": f"how many are {number % 40}"},
                    {"role": "assistant", "content": "one, " * (1 + number % 7)}]}) + "\n")
        changes = {"data": self.path("chat.jsonl"), "chat_template": self.path("chat.jinja"),
                   "sequence_length": 64, "global_batch_size": 4, "steps": 6,
                   "checkpoint_dir": None, "checkpoint_every": None}
        text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(
            metrics_file=self.path("one.jsonl"), **changes)), 60)
        self.assertIn("packing      300 documents in ", text)
        self.assertRegex(text, r"validation loss [0-9.]+ after step 6, [0-9.]+ bits a byte")
        # Four samples over three ranks: two rows are empty.
        self.finish(self.start(
            CONVENE, "run", "--standalone", "--nproc-per-node", "3", CONVENE_TRAIN,
            *self.train_arguments(metrics_file=self.path("three.jsonl"), **changes)), 60)
        ones, threes = (read_metrics(self.path(name)) for name in ("one.jsonl", "three.jsonl"))
        self.assertEqual(len(ones), 6)
        for one, three in zip(ones, threes):
            self.assertEqual(one.get("counted_share"), three.get("counted_share"))
            for key in ("loss", "grad_norm"):
                self.assertAlmostEqual(one[key], three[key], places=4)
        self.assertLess(ones[0]["counted_share"], 0.7)
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
