"""An agent that hosts the rendezvous: where it listens, whom it serves, and until when."""

import contextlib
import http.server
import os
import random
import signal
import socket
import threading

from tests.support import side_by_side
from tests.support.convene_testing import CONVENE, ConveneTestCase, wait_until, whole_lines

# The worker writes that it has begun, and works until the file $DONE exists.
_WORKER = """
echo "$CONVENE_EPOCH $RANK $$" >> "$STARTS"
until [ -e "$DONE" ]; do sleep 0.05; done
"""


def free_endpoint(host="127.0.0.1"):
    with socket.create_server((host, 0)) as free:
        return f"{host}:{free.getsockname()[1]}"


class HostingTest(ConveneTestCase):

    def start_node(self, node_rank, endpoint, script, log, run="job"):
        return self.start(CONVENE, "run", "--nnodes", "2", "--node-rank", node_rank, "--rdzv-endpoint", endpoint, "--rdzv-id", run,
                          "--leftover-grace", 300, "--no-python", "sh", "-c", script, log=log, DIRECTORY=self.path(""))

    def wait_for(self, name):
        wait_until(lambda: os.path.exists(self.path(name)), 20, name)

    def test_any_loopback_address_is_a_place_to_meet(self):
        # 127.0.1.1 is what `hostname -i` says on Debian.
        endpoint = free_endpoint("127.0.1.1")
        self.finish(self.start(CONVENE, "run", "--nnodes", "1", "--rdzv-endpoint", endpoint, "--no-python", "true"), 20)
        nodes = [self.start_node(rank, endpoint, "exit 0", f"node{rank}") for rank in (0, 1)]
        for node in nodes:
            self.finish(node, 20)
        self.assert_nothing_left()

    def test_a_place_that_only_this_machine_finds_is_told_at_once_and_refused_where_the_scheduler_has_several(self):
        endpoint = free_endpoint()
        first = self.start_node(0, endpoint, "exit 0", "first")
        told = "only nodes on this machine can meet there"
        wait_until(lambda: "hosting the rendezvous" in self.output(first), 20, "the host")
        self.assertIn(told, self.output(first))
        self.assertIn("scontrol show hostnames", self.output(first))
        self.finish(self.start_node(1, endpoint, "exit 0", "second"), 20)  # Two agents of one machine are a job as before.
        self.finish(first, 20)
        alone = self.start(CONVENE, "run", "--nnodes", 1, "--rdzv-endpoint", endpoint, "--no-python", "true")
        self.assertNotIn(told, self.finish(alone, 20))
        step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[1-2]",
                "SLURM_NODEID": "1", "SLURMD_NODENAME": "n2", "SLURM_LOCALID": "0", "SLURM_GTIDS": "1", "SLURM_STEP_NUM_TASKS": "2"}
        ranks = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                 "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
        for program, code in ((CONVENE, 64), ("launcher/torchrun", 2)):
            words = [program, "run"] if program == CONVENE else [program, "--rdzv-backend", "c10d"]
            for scheduler in (step, ranks):
                for nodes in ("2", "1:2"):
                    node = self.start(*words, "--nnodes", nodes, "--rdzv-endpoint", endpoint, "--no-python", "true",
                                      SLURM_PTY_PORT=None, **scheduler)
                    self.assertIn("on each of the 2 machines where the scheduler started this command", self.finish(node, 5, code))
        self.assert_nothing_left()

    def start_scheduled(self, job, log):
        """The first of two nodes of a step, as srun would start it here; the nodes meet where the numbers of job and step say."""
        return self.start(CONVENE, "run", "--nnodes", "1:2", "--no-python", "sh", "-c", "until [ -e $DIRECTORY/done ]; do sleep 0.05; done",
                          log=log, DIRECTORY=self.path(""), SLURM_JOB_ID=str(job), SLURM_STEP_ID="0", SLURM_STEP_NUM_NODES="2",
                          SLURM_STEP_NODELIST="n[1-2]", SLURM_NODEID="0", SLURMD_NODENAME="n1", SLURM_LOCALID="0", SLURM_GTIDS="0",
                          SLURM_STEP_NUM_TASKS="2", SLURM_PTY_PORT=None)

    @staticmethod
    def free_job():
        """The number of a job whose place is free, and its port."""
        while True:
            job = random.randrange(10 ** 6)
            port = 29400 + 16 * job % 3200
            with contextlib.suppress(OSError), socket.create_server(("0.0.0.0", port)):
                return job, port

    def test_two_jobs_whose_numbers_lead_to_one_port_do_not_meet_and_the_second_is_told_what_to_give(self):
        job, port = self.free_job()
        first = self.start_scheduled(job, "first")
        wait_until(lambda: "hosting the rendezvous" in self.output(first), 20, "the host")
        text = self.finish(self.start_scheduled(job + 200, "second"), 20, 64)
        self.assertIn(f'this daemon is that of run "{job}.0" alone, and not of run "{job + 200}.0". Port {port} follows from the numbers', text)
        self.assertIn("--rdzv-endpoint n1:PORT", text)
        with open(self.path("done"), "w", encoding="utf-8"):
            pass
        self.finish(first, 40)
        self.assert_nothing_left()

    def test_another_program_at_the_port_of_a_job_s_numbers_is_told_as_such(self):
        job, port = self.free_job()
        with http.server.ThreadingHTTPServer(("0.0.0.0", port), http.server.BaseHTTPRequestHandler) as other:
            threading.Thread(target=other.serve_forever, daemon=True).start()
            text = self.finish(self.start_scheduled(job, "log"), 40, 64)
            other.shutdown()
        self.assertIn("is no rendezvous daemon", text)
        self.assertIn(f"Port {port} follows from the numbers of job and step", text)
        self.assert_nothing_left()

    def test_told_to_end_it_serves_until_the_other_nodes_of_its_run_have_saved(self):
        endpoint = free_endpoint()
        # Rank 1 saves for longer than the lease of 5 s.
        script = """
            trap 'if [ "$RANK" = 1 ]; then sleep 8; touch "$DIRECTORY/saved"; fi; exit 0' TERM
            touch "$DIRECTORY/started.$RANK"
            while :; do sleep 0.05; done"""
        host = self.start_node(0, endpoint, script, "host")
        wait_until(lambda: "hosting the rendezvous" in self.output(host), 20, "the host")
        other = self.start_node(1, endpoint, script, "other")
        for rank in (0, 1):
            self.wait_for(f"started.{rank}")
        for agent in (host, other):  # As `scancel` does.
            agent.send_signal(signal.SIGTERM)
        wait_until(lambda: "other nodes of run \"job\" still stop their workers" in self.output(host), 20, "the word of the host")
        self.finish(other, 40, 128 + signal.SIGTERM)
        self.assertTrue(os.path.exists(self.path("saved")))
        self.finish(host, 20, 128 + signal.SIGTERM)
        self.assert_nothing_left()

    def test_it_does_not_stay_for_a_run_that_waits_for_the_next_command_of_its_machine(self):
        # Both nodes' scripts have two commands. The first one of node 0 ends late, because its worker leaves a process that still works.
        endpoint = free_endpoint()
        first = "[ $RANK = 1 ] || { until [ -e $DIRECTORY/joined ]; do sleep 0.05; done & }"
        nodes = [self.start_node(0, endpoint, first, "host")]
        wait_until(lambda: "hosting the rendezvous" in self.output(nodes[0]), 20, "the host")
        nodes.append(self.start_node(1, endpoint, first, "other"))
        self.finish(nodes[1], 20)
        self.assertIsNone(nodes[0].poll())
        early = self.start_node(1, endpoint, "exit 0", "early")
        wait_until(lambda: "job" in self.status(endpoint) and "forming" in self.status(endpoint), 20, "the second run at the old daemon")
        self.assertIsNone(nodes[0].poll())
        with open(self.path("joined"), "w", encoding="utf-8"):
            pass
        self.finish(nodes[0], 20)
        late = self.start_node(0, endpoint, "exit 0", "late")
        self.finish(late, 30)
        self.finish(early, 30)
        self.assert_nothing_left()

    def test_a_run_that_waits_for_its_first_epoch_is_told_whose_rendezvous_it_lost(self):
        endpoint = free_endpoint()
        first = self.start_node(0, endpoint, "until [ -e $DIRECTORY/joined ]; do sleep 0.05; done", "first", run="first")
        wait_until(lambda: "hosting the rendezvous" in self.output(first), 20, "the host")
        other = self.start_node(1, endpoint, "exit 0", "other", run="first")
        wait_until(lambda: "start here" in self.output(first), 20, "the first run")
        waiting = self.start(CONVENE, "run", "--nnodes", 2, "--rdzv-endpoint", endpoint, "--rdzv-id", "second", "--rdzv-conf",
                             "is_host=0,join_timeout=3", "--no-python", "true")
        wait_until(lambda: "second" in self.status(endpoint), 20, "the second run")
        with open(self.path("joined"), "w", encoding="utf-8"):
            pass
        self.assertIn('the rendezvous with it: run "second", which waits for its first epoch, loses its rendezvous', self.finish(first, 20))
        self.finish(other, 20)
        last = self.finish(waiting, 30, 69).splitlines()[-1]
        host = f'the command of run "first" on {socket.gethostname()}'
        self.assertIn(f"was lost (the rendezvous daemon is stopping: it is part of {host}, which ends)", last)
        self.assert_nothing_left()

    def status(self, endpoint):
        asked = self.start(CONVENE, "status", "--endpoint", endpoint)
        asked.wait(20)
        return self.output(asked)

    def start_two_runs_on_one_rendezvous(self):
        """The agent of the run "first", which hosts the rendezvous of both, and the one of "second"; each runs until a file is there."""
        endpoint = free_endpoint()
        agents = []
        for run, says in (("first", "hosting the rendezvous"), ("second", "epoch 1: node 0 of 1")):
            agents.append(self.start(CONVENE, "run", "--nnodes", "1", "--rdzv-endpoint", endpoint, "--rdzv-id", run, "--no-python",
                                     "sh", "-c", _WORKER, log=run, STARTS=self.path("starts." + run), DONE=self.path("done." + run)))
            wait_until(lambda: says in self.output(agents[-1]) and os.path.exists(self.path("starts." + run)), 20, f"the run {run}")
        return agents

    def end_run(self, run):
        with open(self.path("done." + run), "w", encoding="utf-8"):
            pass

    def test_an_agent_that_hosts_the_rendezvous_of_another_run_stays_until_that_is_over(self):
        first, second = self.start_two_runs_on_one_rendezvous()
        self.end_run("first")
        wait_until(lambda: 'run "second" still needs it' in self.output(first), 20, "the word of the agent that stays")
        self.assertIsNone(second.poll())
        self.end_run("second")
        self.finish(second, 20)
        self.assertIn("no job needs the rendezvous of this process any more", self.finish(first, 20))
        with open(self.path("starts.second"), encoding="utf-8") as starts:
            self.assertEqual(len(starts.readlines()), 1)  # It was never disturbed.
        self.assert_nothing_left()

    def test_an_agent_that_stays_for_another_run_ends_at_a_signal_with_its_own_code(self):
        first, second = self.start_two_runs_on_one_rendezvous()
        self.end_run("first")
        wait_until(lambda: 'run "second" still needs it' in self.output(first), 20, "the word of the agent that stays")
        first.send_signal(signal.SIGTERM)
        self.assertIn('hands the rendezvous over: run "second" goes on', self.finish(first, 20))
        # It is on the endpoint's machine too: it hosts the rendezvous itself, and its worker works on.
        wait_until(lambda: "hosting the rendezvous" in self.output(second), 40, "another host")
        self.end_run("second")
        self.finish(second, 40)
        with open(self.path("starts.second"), encoding="utf-8") as starts:
            self.assertEqual(len(starts.readlines()), 1)
        self.assert_nothing_left()

    # ---- a host that leaves an elastic run ----

    def start_agent(self, node, nodes, endpoint, script, *flags):
        return self.start(CONVENE, "run", "--nnodes", nodes, "--rdzv-endpoint", endpoint, "--rdzv-id", "job", *flags, "--no-python", "sh",
                          "-c", script, log=f"node{node}", STARTS=self.path("starts"), DONE=self.path("done"), NODE=str(node))

    def start_run(self, count, script=_WORKER, *flags, nodes=None):
        """`count` agents of one run (elastic, unless `nodes` says otherwise), the host first, whose workers run together."""
        endpoint = free_endpoint()
        agents = []
        for node in range(count):
            agents.append(self.start_agent(node, nodes or f"1:{count}", endpoint, script, *flags))
            wait_until(lambda: "hosting the rendezvous" in self.output(agents[0]), 20, "the host")
        self.wait_for_epoch(count)
        return endpoint, agents

    def starts(self):
        """(epoch, rank, pid) of each start of a worker."""
        return [tuple(map(int, line.split())) for line in whole_lines(self.path("starts"))]

    def wait_for_epoch(self, count, above=0):
        """The number of the latest epoch, once it is above `above` and has `count` workers."""
        def latest():
            epochs = [epoch for epoch, _, _ in self.starts()]
            return max(epochs) if epochs and max(epochs) > above and epochs.count(max(epochs)) == count else None
        return wait_until(latest, 30, lambda: f"an epoch of {count} above {above}: {self.starts()}")

    def end_work(self, agents, expected_code=0):
        with open(self.path("done"), "w", encoding="utf-8"):
            pass
        for agent in agents:
            self.finish(agent, 30, expected_code)
        self.assert_nothing_left()

    def wait_for_one_host(self, agents):
        """Until each agent is back at the rendezvous; the one that hosts it."""
        for agent in agents:
            wait_until(lambda: "the rendezvous answers again" in self.output(agent), 20, "the rendezvous")
        host, = [agent for agent in agents if "hosting the rendezvous" in self.output(agent)]
        return host

    def leave(self, count, *flags):
        """The host of a run of `count` nodes leaves: the others restart once, and one of them hosts."""
        _, agents = self.start_run(count, _WORKER, *flags)
        epoch = self.wait_for_epoch(count)
        leaver = agents.pop(0)
        leaver.send_signal(signal.SIGTERM)
        self.assertIn('hands the rendezvous over: run "job" goes on', self.finish(leaver, 20, 128 + signal.SIGTERM))
        self.assertEqual(self.wait_for_epoch(count - 1, above=epoch), epoch + 1)
        self.wait_for_one_host(agents)
        self.end_work(agents)
        self.assertEqual([start for start, _, _ in self.starts() if start > epoch], [epoch + 1] * (count - 1))

    def test_the_other_node_restarts_once_when_the_host_leaves(self):
        self.leave(2)

    def test_one_of_two_survivors_hosts_and_both_restart_once(self):
        self.leave(3)

    def test_a_locked_run_is_handed_over_as_well(self):
        token = self.path("token")
        with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            file.write("0123456789abcdefghijklmnop\n")
        self.leave(2, "--join-token-file", token)

    def test_the_next_host_knows_what_the_run_has_cost(self):
        endpoint, agents = self.start_run(2, _WORKER, "--max-restarts", 1)
        epoch = self.wait_for_epoch(2)
        os.kill(self.starts()[-1][2], signal.SIGKILL)
        epoch = self.wait_for_epoch(2, above=epoch)
        agents[0].send_signal(signal.SIGTERM)
        self.finish(agents[0], 20, 128 + signal.SIGTERM)
        self.wait_for_epoch(1, above=epoch)
        self.wait_for_one_host(agents[1:])
        asked = self.start(CONVENE, "incidents", "--endpoint", endpoint, "job")
        self.assertIn("killed by SIGKILL", self.finish(asked, 20))
        os.kill(self.starts()[-1][2], signal.SIGKILL)
        self.assertIn("--max-restarts allows 1", self.finish(agents[1], 20, 1))
        self.assert_nothing_left()

    def test_a_host_that_is_killed_while_it_leaves_is_as_one_that_was_killed(self):
        # Node 1's worker takes a while to stop, and the host waits for it.
        _, agents = self.start_run(2, "trap '[ $NODE = 0 ] || sleep 3; exit 0' TERM" + _WORKER)
        epoch = self.wait_for_epoch(2)
        agents[0].send_signal(signal.SIGTERM)
        wait_until(lambda: "still stop their workers" in self.output(agents[0]), 20, "the host that waits")
        agents[0].kill()
        self.assertEqual(agents[0].wait(10), -signal.SIGKILL)
        wait_until(lambda: "hosting the rendezvous" in self.output(agents[1]), 20, "another host")
        self.assertGreater(self.wait_for_epoch(1, above=epoch), epoch)
        self.end_work(agents[1:])

    def test_a_survivor_that_dies_before_it_takes_over_leaves_it_to_the_other(self):
        # Node 2 is the last to stop its worker: by then the agent of node 1 is ready, and stands still.
        endpoint, agents = self.start_run(3, "trap '[ $NODE != 2 ] || sleep 3; exit 0' TERM" + _WORKER)
        epoch = self.wait_for_epoch(3)
        agents[0].send_signal(signal.SIGTERM)
        wait_until(lambda: "  ready  " in self.status(endpoint), 20, "the first node that has stopped its worker")
        agents[1].send_signal(signal.SIGSTOP)
        self.finish(agents[0], 20, 128 + signal.SIGTERM)
        wait_until(lambda: "hosting the rendezvous" in self.output(agents[2]), 20, "the other host")
        agents[1].kill()
        agents[1].wait(10)
        self.wait_for_epoch(1, above=epoch + 1)  # Without the dead one, when its lease is over.
        self.end_work(agents[2:])

    def test_the_host_and_another_node_leave_at_once(self):
        _, agents = self.start_run(3)
        epoch = self.wait_for_epoch(3)
        for leaver in agents[:2]:
            leaver.send_signal(signal.SIGTERM)
        for leaver in agents[:2]:
            self.finish(leaver, 20, 128 + signal.SIGTERM)
        self.wait_for_epoch(1, above=epoch)
        wait_until(lambda: "hosting the rendezvous" in self.output(agents[2]), 20, "another host")
        self.end_work(agents[2:])

    def test_a_run_of_two_nodes_goes_on_with_a_new_one_in_place_of_its_host(self):
        endpoint, agents = self.start_run(2, nodes="2")
        epoch = self.wait_for_epoch(2)
        agents[0].send_signal(signal.SIGTERM)
        self.finish(agents[0], 20, 128 + signal.SIGTERM)
        wait_until(lambda: "hosting the rendezvous" in self.output(agents[1]), 20, "another host")
        self.assertEqual(self.wait_for_epoch(2), epoch)  # One node alone begins nothing.
        agents.append(self.start_agent(2, "2", endpoint, _WORKER))
        self.assertEqual(self.wait_for_epoch(2, above=epoch), epoch + 1)
        self.end_work(agents[1:])

    def test_a_host_that_leaves_as_the_last_node_hands_nothing_over(self):
        _, agents = self.start_run(1)
        agents[0].send_signal(signal.SIGTERM)
        self.assertNotIn("hands the rendezvous over", self.finish(agents[0], 20, 128 + signal.SIGTERM))
        self.assert_nothing_left()


if __name__ == "__main__":
    side_by_side.main(at_once=3)
