"""`convene logs`: the output of the workers of all nodes, seen from another process."""

import json
import os
import re
import signal
import subprocess
import time
import unittest

from tests.support.convene_testing import (
    CONVENE, CONVENED, ConveneTestCase, find_program, processes_with, environment_of, wait_until)

# Prints a line each 20 ms until the file named in $1 is there.
CHATTER = 'i=0; while [ ! -e "$0" ]; do i=$((i+1)); echo "rank $RANK line $i"; sleep 0.02; done'
LINE = re.compile(r"^\[(\d+)\] rank (\d+) line (\d+)$", re.M)


def resident_kb(pid, what="VmRSS"):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return int(next(line for line in status if line.startswith(what)).split()[1])


class LogsTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        self.daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", 0, log="daemon.log")
        self.port = int(self.wait_for(self.daemon, r"serving the rendezvous on 127.0.0.1:(\d+)"))
        self.end = self.path("end")

    def wait_for(self, process, pattern, timeout_s=30):
        """The first group of the first match in a program's output."""
        found = wait_until(lambda: re.search(pattern, self.output(process), re.M), timeout_s,
                           f"{pattern} in {process.log_path}")
        return found.group(1) if found.groups() else found.group(0)

    def agent(self, rank, nodes, *program, flags=(), run="run1"):
        return self.start(
            CONVENE, "run", "--nnodes", nodes, "--node-rank", rank, "--rdzv-id", run,
            "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--local-addr", f"127.0.0.{rank + 1}",
            "--rdzv-conf", "is_host=0", "--nproc-per-node", 2, *flags, *program,
            log=f"agent{rank}.log")

    def chatting_job(self, nodes=3, **kwargs):
        agents = [self.agent(rank, nodes, "sh", "-c", CHATTER, self.end, **kwargs)
                  for rank in range(nodes)]
        for agent in agents:
            self.wait_for(agent, r"line 3$")
        return agents

    def viewer(self, *flags, run="run1", log=None):
        return self.start(CONVENE, "logs", run, "--endpoint", f"127.0.0.1:{self.port}", *flags,
                          log=log)

    def finish_job(self, agents):
        open(self.end, "w").close()
        for agent in agents:
            self.finish(agent, 30)

    def ranks_seen(self, viewer):
        """Of the lines, with a check that each is told as the rank's that wrote it."""
        lines = LINE.findall(self.output(viewer))
        for told, wrote, _ in lines:
            self.assertEqual(told, wrote)
        return {int(told) for told, _, _ in lines}

    def test_the_last_lines_of_all_nodes_in_order(self):
        agents = self.chatting_job()
        text = self.finish(self.viewer("--tail", 4, "--timestamps"), 20)
        lines = text.splitlines()
        self.assertEqual(len(lines), 3 * 4, text)
        self.assertEqual(lines, sorted(lines, key=lambda line: line.split(" [")[0]))
        self.assertGreaterEqual({int(line.split("[")[1].split("]")[0]) // 2 for line in lines}, {0, 1, 2})
        self.finish_job(agents)

    def test_following_from_the_first_line_to_the_end_of_the_run(self):
        agents = self.chatting_job()
        viewer = self.viewer("-f", "--tail", "all")
        wait_until(lambda: self.ranks_seen(viewer) == set(range(6)), 20, "lines of all ranks")
        self.finish_job(agents)
        text = self.finish(viewer, 20)
        self.assertIn("the run run1 is over: succeeded", text)
        # Not one is missing, doubled or out of order, from the first to the last that was printed.
        for rank in range(6):
            numbers = [int(n) for told, _, n in LINE.findall(text) if int(told) == rank]
            self.assertEqual(numbers, list(range(1, len(numbers) + 1)), f"rank {rank}")
            printed = re.findall(rf"rank {rank} line (\d+)", self.output(agents[rank // 2]))
            self.assertEqual(len(numbers), len(printed), f"rank {rank}")

    def test_filters(self):
        agents = self.chatting_job()
        of_rank = self.finish(self.viewer("--rank", "0,3"), 20)
        self.assertEqual({r for r, _, _ in LINE.findall(of_rank)}, {"0", "3"})
        of_local = self.finish(self.viewer("--local-rank", "1"), 20)
        self.assertEqual({r for r, _, _ in LINE.findall(of_local)}, {"1", "3", "5"})
        of_node = self.finish(self.viewer("--node", "127.0.0.2"), 20)
        self.assertEqual({r for r, _, _ in LINE.findall(of_node)}, {"2", "3"})
        self.assertEqual(self.finish(self.viewer("--stderr"), 20), "")
        objects = [json.loads(line)
                   for line in self.finish(self.viewer("--json", "--rank", 5), 20).splitlines()]
        self.assertTrue(objects)
        self.assertEqual({(o["node"], o["rank"], o["local_rank"], o["stream"]) for o in objects},
                         {("127.0.0.3", 5, 1, "stdout")})
        self.finish_job(agents)

    def test_a_restart_is_followed(self):
        script = ('echo "rank $RANK epoch $CONVENE_EPOCH"; '
                  f'while [ ! -e {self.end} ]; do sleep 0.02; done')
        agents = [self.agent(rank, 3, "sh", "-c", script, flags=("--max-restarts", 3))
                  for rank in range(3)]
        viewer = self.viewer_when_there("-f")
        wait_until(lambda: len(re.findall("rank . epoch 1", self.output(viewer))) == 6, 20,
                   "the first epoch's lines")
        victim = next(pid for pid in processes_with(self.marker)
                      if environment_of(pid).get("RANK") == "3")
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(set(re.findall(r"^\[(.)\] rank \1 epoch 2", self.output(viewer), re.M))) == 6,
                   20, "the second epoch's lines")
        self.finish_job(agents)
        self.finish(viewer, 20)

    def viewer_when_there(self, *flags):
        """A viewer of a run that an agent is about to begin."""
        status = [find_program(CONVENE), "status", "run1", "--endpoint", f"127.0.0.1:{self.port}"]
        wait_until(lambda: subprocess.run(status, capture_output=True).returncode == 0, 20, "the run")
        return self.viewer(*flags)

    def test_a_node_that_joins_later_is_followed(self):
        agents = [self.agent(0, "1:2", "sh", "-c", CHATTER, self.end,
                             flags=("--rdzv-conf", "last_call_timeout=0.1,is_host=0"))]
        self.wait_for(agents[0], "line 3")
        viewer = self.viewer("-f", "--tail", 0)
        self.wait_for(viewer, "rank 0 line")
        agents.append(self.agent(1, "1:2", "sh", "-c", CHATTER, self.end))
        wait_until(lambda: {2, 3} <= self.ranks_seen(viewer), 30, "the other node's lines")
        self.assertIn("127.0.0.2 has joined", self.output(viewer))
        self.finish_job(agents)
        self.finish(viewer, 20)

    def test_two_viewers_and_one_that_is_killed(self):
        agents = self.chatting_job()
        first, second = self.viewer("-f"), self.viewer("-f", "--rank", 4)
        wait_until(lambda: self.ranks_seen(first) == set(range(6)), 20, "lines of all ranks")
        wait_until(lambda: self.ranks_seen(second) == {4}, 20, "lines of rank 4")
        first.kill()
        first.wait(5)
        # Its publishers end: one thread a node is left, of the other viewer.
        wait_until(lambda: [self.publishing(agent) for agent in agents] == [1, 1, 1], 10,
                   "the publishing threads to end")
        before = len(self.output(second))
        wait_until(lambda: len(self.output(second)) > before, 10, "more lines")
        second.kill()
        second.wait(5)
        wait_until(lambda: [self.publishing(agent) for agent in agents] == [0, 0, 0], 10,
                   "the publishing threads to end")
        self.finish_job(agents)

    def publishing(self, agent):
        names = []
        for task in os.listdir(f"/proc/{agent.pid}/task"):
            try:
                with open(f"/proc/{agent.pid}/task/{task}/comm", encoding="ascii") as comm:
                    names.append(comm.read().strip())
            except OSError:
                pass  # It has just ended.
        return names.count("publish-logs")

    def test_an_agent_that_is_killed_is_told_and_the_others_go_on(self):
        agents = self.chatting_job(flags=("--max-restarts", 3, "--nnodes", "2:3"))
        viewer = self.viewer("-f")
        wait_until(lambda: self.ranks_seen(viewer) == set(range(6)), 20, "lines of all ranks")
        agents[2].kill()
        self.wait_for(viewer, "127.0.0.3 is gone")
        before = len(self.output(viewer))
        wait_until(lambda: {"0", "1", "2", "3"} <=
                   {r for r, _, _ in LINE.findall(self.output(viewer)[before:])}, 30,
                   "lines of the others")
        self.finish_job(agents[:2])
        self.assertIn("is over: succeeded", self.finish(viewer, 20))

    def test_a_viewer_that_does_not_read_slows_nobody_and_is_told_what_it_lost(self):
        # 200 MB, as fast as it can; nothing of it goes to the console.
        line, count = "a line of output that is as long as they are in a log file " + 20 * "-", 2_500_000
        script = (f'while [ ! -e $0.go ]; do sleep 0.01; done; yes "{line}" | head -n {count}; '
                  'echo written; while [ ! -e $0 ]; do sleep 0.02; done')
        agent = self.start(
            CONVENE, "run", "--rdzv-id", "run1", "--rdzv-endpoint", f"127.0.0.1:{self.port}",
            "--rdzv-conf", "is_host=0", "--local-ranks-filter", "1", "--nproc-per-node", 1,
            "sh", "-c", script, self.end, log="agent.log")
        self.wait_for(agent, "start here")
        read_end, write_end = os.pipe()
        with open(self.path("notices"), "wb") as notices:
            viewer = subprocess.Popen(
                [find_program(CONVENE), "logs", "run1", "-f", "--endpoint", f"127.0.0.1:{self.port}"],
                stdout=write_end, stderr=notices, stdin=subprocess.DEVNULL)
        os.close(write_end)
        self.addCleanup(viewer.wait)
        self.addCleanup(viewer.kill)
        wait_until(lambda: self.publishing(agent) == 1, 10, "the agent to publish")
        daemon_kb, agent_kb = resident_kb(self.daemon.pid), resident_kb(agent.pid)
        open(self.end + ".go", "w").close()
        # A second viewer shows when the worker has written all: it sees every line that the agent has read.
        started = time.monotonic()
        seen = lambda: "written" in subprocess.run(
            [find_program(CONVENE), "logs", "run1", "--tail", "1", "--endpoint", f"127.0.0.1:{self.port}"],
            capture_output=True, text=True).stdout
        wait_until(seen, 60, "the worker to have written all")
        print(f"200 MB in {time.monotonic() - started:.1f} s; daemon {daemon_kb} kB, then "
              f"{resident_kb(self.daemon.pid, 'VmHWM')} kB; agent {agent_kb} kB, then "
              f"{resident_kb(agent.pid, 'VmHWM')} kB")
        self.assertLess(resident_kb(self.daemon.pid, "VmHWM") - daemon_kb, 8 * 1024)
        self.assertLess(resident_kb(agent.pid, "VmHWM") - agent_kb, 8 * 1024)
        open(self.end, "w").close()
        with os.fdopen(read_end, "rb") as pipe:
            text = pipe.read()
        viewer.wait(10)
        self.finish(agent, 20)
        with open(self.path("notices"), encoding="utf-8") as f:
            notices = f.read()
        lost = sum(int(n) for n in re.findall(r"\.\.\. (\d+) lines of \S+ lost", notices))
        self.assertEqual(lost + text.count(b"\n"), count + 1, notices)
        self.assertGreater(lost, 1_000_000)

    def test_while_nothing_is_printed_it_waits_and_ends_at_once(self):
        agent = self.start(
            CONVENE, "run", "--rdzv-id", "run1", "--rdzv-endpoint", f"127.0.0.1:{self.port}",
            "--rdzv-conf", "is_host=0", "sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.02; done', self.end)
        self.wait_for(agent, "start here")
        viewer = self.viewer("-f")
        wait_until(lambda: self.publishing(agent) == 1, 10, "the agent to publish")
        viewer.send_signal(signal.SIGINT)
        self.assertEqual(viewer.wait(2), -signal.SIGINT)
        wait_until(lambda: self.publishing(agent) == 0, 10, "the agent to have ended publishing")
        self.finish_job([agent])

    def test_what_is_not_there(self):
        self.assertIn("knows no run run1, nor any other", self.finish(self.viewer(), 20, 64))
        agents = self.chatting_job(flags=("--log-dir", self.path("logs"), "-t", 3))
        self.assertIn("knows no run other; it has run1", self.finish(self.viewer(run="other"), 20, 64))
        self.assertIn("has no node moon; it has 127.0.0.1, 127.0.0.2, 127.0.0.3",
                      self.finish(self.viewer("--node", "moon"), 20, 64))
        self.finish_job(agents)
        over = self.finish(self.viewer(), 20, 64)
        self.assertIn("the run run1 is over (succeeded", over)
        directory = re.search(r"127\.0\.0\.2:(\S+)", over).group(1)
        self.assertTrue(os.path.isdir(os.path.join(directory, "attempt_0", "0")), over)
        self.daemon.kill()
        self.daemon.wait(5)
        self.assertIn("no rendezvous at", self.finish(self.viewer(), 20, 69))

    def test_a_daemon_that_is_killed_and_comes_back_is_waited_for(self):
        self.daemon.kill()
        self.daemon.wait(5)
        self.daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", self.port, "--state-dir",
                                 self.path("state"), log="daemon.log")
        agents = self.chatting_job(flags=("--rdzv-conf", "is_host=0,keep_alive_interval=5"))
        viewer = self.viewer("-f", "--tail", "all")
        wait_until(lambda: self.ranks_seen(viewer) == set(range(6)), 20, "lines of all ranks")
        self.daemon.kill()
        self.daemon.wait(5)
        self.wait_for(viewer, "waiting for it")
        self.daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", self.port, "--state-dir",
                                 self.path("state"), log="daemon.log")
        before = len(self.output(viewer))
        wait_until(lambda: len({r for r, _, _ in LINE.findall(self.output(viewer)[before:])}) == 6, 30,
                   "lines of all ranks again")
        self.finish_job(agents)
        text = self.finish(viewer, 20)
        # No line of any rank is missing or shown twice.
        for rank in range(6):
            numbers = [int(n) for told, _, n in LINE.findall(text) if int(told) == rank]
            self.assertEqual(numbers, list(range(1, len(numbers) + 1)), f"rank {rank}")

    def test_of_a_job_that_serves_its_own_rendezvous_the_end_is_seen(self):
        self.daemon.kill()
        self.daemon.wait(5)
        first = self.start(
            CONVENE, "run", "--nnodes", 2, "--node-rank", 0, "--rdzv-id", "run1", "--rdzv-endpoint",
            f"127.0.0.1:{self.port}", "--nproc-per-node", 2, "sh", "-c", CHATTER, self.end)
        agents = [first, self.agent(1, 2, "sh", "-c", CHATTER, self.end)]
        self.wait_for(first, "line 3$")
        viewer = self.viewer("-f")
        wait_until(lambda: self.ranks_seen(viewer) == set(range(4)), 20, "lines of all ranks")
        self.finish_job(agents)
        text = self.finish(viewer, 20)
        self.assertIn("is over: succeeded", text)
        for rank in range(4):
            printed = re.findall(rf"rank {rank} line (\d+)", self.output(agents[rank // 2]))
            self.assertIn(f"[{rank}] rank {rank} line {printed[-1]}\n", text)


if __name__ == "__main__":
    unittest.main()
