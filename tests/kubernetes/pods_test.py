"""`convene run` as a pod's entrypoint: it finds its place, waits for names, stops in order, comes back with another address."""

import os
import signal
import time
import unittest

from tests.kubernetes.pods import PodsTestCase
from tests.support.convene_testing import CONVENE_TRAIN, find_program, processes_with, read_metrics, wait_until

_SHOW = 'echo "rank=$RANK world=$WORLD_SIZE master=$MASTER_PORT run=$TORCHELASTIC_RUN_ID"'
_UNTIL_DONE = 'until [ -e "$DONE" ]; do sleep 0.02; done'


class PodsTest(PodsTestCase):

    def done(self):
        with open(self.path("done"), "w", encoding="ascii"):
            pass

    def test_an_indexed_job_finds_itself_and_waits_for_pod_0(self):
        first, second = self.pod("llama-0"), self.pod("llama-1")
        shell = ["--nnodes", 2, "--no-python", "sh", "-c", _SHOW]
        self.run_in(second, *shell, index=1)
        second.publish()
        wait_until(lambda: "waiting until its pod is there" in second.log(), 10, "the wait for pod 0")
        self.run_in(first, *shell, index=0)
        first.publish()
        for rank, pod in enumerate((first, second)):
            text = self.finish(pod.process, 20)
            self.assertIn(f"[{rank}] rank={rank} world=2 ", text)
            self.assertIn(" run=llama\n", text)
            self.assertNotIn("tcp://", text.split(f"[{rank}] rank=")[1])
            self.assertIn(f"node rank {rank}, by JOB_COMPLETION_INDEX", text)
            self.assertIn("endpoint llama-0.train.lab.svc.cluster.local:29400, by this pod's name", text)
        self.assert_nothing_left()

    def test_a_pod_name_that_never_resolves_is_one_paragraph_at_the_deadline(self):
        pod = self.pod("llama-1")
        begin = time.monotonic()
        self.run_in(pod, "--nnodes", 2, "--rdzv-conf", "join_timeout=2,last_call_timeout=1", "--no-python", "/bin/true", index=1)
        text = self.finish(pod.process, 10, expected_code=69)
        self.assertLess(time.monotonic() - begin, 4)
        self.assertIn("publishNotReadyAddresses: true. Look at `kubectl get pods -o wide`", text.strip().splitlines()[-1])

    def test_pid_1_ends_at_once_while_it_waits_for_a_name(self):
        pod = self.pod("llama-1")
        self.run_in(pod, "--nnodes", 2, "--no-python", "/bin/true", index=1)
        wait_until(lambda: "waiting until its pod is there" in pod.log(), 10, "the wait for pod 0")
        pod.evict(2)

    def test_a_pytorchjob_counts_pods_and_its_variables_reach_no_worker(self):
        master, worker = self.pod("llama-master-0"), self.pod("llama-worker-0")
        shell = ["--nproc-per-node", 2, "--no-python", "sh", "-c", _SHOW]
        for pod, rank in ((master, "0"), (worker, "1")):
            # `start` takes these four away from what it inherits, so they are set on the way.
            variables = ["MASTER_ADDR=llama-master-0.train", "MASTER_PORT=23456", "WORLD_SIZE=2", f"RANK={rank}"]
            prefix = pod.prefix
            pod.prefix = lambda prefix=prefix, variables=variables: [*prefix(), "env", *variables]
            self.run_in(pod, *shell)
            pod.publish()
        for rank, pod in enumerate((master, worker)):
            text = self.finish(pod.process, 20)
            for local_rank in range(2):
                self.assertIn(f"rank={2 * rank + local_rank} world=4 ", text)
            self.assertNotIn("master=23456", text)
        self.assert_nothing_left()

    def test_an_evicted_pod_saves_first_and_its_successor_comes_with_another_address(self):
        pods = [self.pod("llama-0"), self.pod("llama-1")]
        trainer = ["--no-python", find_program(CONVENE_TRAIN), *self.train_arguments(steps=60, checkpoint_every=1000)]
        self.start_agents(pods, "--stop-grace", "signal=8", *trainer)
        self.wait_for_step(10)
        pods[1].evict(10)
        saved = max(m["step"] for m in read_metrics(self.path("metrics.jsonl")))
        old = pods[1].host.address
        pods[1].move()
        self.assertNotEqual(pods[1].host.address, old)
        self.run_in(pods[1], "--nnodes", 2, "--stop-grace", "signal=8", *trainer, index=1)
        pods[1].publish()
        text = [self.finish(pod.process, 60) for pod in pods]
        steps = [m["step"] for m in read_metrics(self.path("metrics.jsonl"))]
        self.assertEqual(steps, list(range(1, 61)), f"saved {saved}\n{text[0][-3000:]}")
        self.assert_nothing_left()

    def test_all_pods_deleted_at_once_come_back_and_lose_no_step(self):
        pods = [self.pod("llama-0"), self.pod("llama-1")]
        trainer = ["--no-python", find_program(CONVENE_TRAIN), *self.train_arguments(steps=40, checkpoint_every=1000)]
        self.start_agents(pods, "--stop-grace", "signal=8", *trainer)
        self.wait_for_step(8)
        for pod in pods:
            pod.send(signal.SIGTERM)
        for pod in pods:
            self.finish(pod.process, 10, expected_code=143)
            pod.move()
        self.start_agents(pods, "--stop-grace", "signal=8", *trainer)
        text = [self.finish(pod.process, 60) for pod in pods]
        steps = [m["step"] for m in read_metrics(self.path("metrics.jsonl"))]
        self.assertEqual(steps, list(range(1, 41)), text[0][-3000:])
        self.assert_nothing_left()

    def test_pod_0_that_serves_the_rendezvous_comes_back_with_another_address(self):
        pods = [self.pod("llama-0"), self.pod("llama-1")]
        shell = ["--max-restarts", 3, "--no-python", "sh", "-c", f'{_SHOW}; {_UNTIL_DONE}']
        self.start_agents(pods, *shell, DONE=self.path("done"))
        wait_until(lambda: "rank=1" in pods[1].log(), 15, "the first epoch")
        pods[0].send(signal.SIGKILL)  # its node died
        pods[0].process.wait(5)
        # For a while the name has the address of the dead pod too, and first.
        stale = (pods[0].name, pods[0].host.address)
        pods[0].move()
        self.cluster.published.insert(0, stale)
        self.run_in(pods[0], "--nnodes", 2, *shell, index=0, DONE=self.path("done"))
        pods[0].publish()
        wait_until(lambda: pods[1].log().count("rank=1") == 2, 30, "the next epoch")
        self.done()
        for pod in pods:
            self.finish(pod.process, 10)
        self.assert_nothing_left()

    def test_a_second_pod_of_one_index_waits_until_the_first_has_ended(self):
        first, old, new = self.pod("llama-0"), self.pod("llama-1"), self.pod("new-llama-1")
        new.name = "llama-1"
        self.cluster.write_hosts()
        slow = f"trap 'sleep 2; exit 0' TERM; {_SHOW}; {_UNTIL_DONE}"
        shell = ["--nnodes", 2, "--stop-grace", "signal=8", "--max-restarts", 0, "--no-python", "sh", "-c", slow]
        for index, pod in enumerate((first, old)):
            self.run_in(pod, *shell, index=index, DONE=self.path("done"))
            pod.publish()
        wait_until(lambda: "rank=1" in old.log(), 15, "the first epoch")
        # podReplacementPolicy TerminatingOrFailed: the successor runs before its predecessor has heard anything.
        self.run_in(new, *shell, index=1, DONE=self.path("done"))
        new.publish()
        wait_until(lambda: "waiting for another agent to end: node rank 1 is taken" in new.log(), 15, "the fence")
        self.assertNotIn("rank=1 ", new.log())
        self.assertIsNone(new.process.poll())
        old.evict(10)
        wait_until(lambda: "rank=1 world=2" in new.log(), 20, "the successor's place")
        self.done()
        for pod in (first, new):
            self.finish(pod.process, 15)
        self.assert_nothing_left()

    def test_pid_1_reaps_orphans(self):
        pod = self.pod("llama-0")
        orphans = 'for i in 1 2 3 4 5; do (sh -c "sleep 0.1" &) ; done'
        self.run_in(pod, "--standalone", "--no-python", "sh", "-c", f"{orphans}; {_UNTIL_DONE}", index=0, DONE=self.path("done"))
        wait_until(lambda: len(processes_with(self.marker)) > 5, 10, "the orphans")

        def zombies():
            with open(f"/proc/{pod.pid()}/task/{pod.pid()}/children", encoding="ascii") as children:
                found = children.read().split()
            states = []
            for child in found:
                try:
                    with open(f"/proc/{child}/stat", encoding="ascii") as stat:
                        states.append(stat.read().rsplit(")", 1)[1].split()[0])
                except (FileNotFoundError, ProcessLookupError):
                    pass
            return states.count("Z")
        wait_until(lambda: not any("sleep" in name for name in self.commands()), 5, "the orphans' end")
        wait_until(lambda: zombies() == 0, 2, "no zombies")
        self.done()
        self.finish(pod.process, 10)

    def commands(self):
        names = []
        for pid in processes_with(self.marker):
            try:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                    names.append(file.read().replace("\0", " "))
            except (FileNotFoundError, ProcessLookupError):
                pass
        return [name for name in names if name.startswith("sleep 0.1")]


if __name__ == "__main__":
    unittest.main()
