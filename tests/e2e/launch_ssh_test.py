"""`convene launch` over real ssh: an sshd in each of four network namespaces. Skips without openssh-server, root or namespaces."""

import os
import re
import signal
import time

from tests.support import side_by_side
from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase, find_program, read_metrics, wait_until
from tests.support.ssh_hosts import NoSshd, SshHosts

_LINK_TIMEOUT_S = 4


class LaunchSshTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        try:
            self.ssh = SshHosts(self, 4)
        except NoSshd as reason:
            self.skipTest(str(reason))
        self.hosts = self.ssh.hosts

    def launch(self, *words, hosts=None, config=None, link_timeout_s=_LINK_TIMEOUT_S):
        with open(self.path("hosts"), "w", encoding="ascii") as out:
            out.writelines(f"{host.address} slots=1\n" for host in hosts or self.hosts[:2])
        return self.start(
            CONVENE, "launch", "--hostfile", self.path("hosts"), f"--ssh-options=-F {config or self.ssh.config} -o ConnectTimeout=3",
            "--link-timeout", link_timeout_s, "--no-python", *words, log="launch.log", prefix=self.ssh.login.prefix)

    def train(self, **changes):
        return [find_program(CONVENE_TRAIN), *self.train_arguments(**changes)]

    def assert_hosts_empty(self, timeout_s):
        wait_until(lambda: not any(self.ssh.left_on(host) for host in self.hosts), timeout_s, "the hosts are empty")

    def test_four_hosts_train(self):
        text = self.finish(self.launch(*self.train(steps=12), hosts=self.hosts), 90)
        self.assertEqual([m["step"] for m in read_metrics(self.path("metrics.jsonl"))], list(range(1, 13)))
        for host in self.hosts:
            self.assertRegex(text, f"{re.escape(host.address)}: .* convene {host.name}\\] info: epoch 1")
        self.assert_hosts_empty(5)

    def test_a_short_cut_costs_nothing(self):
        launch = self.launch("--rdzv-conf", "keep_alive_interval=2,keep_alive_max_attempt=3", *self.train(steps=100000))
        self.wait_for_step(2)
        self.ssh.network.cut(self.hosts[1])
        time.sleep(1)
        self.ssh.network.mend(self.hosts[1])
        self.wait_for_step(read_metrics(self.path("metrics.jsonl"))[-1]["step"] + 3)
        launch.send_signal(signal.SIGTERM)
        text = self.finish(launch, 60, 128 + signal.SIGTERM)
        self.assertNotIn("is lost", text)
        self.assertNotIn("epoch 2", text)
        self.assert_hosts_empty(5)

    def test_a_long_cut_costs_a_host_until_it_is_mended(self):
        script = f"echo of $WORLD_SIZE in epoch $CONVENE_EPOCH; until [ -e {self.path('done')} ]; do sleep 0.05; done"
        launch = self.launch(
            "--nnodes", "1:2", "--admission-delay", 0.2, "--rdzv-conf", "keep_alive_interval=0.7,last_call_timeout=5", "--", "sh", "-c", script)
        wait_until(lambda: self.output(launch).count("of 2 in epoch 1") == 2, 30, "two nodes")
        self.ssh.network.cut(self.hosts[1])
        wait_until(lambda: "of 1 in epoch" in self.output(launch), 20, "the other goes on alone")
        wait_until(lambda: f"the connection to {self.hosts[1].address} is lost" in self.output(launch), 20, "the launch sees it")
        wait_until(lambda: "sleep" not in str(self.ssh.left_on(self.hosts[1])), 20, "the cut host has stopped its worker")
        self.ssh.network.mend(self.hosts[1])
        wait_until(lambda: re.search(r"of 2 in epoch [3-9]", self.output(launch)), 60, "two nodes again")
        with open(self.path("done"), "w", encoding="ascii"):
            pass
        self.finish(launch, 30)
        self.assert_hosts_empty(30)

    def test_control_c_saves_and_ends_all(self):
        launch = self.launch(*self.train(steps=100000, checkpoint_every=100000))
        self.wait_for_step(5)
        launch.send_signal(signal.SIGINT)
        self.finish(launch, 60, 128 + signal.SIGINT)
        last = read_metrics(self.path("metrics.jsonl"))[-1]["step"]
        self.assertTrue(os.path.exists(self.path(f"checkpoints/step_{last:08d}/manifest")), f"no checkpoint of step {last}")
        self.assert_hosts_empty(5)

    def test_a_killed_launch_leaves_nothing(self):
        launch = self.launch("--", "sh", "-c", "echo up; trap '' INT HUP; sleep 100")
        wait_until(lambda: self.output(launch).count("] up") == 2, 30, "both workers")
        launch.kill()
        launch.wait(10)
        self.assert_hosts_empty(15)

    def test_a_login_node_that_loses_its_power_leaves_nothing(self):
        launch = self.launch("--", "sh", "-c", "echo up; sleep 100")
        wait_until(lambda: self.output(launch).count("] up") == 2, 30, "both workers")
        self.ssh.network.cut(self.ssh.login)  # No end of any connection is told.
        launch.kill()
        wait_until(lambda: not any("sleep" in str(self.ssh.left_on(host)) for host in self.hosts), _LINK_TIMEOUT_S + 10, "no worker is left")
        self.ssh.network.mend(self.ssh.login)

    def test_a_program_that_fails_on_one_host(self):
        script = '[ "$(hostname)" = n0 ] && sleep 100; echo "no disk" >&2; exit 3'
        text = self.finish(self.launch("--", "sh", "-c", script), 60, 1)
        self.assertIn(f"{self.hosts[1].address}: [1] no disk", text)
        self.assertRegex(text, f"{re.escape(self.hosts[0].address)}: .*Job .* failed: rank 1 on n1 .*exit code 3")
        self.assert_hosts_empty(5)

    def test_a_key_that_is_refused_and_one_that_is_not_known(self):
        stranger = self.ssh.write_config("stranger", "stranger_key", "known_hosts")
        text = self.finish(self.launch("true", config=stranger), 30, 64)
        self.assertIn("ssh-copy-id", text)
        unknown = self.ssh.write_config("unknown", "user_key", "nobody_known")
        text = self.finish(self.launch("true", config=unknown), 30, 64)
        self.assertIn("ssh-keyscan", text)
        self.assert_hosts_empty(5)

    def test_a_host_that_does_not_answer(self):
        self.ssh.network.cut(self.hosts[1])
        text = self.finish(self.launch("--", "sleep", "100"), 30, 69)
        self.assertIn(f"ssh did not reach {self.hosts[1].address}", text)
        self.assertIn("does not answer", text)
        self.assert_hosts_empty(5)

    def test_a_host_without_sshd(self):
        self.hosts[1].sshd.kill()
        self.hosts[1].sshd.wait()
        text = self.finish(self.launch("--", "sleep", "100"), 30, 69)
        self.assertIn("no sshd listens", text)
        self.assert_hosts_empty(5)


if __name__ == "__main__":
    side_by_side.main(at_once=3)
