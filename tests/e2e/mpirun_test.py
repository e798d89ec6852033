"""`convene run` under Debian's Open MPI: one process a slot on this machine, and one a node over ssh. Skips without openmpi-bin."""

import os
import re
import shutil
import signal
import unittest

from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase, find_program, processes_with, read_metrics, wait_until
from tests.support.ssh_hosts import NoSshd, SshHosts

_MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


class MpirunTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun here: Debian's package openmpi-bin has it")

    def mpirun(self, *words, run=(), prefix=()):
        return self.start(CONVENE, "run", *run, prefix=[*prefix, *_MPIRUN, *words], log="mpirun.log", T=self.directory)

    def test_two_slots_of_this_machine_train_under_one_agent(self):
        text = self.finish(self.mpirun("-np", "2", run=["--no-python", find_program(CONVENE_TRAIN), *self.train_arguments(steps=6)]), 90)
        self.assertEqual([m["step"] for m in read_metrics(self.path("metrics.jsonl"))], list(range(1, 7)))
        self.assertEqual(text.count("ranks 0 to 1 of 2 start here"), 1, text)
        self.assertIn("2 workers, one for each process that was started here, by OMPI_COMM_WORLD_LOCAL_SIZE", text)
        self.assert_nothing_left()

    def test_the_first_failure_is_mpiruns(self):
        text = self.finish(self.mpirun("-np", "2", run=["--no-python", "sh", "-c", "[ $RANK = 0 ] && sleep 60; exit 3"]), 60, 1)
        self.assertRegex(text, "Job .* failed: rank 1")
        self.assert_nothing_left()

    def test_mpirun_that_is_told_to_end_lets_the_workers_save_where_it_waits(self):
        run = ["--no-python", find_program(CONVENE_TRAIN), *self.train_arguments(steps=100000, checkpoint_every=100000)]
        # mpirun waits so long before its TERM to the processes, and again before KILL.
        mpirun = self.mpirun("-np", "2", "--mca", "odls_base_sigkill_timeout", "8", run=run)
        self.wait_for_step(2)
        mpirun.send_signal(signal.SIGTERM)
        mpirun.wait(60)
        wait_until(lambda: not self.workers(), 30, "the workers have ended")
        last = read_metrics(self.path("metrics.jsonl"))[-1]["step"]
        self.assertTrue(os.path.exists(self.path(f"checkpoints/step_{last:08d}/manifest")), self.output(mpirun)[-3000:])
        self.assert_nothing_left()

    def test_a_killed_mpirun_leaves_nothing(self):
        mpirun = self.mpirun("-np", "2", run=["--no-python", "sh", "-c", "echo up; sleep 100"])
        wait_until(lambda: self.output(mpirun).count("] up") == 2, 60, "both workers")
        mpirun.kill()
        mpirun.wait(10)
        wait_until(lambda: not processes_with(self.marker), 30, "the end of agent and workers")

    def hosts(self, count):
        try:
            ssh = SshHosts(self, count)
        except NoSshd as reason:
            self.skipTest(str(reason))
        with open(self.path("hosts"), "w", encoding="ascii") as out:
            out.writelines(f"{host.address} slots=1\n" for host in ssh.hosts)
        return ssh, ["--hostfile", self.path("hosts"), "--map-by", "ppr:1:node", "--mca", "plm_rsh_args", f"-F {ssh.config}",
                     "--mca", "routed", "direct", "-x", self.marker.split("=", 1)[0]]

    def test_two_hosts_meet_at_mpiruns_own(self):
        ssh, words = self.hosts(2)
        prefix = [*ssh.hosts[0].prefix, "unshare", "-u", "sh", "-c", 'hostname n0; exec "$@"', "sh"]
        text = self.finish(
            self.mpirun(*words, run=["--nproc-per-node", 2, "--no-python", "sh", "-c", "echo $RANK of $WORLD_SIZE"], prefix=prefix), 60)
        self.assertEqual(sorted(re.findall(r"^\[\d\] (\d of 4)$", text, re.MULTILINE)), [f"{rank} of 4" for rank in range(4)], text)
        self.assertRegex(text, f"endpoint {re.escape(ssh.hosts[0].address)}:\\d+, by mpirun's own machine")

    def test_mpirun_on_a_login_node_says_which_flag_to_give(self):
        ssh, words = self.hosts(2)
        mpirun = self.mpirun(*words, run=["--no-python", "true"], prefix=ssh.login.prefix)
        self.assertNotEqual(mpirun.wait(60), 0)
        self.assertIn("--rdzv-endpoint HOST:PORT", self.output(mpirun))


if __name__ == "__main__":
    unittest.main(verbosity=2)
