"""`convene launch`: agents on several hosts, their output, and their end whatever happens to the launch.

Most tests reach the "hosts" 127.0.0.1 and 127.0.0.2 by a script in ssh's place, which needs no package and no root. launch_ssh_test.py has
the real ssh.
"""

import json
import os
import re
import signal
import sys
import time

from tests.support import side_by_side
from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase, find_program, free_port, processes_with, read_metrics, wait_until
from tests.support.terminals import Terminal

# Runs the command as sshd does: by a shell, in a session of its own, with an environment that knows nothing of the caller's. As with ssh, the
# death of this script leaves the command alone, but for the end of the command's stdin.
_FAKE_SSH = """#!/bin/sh
[ "$1" != 127.0.0.9 ] || { echo "ssh: connect to host $1 port 22: No route to host" >&2; exit 255; }
echo $$ > FOLDER/link.$1
[ ! -e FOLDER/gone ] || rmdir FOLDER/gone
exec 3<&0
cd /
env -i HOME="$HOME" PATH=/usr/bin:/bin CONVENE_TEST_MARKER="$CONVENE_TEST_MARKER" setsid sh -c "$2" <&3 &
wait $!
"""


class LaunchTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        self.ssh = self.path("fake_ssh")
        with open(self.ssh, "w", encoding="ascii") as script:
            script.write(_FAKE_SSH.replace("FOLDER", self.directory))
        os.chmod(self.ssh, 0o755)

    def hostfile(self, *lines):
        with open(self.path("hosts"), "w", encoding="ascii") as out:
            out.write("".join(line + "\n" for line in lines))
        return self.path("hosts")

    def words(self, *flags, hosts=("127.0.0.1 slots=1", "127.0.0.2 slots=1")):
        return ["launch", "--hostfile", self.hostfile(*hosts), "--ssh-command", self.ssh, *map(str, flags)]

    def launch(self, *flags, hosts=("127.0.0.1 slots=1", "127.0.0.2 slots=1"), **environment):
        return self.start(CONVENE, *self.words(*flags, hosts=hosts), log="launch.log", **environment)

    def sh(self, script):
        return ["--no-python", "--", "sh", "-c", script]

    def test_words_and_variables_arrive_as_they_are(self):
        odd = ["", "a b", "it's", '"$HOME" `id` $(id)', "two\nlines", "\u00e9\u20ac", "*", "--flag"]
        script = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"
        flags = []
        for number, word in enumerate(odd):
            flags += ["--export", f"ODD_{number}={word}"]
        text = self.finish(
            self.launch(*flags, "--export", "SECRET", "--no-python", "--", sys.executable, "-c", script, *odd, hosts=["127.0.0.1"],
                        NCCL_DEBUG="WARN WARN", SECRET="s3cret", OTHER="not asked for"), 60)
        line = re.search(r"^127\.0\.0\.1: \[0\] (\[.*\])$", text, re.MULTILINE).group(1)
        arguments, environment, directory = json.loads(line)
        self.assertEqual(arguments, odd)
        self.assertEqual([environment[f"ODD_{number}"] for number in range(len(odd))], odd)
        self.assertEqual((environment["NCCL_DEBUG"], environment["SECRET"]), ("WARN WARN", "s3cret"))
        self.assertNotIn("OTHER", environment)
        self.assertEqual(directory, os.getcwd())
        self.assert_nothing_left()

    def test_no_command_line_shows_a_variable_or_an_argument(self):
        launch = self.launch("--export", "SECRET=s3cret", *self.sh("echo up; sleep 60 # word"))
        wait_until(lambda: self.output(launch).count("up\n") == 2, 30, "both workers")
        for pid in processes_with(self.marker):
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                words = line.read()
            self.assertTrue(b"s3cret" not in words or b"--export" in words, words)  # Only where the user wrote it.
            self.assertTrue(b"# word" not in words or b"launched" not in words, words)
        launch.send_signal(signal.SIGTERM)
        self.finish(launch, 60, 128 + signal.SIGTERM)
        self.assert_nothing_left()

    def test_the_join_token_arrives_at_the_agents_and_at_no_worker(self):
        token = "Xz3Vq0k7sT1mN8bYw5Jr2aPfL9dH4eGc"
        endpoint = f"127.0.0.1:{free_port()}"
        for number, flags in enumerate(((), ("--export", "CONVENE_JOIN_TOKEN")), 1):
            done = self.path(f"done{number}")
            launch = self.launch("--rdzv-endpoint", endpoint, *flags, *self.sh(
                f"echo $(env | grep -c CONVENE_JOIN_TOKEN) seen; until [ -e {done} ]; do sleep 0.05; done"), CONVENE_JOIN_TOKEN=token)
            # Every launch of a test writes to one log: the first launch's words stand in front.
            wait_until(lambda launch=launch, number=number: self.output(launch).count("0 seen\n") == 2 * number, 30, "both workers")
            ask = [CONVENE, "status", "--endpoint", endpoint]
            self.assertIn("--join-token-file", self.finish(self.start(*ask, CONVENE_JOIN_TOKEN=None), 30, 64))
            self.assertIn("running", self.finish(self.start(*ask, CONVENE_JOIN_TOKEN=token), 30))
            with open(done, "w", encoding="ascii"):
                pass
            self.finish(launch, 30)

    def test_a_launch_locks_its_door_and_its_user_has_the_key(self):
        state = self.path("state")
        done = self.path("done")
        script = f"echo $(env | grep -c CONVENE_JOIN_TOKEN) seen; until [ -e {done} ]; do sleep 0.05; done"
        launch = self.launch("--rdzv-id", "run7", *self.sh(script), XDG_STATE_HOME=state)
        wait_until(lambda: self.output(launch).count("0 seen\n") == 2, 30, "both workers")
        endpoint = re.search(r"the nodes meet at (\S+),", self.output(launch)).group(1)
        kept = os.path.join(state, "convene/tokens", endpoint)
        self.assertEqual(os.stat(kept).st_mode & 0o777, 0o600)
        with open(kept, encoding="ascii") as file:
            token = file.readline().strip()
        for pid in processes_with(self.marker):
            with open(f"/proc/{pid}/cmdline", "rb") as line, open(f"/proc/{pid}/environ", "rb") as environment:
                self.assertNotIn(token.encode(), line.read() + environment.read())
        self.assertNotIn(token, self.output(launch))

        # By its name, by its place, and by nobody who has not the file.
        self.assertIn("job run7: running", self.finish(self.start(CONVENE, "status", "run7", XDG_STATE_HOME=state), 30))
        self.assertIn("job run7: running", self.finish(self.start(CONVENE, "status", "--endpoint", endpoint, XDG_STATE_HOME=state), 30))
        for words in (("logs", "run7"), ("events", "run7"), ("incidents", "run7"), ("incidents", "--rdzv-id", "run7")):
            self.finish(self.start(CONVENE, *words, XDG_STATE_HOME=state), 30)
        read_token = self.finish(self.start(CONVENE, "read-token", "run7", XDG_STATE_HOME=state), 30).strip()
        self.assertIn("running", self.finish(self.start(CONVENE, "status", "--endpoint", endpoint, CONVENE_JOIN_TOKEN=read_token), 30))
        self.assertIn("--join-token-file", self.finish(self.start(CONVENE, "status", "--endpoint", endpoint, XDG_STATE_HOME=self.path("other")), 30, 64))
        with open(done, "w", encoding="ascii"):
            pass
        self.finish(launch, 30)
        self.assertFalse(os.path.exists(kept))

    def test_a_launch_that_can_keep_no_key_and_one_that_is_told_leave_the_door_open(self):
        with open(self.path("file"), "w", encoding="ascii"):
            pass
        text = self.finish(self.launch(*self.sh("true"), XDG_STATE_HOME=self.path("file")), 60)
        self.assertRegex(text, r"warning: the rendezvous has no join token, as there is no place to keep one \(.*file.*\): everyone who reaches")
        text = self.finish(self.launch("--open-door", *self.sh("true"), XDG_STATE_HOME=self.path("file")), 60)
        self.assertEqual(text.count("no join token"), 1)  # of the first launch: both write to one log

    def test_lines_stay_whole_and_have_their_host_in_front(self):
        line = 'i=0; while [ $i -lt 300 ]; do printf "%0900d.$i\\n" 0; printf "%0900d.$i\\n" 0 >&2; i=$((i+1)); done'
        text = self.finish(self.launch(*self.sh(line)), 60)
        whole = re.findall(r"^127\.0\.0\.([12]): \[([01])\] 0{900}\.(\d+)$", text, re.MULTILINE)
        self.assertEqual(len(whole), 2 * 2 * 300)
        self.assertEqual(len([entry for entry in text.splitlines() if "00000" in entry]), len(whole))

    def test_a_host_does_not_steer_the_terminal(self):
        line = r"printf '\033[31mred\033[0m up\033[1A title\033]0;mine\007 query\033[c\n'"
        terminal = Terminal(self, [find_program(CONVENE), *self.words(*self.sh(line), hosts=["127.0.0.1 slots=1"])])
        terminal.finish()
        self.assertIn("127.0.0.1: [0] \033[31mred\033[0m up title?]0;mine? query\r\n", terminal.text)
        # A file gets what was written.
        text = self.finish(self.launch(*self.sh(line), hosts=["127.0.0.1 slots=1"]), 30)
        self.assertIn("up\033[1A title\033]0;mine\007 query\033[c\n", text)

    def test_the_first_failure_ends_the_job_everywhere(self):
        text = self.finish(self.launch(*self.sh('[ $RANK = 0 ] && sleep 60; echo bad >&2; exit 7')), 60, 1)
        self.assertIn("127.0.0.2: [1] bad", text)
        self.assertRegex(text, "127.0.0.1: .*rank 1")
        text = self.finish(self.launch("--propagate-exit-code", *self.sh("exit 255")), 60, 255)
        self.assertNotIn("is lost", text)
        self.assert_nothing_left()

    def test_a_host_that_cannot_be_reached_is_told_and_ends_the_others(self):
        text = self.finish(self.launch(*self.sh("sleep 60"), hosts=["127.0.0.1", "127.0.0.9"]), 30, 69)
        self.assertIn("no agent started on 127.0.0.9", text)
        self.assertIn("No route to host", text)
        text = self.finish(self.launch("--nnodes", "1:2", *self.sh("echo alone"), hosts=["127.0.0.1", "127.0.0.9"]), 30)
        self.assertIn("The job starts without this host", text)
        self.assertIn("127.0.0.1: [0] alone", text)
        self.assert_nothing_left()

    def test_a_host_without_convene_and_one_without_the_directory(self):
        text = self.finish(self.launch("--convene", "/no/such/convene", *self.sh("true")), 30, 64)
        self.assertIn("has no Convene at /no/such/convene", text)
        os.mkdir(self.path("gone"))
        launch = self.start(CONVENE, *self.words(*self.sh("true")),
                            prefix=["sh", "-c", f'program=$(realpath "$0"); cd {self.path("gone")} && exec "$program" "$@"'])
        self.assertIn(f"this host has no directory {self.path('gone')}", self.finish(launch, 30, 64))

    def test_bad_hosts_touch_no_host(self):
        for flags, hosts, part in [
                ((), ["a slots=1", "a slots=1"], "line 2: the host a is there twice"),
                (("--include", "c"), ["a", "b"], "there is no host c"),
                (("--nnodes", "3"), ["a", "b"], "the list has only 2 host(s)"),
                (("--no-such-flag",), ["a"], "--no-such-flag"),
                (("--log-max-bytes", "x"), ["a"], "--log-max-bytes")]:
            self.assertIn(part, self.finish(self.launch(*flags, *self.sh("true"), hosts=hosts), 30, 64))
        self.assertFalse([name for name in os.listdir(self.directory) if name.startswith("link.")])
        text = self.finish(self.start(CONVENE, "launch", "x.py", PBS_NODEFILE=None, LSB_MCPU_HOSTS=None, LSB_HOSTS=None), 30, 64)
        self.assertIn("--hostfile FILE", text)
        self.assertIn("no task on its stdin", self.finish(self.start(CONVENE, "launched"), 30, 64))

    def test_the_hosts_of_a_pbs_and_of_an_lsf_job(self):
        show = self.sh("echo $RANK of $WORLD_SIZE")
        words = ["launch", "--ssh-command", self.ssh, *show]
        text = self.finish(self.start(CONVENE, *words, PBS_NODEFILE=self.hostfile("127.0.0.1", "127.0.0.1", "127.0.0.2")), 60)
        self.assertEqual(sorted(re.findall(r"^(\S+): .* of 3$", text, re.MULTILINE)), ["127.0.0.1"] * 2 + ["127.0.0.2"])
        text = self.finish(self.start(CONVENE, *words, PBS_NODEFILE=None, LSB_MCPU_HOSTS="127.0.0.1 1 127.0.0.2 1"), 60)
        self.assertIn("127.0.0.2: [1] 1 of 2", text)

    def test_chosen_slots_are_the_devices(self):
        text = self.finish(
            self.launch("--include", "127.0.0.1:2@127.0.0.2:0,3", *self.sh("echo has $CUDA_VISIBLE_DEVICES"),
                        hosts=["127.0.0.1 slots=4", "127.0.0.2 slots=4"]), 60)
        self.assertEqual(sorted(re.findall(r"^(\S+): .* has (\S+)$", text, re.MULTILINE)),
                         [("127.0.0.1", "2"), ("127.0.0.2", "0,3"), ("127.0.0.2", "0,3")])

    def train(self, *flags):
        return [*flags, "--no-python", find_program(CONVENE_TRAIN), *self.train_arguments(steps=100000, checkpoint_every=100000)]

    def assert_saved(self):
        last = read_metrics(self.path("metrics.jsonl"))[-1]["step"]
        self.assertTrue(os.path.exists(self.path(f"checkpoints/step_{last:08d}/manifest")), f"no checkpoint of step {last}")

    def test_control_c_saves_and_ends_all(self):
        terminal = Terminal(self, [find_program(CONVENE), *self.words(*self.train())], log="terminal.log")
        self.wait_for_step(5)
        terminal.type("\x03")
        self.finish(terminal.process, 60, 128 + signal.SIGINT)
        self.assert_saved()
        self.assert_nothing_left()

    def test_a_second_control_c_kills(self):
        words = self.words(*self.sh("trap '' INT TERM; echo up; while :; do sleep 1; done"))
        terminal = Terminal(self, [find_program(CONVENE), *words], log="terminal.log")
        wait_until(lambda: self.output(terminal.process).count("] up") == 2, 30, "both workers")
        terminal.type("\x03")
        wait_until(lambda: "are asked to stop" in self.output(terminal.process), 20, "the first is heard")
        time.sleep(1.2)
        terminal.type("\x03")
        self.assertIn("is killed", self.finish(terminal.process, 20, 128 + signal.SIGINT))
        self.assert_nothing_left()

    def test_the_end_of_the_terminal_saves_and_ends_all(self):
        terminal = Terminal(self, [find_program(CONVENE), *self.words(*self.train())], log="terminal.log")
        self.wait_for_step(5)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, terminal.master)  # Closes it, as a window that is closed does.
        os.close(null)
        self.finish(terminal.process, 60, 128 + signal.SIGHUP)
        self.assert_saved()
        self.assert_nothing_left()

    def test_a_killed_launch_leaves_nothing_and_the_agents_save(self):
        launch = self.launch(*self.train())
        self.wait_for_step(5)
        launch.kill()
        launch.wait(10)
        wait_until(lambda: not processes_with(self.marker), 40, "the hosts are empty")
        self.assert_saved()

    def test_a_launch_that_stands_still_is_as_good_as_dead(self):
        launch = self.launch("--link-timeout", 2, *self.sh("echo up; sleep 60"))
        wait_until(lambda: self.output(launch).count("up\n") == 2, 30, "both workers")
        launch.send_signal(signal.SIGSTOP)
        wait_until(lambda: not [pid for pid in processes_with(self.marker) if self.command_line(pid).startswith(b"sleep\0")], 20, "the workers are gone")
        launch.send_signal(signal.SIGCONT)
        self.finish(launch, 30, 128 + signal.SIGTERM)
        self.assert_nothing_left()

    @staticmethod
    def command_line(pid):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                return line.read()
        except (FileNotFoundError, ProcessLookupError):
            return b""

    def test_a_host_that_falls_silent_is_noticed_whatever_program_reaches_it(self):
        launch = self.launch("--link-timeout", 2, *self.sh("echo up; sleep 60"), hosts=["127.0.0.1"])
        wait_until(lambda: self.output(launch).count("up\n") == 1, 30, "the worker")
        silent = [pid for pid in processes_with(self.marker) if self.command_line(pid).endswith(b"/convene\0launched\0")]
        self.assertGreaterEqual(len(silent), 2, "the watcher and its agent")
        for pid in silent:
            os.kill(pid, signal.SIGSTOP)
        text = self.finish(launch, 30, 69)
        self.assertIn("the connection to 127.0.0.1 is lost (nothing came from there for 2.5s)", text)
        self.assertIn("no agent is left", text)
        for pid in silent:
            os.kill(pid, signal.SIGCONT)
        self.assert_nothing_left()

    def test_a_host_whose_link_breaks_ends_its_agent_and_comes_back(self):
        launch = self.launch("--nnodes", "1:2", "--admission-delay", 0.2, "--rdzv-conf", "last_call_timeout=5",
                             *self.sh(f"echo epoch $CONVENE_EPOCH of $WORLD_SIZE; until [ -e {self.path('done')} ]; do sleep 0.05; done"))
        wait_until(lambda: "[1] epoch 1 of 2" in self.output(launch), 30, "both workers")
        with open(self.path("link.127.0.0.2"), encoding="ascii") as pid:
            os.kill(int(pid.read()), signal.SIGKILL)
        wait_until(lambda: "127.0.0.2 is back" in self.output(launch), 40, "the host is back")
        wait_until(lambda: re.search(r"127\.0\.0\.2: \[1\] epoch [2-9] of 2", self.output(launch)), 30, "two nodes again")
        with open(self.path("done"), "w", encoding="ascii"):
            pass
        self.assertIn("the connection to 127.0.0.2 is lost", self.finish(launch, 30))
        self.assert_nothing_left()

    def start_with_leftovers(self):
        """A job on two hosts whose workers each leave a process that heeds nothing; no cgroup holds it."""
        script = f"trap '' TERM; setsid sleep 1000 & echo $! $PPID > {self.path('of')}.$CONVENE_EPOCH.$RANK; echo up; sleep 1001"
        launch = self.launch("--nnodes", "1:2", "--admission-delay", 0.2, "--rdzv-conf", "last_call_timeout=5",
                             "--export", "CONVENE_CGROUPS=off", *self.sh(script))
        wait_until(lambda: "[1] up" in self.output(launch) and "[0] up" in self.output(launch), 30, "both workers")
        with open(self.path("of.1.1"), encoding="ascii") as pids:
            leftover, agent = map(int, pids.read().split())
        wait_until(lambda: self.command_line(leftover).startswith(b"sleep"), 30, "the leftover, which is its shell's copy at first")
        with open(f"/proc/{agent}/task/{agent}/children", encoding="ascii") as children:
            guardians = [int(pid) for pid in children.read().split() if self.command_line(pid).startswith(b"convene-guard")]
        self.assertEqual(len(guardians), 1)
        return launch, leftover, agent, guardians[0]

    def kill(self, *pids):
        for number in (signal.SIGSTOP, signal.SIGKILL):  # At once: an agent starts another guardian.
            for pid in pids:
                os.kill(pid, number)

    def until_gone(self, pid, timeout_s):
        wait_until(lambda: not self.command_line(pid).startswith(b"sleep"), timeout_s, "the leftover's end")

    def until_told(self, launch, leftover):
        told = rf"was killed here and left .*sleep \(pid {leftover}\).*: killed now"
        wait_until(lambda: re.search(told, self.output(launch)), 10, lambda: f"the word of {leftover}'s end:\n{self.output(launch)}")

    def end(self, launch):
        launch.send_signal(signal.SIGTERM)
        time.sleep(1.1)
        launch.send_signal(signal.SIGINT)
        launch.wait(60)
        self.assert_nothing_left()

    def test_what_a_killed_agent_without_a_guardian_leaves_is_ended_by_its_watcher(self):
        launch, leftover, agent, guardian = self.start_with_leftovers()
        self.kill(agent, guardian)
        self.until_gone(leftover, 5)
        self.until_told(launch, leftover)
        self.end(launch)

    def test_what_is_left_when_agent_guardian_and_watcher_are_killed_is_ended_when_the_host_is_back(self):
        launch, leftover, agent, guardian = self.start_with_leftovers()
        with open(f"/proc/{agent}/stat", encoding="ascii") as stat:
            watcher = int(stat.read().rsplit(")", 1)[1].split()[1])
        self.kill(agent, guardian, watcher)
        self.until_gone(leftover, 40)
        wait_until(lambda: "127.0.0.2 is back" in self.output(launch), 40, "the host is back")
        self.until_told(launch, leftover)
        self.end(launch)


if __name__ == "__main__":
    side_by_side.main(at_once=4)
