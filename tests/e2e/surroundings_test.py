"""Commands in broken surroundings: no loopback, nohup, a name service that knows nothing, strange files."""

import os
import shutil
import signal
import subprocess
import tempfile
import unittest

from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, CONVENED, ConveneTestCase, find_program, wait_until


class SurroundingsTest(ConveneTestCase):

    def run_standalone(self, *program, prefix=()):
        return self.start(CONVENE, "run", "--standalone", "--no-python", *program, log="run.log", prefix=prefix)

    def test_nohup_outlives_the_terminal(self):
        run = self.run_standalone("sh", "-c", f"until [ -e {self.path('done')} ]; do sleep 0.02; done", prefix=["nohup"])
        wait_until(lambda: "start here" in self.output(run), 10, "the worker")
        run.send_signal(signal.SIGHUP)
        with open(self.path("done"), "w", encoding="utf-8"):
            pass
        self.finish(run, 10)
        self.assert_nothing_left()

    def test_a_daemon_under_nohup_outlives_the_terminal(self):
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", 0, prefix=["nohup"])
        wait_until(lambda: "serving" in self.output(daemon), 10, "the daemon")
        daemon.send_signal(signal.SIGHUP)
        daemon.send_signal(signal.SIGTERM)
        self.assertIn("stopping: SIGTERM", self.finish(daemon, 10, expected_code=143))

    def test_a_job_goes_on_where_a_logout_has_removed_its_runtime_directory(self):
        runtime = tempfile.mkdtemp(prefix="cv.", dir="/tmp")  # Bazel's own folder is too deep for a socket.
        self.addCleanup(shutil.rmtree, runtime, ignore_errors=True)
        run = self.start(CONVENE, "run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "--no-python", find_program(CONVENE_TRAIN),
                         *self.train_arguments(steps=100000, checkpoint_every=100000), XDG_RUNTIME_DIR=runtime)
        self.wait_for_step(2)
        self.assertEqual(len(os.listdir(runtime)), 1)
        shutil.rmtree(runtime)
        os.kill(self.workers()[1], signal.SIGKILL)
        wait_until(lambda: self.output(run).count("[0] layout") == 2, 60, "the workers of the second epoch")
        run.send_signal(signal.SIGTERM)
        self.assertIn("was removed, as a logout removes", self.finish(run, 60, expected_code=128 + signal.SIGTERM))
        self.assert_nothing_left()

    def test_a_signal_ends_a_look_up_at_once(self):
        run = self.start(CONVENE, "run", "--nnodes", 2, "--rdzv-endpoint", "no-such-host.invalid", "--no-python", "/bin/true")
        wait_until(lambda: "trying again" in self.output(run), 10, "the first look-up")
        run.send_signal(signal.SIGTERM)
        self.finish(run, 2, expected_code=-signal.SIGTERM)

    def test_without_loopback_it_says_so_at_once(self):
        if subprocess.run(["unshare", "-n", "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("no network namespaces are permitted here")
        text = self.finish(self.run_standalone("/bin/true", prefix=["unshare", "-n"]), 5, expected_code=71)
        self.assertIn("ip link set lo up", text)

    def start_daemon_with_state(self, expected_code):
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", 0, "--state-dir", self.path("state"))
        return self.finish(daemon, 10, expected_code=expected_code)

    def test_a_state_directory_that_is_a_file_is_not_blamed_on_the_address(self):
        with open(self.path("state"), "w", encoding="utf-8"):
            pass
        text = self.start_daemon_with_state(64)
        self.assertIn("Not a directory", text)
        self.assertNotIn("--host", text)

    def test_a_journal_that_is_a_fifo_is_not_waited_for(self):
        os.mkdir(self.path("state"))
        os.mkfifo(os.path.join(self.path("state"), "journal"))
        self.assertIn("is no regular file", self.start_daemon_with_state(64))


if __name__ == "__main__":
    unittest.main(verbosity=2)
