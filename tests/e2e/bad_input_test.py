"""Wrong input: one paragraph that says what, where and what to do, the exit code of the table, nothing left running."""

import os
import signal
import socket
import stat
import subprocess
import time
import unittest

from tests.support.convene_testing import (CONVENE, CONVENED, CONVENE_TRAIN, ConveneTestCase,
                                           find_program, read_metrics, wait_until)


class BadTrainerInputTest(ConveneTestCase):
    """The trainer alone, as one process, with its own messages."""

    def check(self, expected_text, expected_code=64, **changes):
        start = time.monotonic()
        text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(**changes)), 20,
                           expected_code)
        self.assertIn(expected_text, text)
        self.assertLess(time.monotonic() - start, 10)
        self.assertLess(len(text.strip().splitlines()), 12, text)

    def test_world_size_is_not_the_product(self):
        self.check("tp", tp_size=2)

    def test_sequence_longer_than_the_data(self):
        with open(self.path("short.txt"), "w", encoding="ascii") as f:
            f.write("too short")
        self.check("sequence_length", data=self.path("short.txt"))

    def test_empty_data(self):
        open(self.path("empty.txt"), "w", encoding="ascii").close()
        self.check("empty", data=self.path("empty.txt"))

    def test_unreadable_file(self):
        self.check("no/such/file.txt", data="no/such/file.txt")

    def test_unknown_model(self):
        self.check("llama-tiny", model="llama-tinny")

    def test_a_gpu_where_there_is_none(self):
        self.check("--device cuda: ", device="cuda")

    def test_unknown_precision(self):
        self.check("auto, fp32, bf16, fp8", precision="fp4")

    def test_unknown_flag(self):
        text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(), "--learning-rat", "1"),
                           20, 64)
        self.assertIn("--learning-rate", text)

    def test_unknown_key_in_the_configuration(self):
        with open(self.path("train.yaml"), "w", encoding="ascii") as f:
            f.write("steps: 10\nlearning_rat: 0.1\n")
        self.check("train.yaml:2", config=self.path("train.yaml"))

    def test_a_checkpoint_of_another_shape(self):
        self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(steps=5)), 60)
        self.check("shape", layers=4)

    def test_a_resume_directory_without_a_checkpoint(self):
        self.check("is no checkpoint", resume=self.directory, checkpoint_dir=None,
                   checkpoint_every=None)

    def test_a_configuration_that_is_a_fifo(self):
        os.mkfifo(self.path("fifo"))
        self.check("is not a regular file", config=self.path("fifo"))

    def test_data_that_changed_since_the_checkpoint(self):
        self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(steps=5)), 60)
        with open(self.data, "r+b") as f:
            f.write(b"T")  # as long as before
        self.check("was trained on", steps=10)
        text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(steps=10),
                                      "--accept-new-data"), 60)
        self.assertIn("as --accept-new-data says", text)
        self.assertIn("resumed after step 5", text)

    def test_data_that_is_cut_into_other_samples_than_before(self):
        self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(steps=5)), 60)
        for changes in ({"sequence_length": 16}, {"validation_fraction": 0.2}):
            self.check("the samples, or their sums, would not be the same. Give the data, --sequence-length, "
                       "--validation-fraction", steps=10, **changes)
        text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(
            steps=10, sequence_length=16), "--accept-new-data"), 60)
        self.assertIn("training samples of 16 tokens, as --accept-new-data says", text)
        self.assertIn("resumed after step 5", text)

    def test_ranks_that_have_other_data_or_another_validation_set(self):
        for rank, text in enumerate(("one text " * 40, "or other " * 40)):
            with open(self.path(f"{rank}.txt"), "w", encoding="ascii") as f:
                f.write(text)
        for flag, changes in (("--data ", {"data": None}), ("--validation-data x=", {})):
            command = f'exec {CONVENE_TRAIN} "$@" {flag}{self.directory}/$RANK.txt'
            text = self.finish(self.start(CONVENE, "run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "0", "/bin/sh", "-c",
                                          command, "sh", *self.train_arguments(**changes)), 60, 64)
            self.assertIn("--data and --validation-data must name the same texts on every node", text)

    def test_packed_documents_that_nothing_tells_apart(self):
        self.check("token 0, which ends a document, occurs nowhere within the data", packed_documents="true")

    def test_documents_that_were_not_packed_before(self):
        self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(steps=5)), 60)
        # 32 is the space: each word a document.
        packed = {"packed_documents": "true", "eod_token": 32}
        self.check("packed documents that end with token 32", steps=10, **packed)
        text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(steps=10, **packed),
                                      "--accept-new-data"), 60)
        self.assertIn("resumed after step 5", text)
        self.check("was trained on", steps=15)


class NoMemoryTest(ConveneTestCase):

    def test_a_job_that_needs_more_memory_than_there_is_fails_with_one_line(self):
        # The tokens of a step alone, 4 GiB, are more than the process may have.
        job = self.start(CONVENE_TRAIN, *self.train_arguments(
            global_batch_size=1 << 20, sequence_length=512), limit="-v 3000000")
        text = self.finish(job, 20, 1)
        self.assertIn("convene-train: this node has no memory left for this process", text)


class NotANumberTest(ConveneTestCase):

    def test_a_run_whose_gradients_stop_being_numbers_fails(self):
        text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(
            learning_rate="1e30", min_learning_rate=0, warmup_steps=0, max_skipped_steps=4)), 30, 1)
        self.assertIn("--max-skipped-steps allows no more", text)
        self.assertIn("steps 2 to 5 were all skipped", text)

    def test_steps_that_were_skipped_are_no_updates_in_the_checkpoint(self):
        self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(
            learning_rate="1e30", min_learning_rate=0, warmup_steps=0, max_skipped_steps=4,
            checkpoint_every=3)), 30, 1)
        with open(self.path("checkpoints/step_00000003/manifest"), encoding="ascii") as f:
            lines = f.read().splitlines()
        self.assertIn("step 3", lines)
        self.assertIn("updates 1", lines)

    def test_a_run_that_fails_so_keeps_the_checkpoint_that_is_being_written(self):
        job = self.start(CONVENE, "run", "--standalone", "--nproc-per-node", 2, "--no-python", find_program(CONVENE_TRAIN), *self.train_arguments(
            learning_rate="1e30", min_learning_rate=0, warmup_steps=0, max_skipped_steps=1, checkpoint_every=1),
            **self.slow_disk("/step_00000001/"))
        wait_until(lambda: "the checkpoint after step 1 is still being written" in self.output(job), 30, "the wait for the disk")
        manifest = self.path("checkpoints/step_00000001/manifest")
        self.assertFalse(os.path.exists(manifest))
        os.remove(self.path("hold"))
        self.assertIn("--max-skipped-steps allows no more", self.finish(job, 30, 1))
        self.assertTrue(os.path.exists(manifest))

    def test_a_run_without_a_single_update_fails(self):
        text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(
            initializer_range="1e30", steps=3)), 30, 1)
        self.assertIn("no step of this job changed a weight", text)
        self.assertFalse(os.path.exists(self.path("checkpoints/step_00000003")))


class LostDirectoryTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("disk"))
        with open(self.path("no-directory"), "wb"):
            pass
        self.point_checkpoints_to("disk")

    def point_checkpoints_to(self, name):
        """By one rename, so that the trainer sees either the one or the other, and never nothing."""
        os.symlink(name, self.path("next"))
        os.replace(self.path("next"), self.path("checkpoints"))

    def has_checkpoint_after(self, step):
        return any(int(name[5:]) > step and os.path.exists(self.path(f"disk/{name}/manifest"))
                   for name in os.listdir(self.path("disk")) if name.startswith("step_"))

    def test_a_checkpoint_directory_that_goes_in_mid_run_is_no_usage_error(self):
        job = self.start(CONVENE_TRAIN, *self.train_arguments(steps=1000000))
        self.wait_for_step(11)
        self.point_checkpoints_to("no-directory")
        text = self.finish(job, 20, 1)
        self.assertIn(self.path("checkpoints"), text)
        self.assertIn("(3 failures in a row)", text)

    def test_a_checkpoint_that_fails_is_said_and_tried_again(self):
        job = self.start(CONVENE_TRAIN, *self.train_arguments(
            steps=1000000, max_failed_checkpoints=1000000))
        self.wait_for_step(11)
        self.point_checkpoints_to("no-directory")
        wait_until(lambda: "(2 of 1000000 failures in a row" in self.output(job), 20, "the warning")
        failed = self.metrics_step()
        self.point_checkpoints_to("disk")
        wait_until(lambda: self.has_checkpoint_after(failed), 20, "a checkpoint after the trouble")
        job.send_signal(signal.SIGTERM)
        text = self.finish(job, 20, 143)
        self.assertIn("no checkpoint after step", text)
        self.assertIn("The next save tries again; the newest checkpoint is "
                      + self.path("checkpoints/step_"), text)

    def test_the_last_checkpoint_is_tried_again_too(self):
        job = self.start(CONVENE_TRAIN, *self.train_arguments(steps=1000000, checkpoint_every=0))
        self.wait_for_step(6)
        self.point_checkpoints_to("no-directory")
        job.send_signal(signal.SIGTERM)
        wait_until(lambda: "no checkpoint after step" in self.output(job), 20, "the first attempt")
        self.point_checkpoints_to("disk")
        text = self.finish(job, 20, 143)
        self.assertIn("It is the last, so the trainer tries again in 1s", text)
        self.assertTrue(self.has_checkpoint_after(5))

    def test_a_last_checkpoint_that_cannot_be_saved_fails_the_run(self):
        job = self.start(CONVENE_TRAIN, *self.train_arguments(
            steps=1000000, checkpoint_every=0, max_failed_checkpoints=2))
        self.wait_for_step(6)
        self.point_checkpoints_to("no-directory")
        job.send_signal(signal.SIGTERM)
        text = self.finish(job, 20, 1)
        self.assertEqual(text.count("the trainer tries again"), 1)
        self.assertIn("(2 failures in a row)", text)

    def metrics_step(self):
        return read_metrics(self.path("metrics.jsonl"))[-1]["step"]

    def test_metrics_that_cannot_be_written_do_not_end_the_training(self):
        text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(
            metrics_file="/dev/full")), 60)
        self.assertEqual(text.count("metrics are lost, and the training goes on without"), 1)
        self.assertRegex(text, "metrics     /dev/full, without the last [0-9]+ lines")
        self.assertTrue(os.path.exists(self.path("checkpoints/step_00000030/manifest")))


class TwoJobsTest(ConveneTestCase):

    def test_a_second_job_on_one_checkpoint_directory_is_refused_until_the_first_is_gone(self):
        first = self.start(CONVENE_TRAIN, *self.train_arguments(steps=1000000))
        self.wait_for_step(6)
        second = self.train_arguments(steps=20, metrics_file=self.path("second.jsonl"))
        text = self.finish(self.start(CONVENE_TRAIN, *second), 20, 64)
        self.assertIn(f"is being written to by process {first.pid} on ", text)
        self.assertIn("give this job another --checkpoint-dir, or stop that one", text)
        self.assertIsNone(first.poll())
        # No rank waits for another or starts again in vain. (save_restore_test: every rank gives this error; here the first one to end may
        # have the other one stopped before it has said so.)
        job = self.start(CONVENE, "run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1,
                         find_program(CONVENE_TRAIN), *second)
        self.assertEqual(job.wait(40), 64)
        self.assertIn(f"is being written to by process {first.pid} on ", self.output(job))
        first.kill()
        # At once: the first may still be dying.
        self.assertIn("resumed after step", self.finish(self.start(CONVENE_TRAIN, *second), 20))


class BadLauncherInputTest(ConveneTestCase):

    def run_convene(self, *arguments, expected_code, timeout_s=20, **environment):
        text = self.finish(self.start(CONVENE, "run", *arguments, **environment), timeout_s,
                           expected_code)
        self.assert_nothing_left()
        return text

    def test_heads_that_tensor_parallel_ranks_cannot_share(self):
        text = self.run_convene("--standalone", "--nproc-per-node", 3, find_program(CONVENE_TRAIN),
                                *self.train_arguments(tp_size=3, dp_size=1), expected_code=64)
        self.assertIn("heads", text)

    def test_layers_that_stages_cannot_share(self):
        text = self.run_convene("--standalone", "--nproc-per-node", 2, find_program(CONVENE_TRAIN),
                                *self.train_arguments(pp_size=2, pp_layout="3,4"), expected_code=64)
        self.assertIn("3,4: it adds up to 7 layers, and the model has 8", text)

    def test_a_program_that_does_not_exist(self):
        text = self.run_convene("--standalone", "no-such-program", expected_code=64)
        self.assertIn("no-such-program", text)

    def test_an_unknown_flag(self):
        text = self.run_convene("--standalone", "--nproc-per-nod", "2", "/bin/true",
                                expected_code=64)
        self.assertIn("--nproc-per-node", text)

    def test_an_unreachable_endpoint(self):
        # A port that is bound but not listened on: nobody answers.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            text = self.run_convene(
                "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf",
                "is_host=false,join_timeout=2", "/bin/true", expected_code=69)
        self.assertIn(str(port), text)

    def test_a_port_that_something_else_holds(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            text = self.finish(self.start(CONVENED, "--host", "127.0.0.1", "--port", port), 20, 64)
        self.assertIn(str(port), text)

    def run_limited(self, limit):
        """convene run of one /bin/true in a shell that set `limit`; must end fast, as a usage error."""
        start = time.monotonic()
        job = self.start(CONVENE, "run", "--standalone", "/bin/true", limit=limit)
        text = self.finish(job, 10, 64)
        self.assertLess(time.monotonic() - start, 5)
        self.assert_nothing_left()
        return text

    def test_an_address_space_without_room_for_threads(self):
        self.assertIn("ulimit -v", self.run_limited("-v 60000"))
        self.assertIn("ulimit -v", self.run_limited("-v 100000"))

    def test_too_few_open_files(self):
        self.assertIn("ulimit -Hn", self.run_limited("-n 12"))
        # The program raises a soft limit by itself.
        self.finish(self.start(CONVENE, "run", "--standalone", "/bin/true", limit="-Sn 12"), 20)

    def test_a_worker_that_ignores_term_is_killed(self):
        script = self.path("stubborn.sh")
        with open(script, "w", encoding="ascii") as f:
            f.write(f"#!/bin/bash\ntrap '' TERM\ntouch {self.path('up')}\n"
                    "while true; do sleep 0.1; done\n")
        os.chmod(script, os.stat(script).st_mode | stat.S_IXUSR)
        job = self.start(CONVENE, "run", "--standalone", "--shutdown-timeout", 1, script)
        wait_until(lambda: os.path.exists(self.path("up")), 10, "the worker's start")
        start = time.monotonic()
        job.send_signal(signal.SIGTERM)
        self.finish(job, 10, 143)
        self.assertGreater(time.monotonic() - start, 0.9)
        self.assert_nothing_left()

    def test_two_agents_with_one_node_rank(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = ["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", f"127.0.0.1:{port}",
                  "--rdzv-id", "twins", "--rdzv-conf", "join_timeout=30"]
        first = self.start(CONVENE, "run", *common, "/bin/true")
        wait_until(lambda: not _is_free(port), 10, "the first agent's rendezvous")
        second = self.start(CONVENE, "run", *common, "/bin/true")
        text = self.finish(second, 20, 64)
        self.assertIn("node", text)
        first.send_signal(signal.SIGTERM)
        self.finish(first, 20, 143)
        self.assert_nothing_left()


def _is_free(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class NoTextTest(ConveneTestCase):
    """Names that are no UTF-8: a path may hold any byte."""

    def test_a_run_with_such_a_log_folder_begins_and_ends(self):
        folder = os.fsdecode(os.fsencode(self.path("logs")) + b"\xff")
        self.finish(self.start(CONVENE, "run", "--standalone", "--nproc-per-node", 1, "--no-python", "--log-dir", folder, "sh", "-c",
                               "echo hello"), 20)
        run, = os.listdir(folder)
        with open(os.path.join(folder, run, "attempt_0", "0", "stdout.log"), encoding="utf-8") as log:
            self.assertEqual(log.read(), "hello\n")

    def test_a_run_id_a_role_and_an_address_are_refused_with_their_reason(self):
        for flag in ("--rdzv-id", "--role", "--local-addr", "--topology"):
            text = self.finish(self.start(CONVENE, "run", "--nnodes", "1", "--rdzv-endpoint", "localhost:1", flag, os.fsdecode(b"a\xff"),
                                          "true"), 20, 64)
            self.assertIn(flag, text)
            self.assertIn("printable ASCII", text)
        self.assertIn("--master-addr", self.finish(self.start(CONVENE, "run", "--nnodes", "1", "--master-addr", os.fsdecode(b"a\xff"),
                                                              "true"), 20, 64))


class FullDiskTest(ConveneTestCase):

    def test_a_disk_that_fills_up_while_saving_loses_no_checkpoint(self):
        # A file system of 12 MiB: room for two checkpoints of llama-tiny (5 MB each), not for the third.
        small = self.path("small")
        os.mkdir(small)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", small])
        if mounted.returncode != 0:
            self.skipTest("no permission to mount a small file system")
        self.addCleanup(subprocess.run, ["umount", "-l", small], check=True)
        checkpoints = os.path.join(small, "checkpoints")
        full = self.start(CONVENE_TRAIN, *self.train_arguments(
            checkpoint_dir=checkpoints, checkpoint_keep=3, steps=30))
        text = self.finish(full, 60, 1)
        self.assertIn("No space left on device", text)
        self.assertIn("(3 failures in a row)", text)
        self.assertIn("step_00000015", text)
        again = self.start(CONVENE_TRAIN, *self.train_arguments(
            checkpoint_dir=checkpoints, checkpoint_keep=2, checkpoint_every=100, steps=12,
            resume=os.path.join(checkpoints, "step_00000010"), metrics_file=self.path("again.jsonl")))
        again.wait(60)
        again_text = self.output(again)
        self.assertIn("resumed after step 10", again_text)


if __name__ == "__main__":
    unittest.main()
