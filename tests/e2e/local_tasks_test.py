"""Several launchers of one job on one node, as `srun --ntasks-per-node=3 convene run` starts them: task 0 is the agent, the others wait for it.

No Slurm is needed: the tests set the variables that it sets.
"""

import os
import signal
import socket
import time
import unittest

from tests.support.convene_testing import CONVENE, ConveneTestCase, free_port, processes_with, wait_until

TASKS = 3


class LocalTasksTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        # No two tests, nor two runs of them, are the same job.
        self.job = {
            "SLURM_JOB_ID": str(1000000 + os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n1",
            "SLURM_JOB_NODELIST": "n1", "SLURM_NODEID": "0", "SLURMD_NODENAME": f"n1-{os.path.basename(self.directory)}",
            "SLURM_STEP_NUM_TASKS": str(TASKS), "SLURM_GTIDS": "0,1,2", "SLURM_PTY_PORT": None,
        }

    def start_task(self, number, script, *flags, prefix=(), **environment):
        return self.start(CONVENE, "run", *flags, "sh", "-c", script, log=f"task{number}.log", prefix=prefix,
                          **{**self.job, "SLURM_LOCALID": str(number), "SLURM_PROCID": str(number), **environment})

    def start_tasks(self, script, *flags):
        return [self.start_task(number, script, *flags) for number in range(TASKS)]

    def until_all_wait(self, tasks):
        wait_until(lambda: "other tasks of this node" in self.output(tasks[0]), 10, "the other tasks")
        wait_until(lambda: "start here" in self.output(tasks[0]), 10, "the workers")

    def test_one_agent_with_a_worker_for_each_task_and_one_exit_code(self):
        ranks = self.path("ranks")
        script = f'echo "$RANK/$WORLD_SIZE" >> {ranks}; until [ $(wc -l < {ranks}) -ge 3 ]; do sleep 0.01; done; exit $RANK'
        tasks = self.start_tasks(script, "--propagate-exit-code")
        codes = {task.wait(20) for task in tasks}
        self.assertEqual(len(codes), 1, self.output(tasks[0]))
        self.assertIn(codes.pop(), (1, 2))
        with open(ranks, encoding="utf-8") as lines:
            self.assertEqual(sorted(lines), ["0/3\n", "1/3\n", "2/3\n"])
        text = self.output(tasks[0])
        self.assertIn("3 worker(s), one for each task that srun started on this node", text)
        self.assertIn("this task is the launcher of the 2 other tasks", text)
        for task in tasks[1:]:
            self.assertEqual(self.output(task), "")
        self.assert_nothing_left()

    def test_success_is_0_for_all_whoever_comes_first(self):
        waiting = [self.start_task(number, "exit 0") for number in (2, 1)]
        time.sleep(0.3)
        self.assertEqual([task.poll() for task in waiting], [None, None])
        for task in (self.start_task(0, "exit 0"), *waiting):
            self.finish(task, 20)

    def test_the_signals_of_all_tasks_are_the_leaders_affair(self):
        saved = self.path("saved")
        tasks = self.start_tasks(f'trap "sleep 0.5; echo saved >> {saved}; exit 0" TERM; while :; do sleep 0.02; done')
        self.until_all_wait(tasks)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            for task in tasks[1:]:
                task.send_signal(number)
        time.sleep(0.2)
        self.assertEqual([task.poll() for task in tasks], [None] * TASKS)
        for task in tasks:
            task.send_signal(signal.SIGTERM)
        for task in tasks:
            self.finish(task, 20, 128 + signal.SIGTERM)
        with open(saved, encoding="utf-8") as lines:
            self.assertEqual(len(lines.readlines()), TASKS)
        self.assert_nothing_left()

    def test_a_killed_leader_ends_the_others_at_once_with_a_word(self):
        tasks = self.start_tasks("while :; do sleep 0.02; done")
        self.until_all_wait(tasks)
        killed = time.monotonic()
        tasks[0].kill()
        for number in (1, 2):
            text = self.finish(tasks[number], 2, 69)
            self.assertIn(f"task 0 of this node (pid {tasks[0].pid}), which ran the workers, is gone without a word", text)
            self.assertIn(f"Task {number} of 3 waited for it", text)
        self.assertLess(time.monotonic() - killed, 1)
        self.assert_nothing_left()
        # Nothing of the dead one is in the way of the next.
        for task in self.start_tasks("exit 0"):
            self.finish(task, 20)

    def test_a_signal_to_the_leader_before_it_has_workers_is_told_to_the_others(self):
        # Task 2 does not come: the leader still gathers.
        leader, waiter = (self.start_task(number, "exit 0") for number in (0, 1))
        wait_until(lambda: self.ignores(waiter, signal.SIGTERM), 10, "the waiter has found the leader")
        leader.terminate()
        self.assertEqual(leader.wait(5), -signal.SIGTERM)
        self.assertEqual(self.finish(waiter, 5, 128 + signal.SIGTERM), "")
        self.assert_nothing_left()

    @staticmethod
    def ignores(process, number):
        with open(f"/proc/{process.pid}/status", encoding="ascii") as status:
            ignored = next(line.split()[1] for line in status if line.startswith("SigIgn:"))
        return bool(int(ignored, 16) >> (number - 1) & 1)

    def test_a_killed_waiter_does_not_disturb_the_job(self):
        tasks = self.start_tasks(f'until [ -e {self.path("done")} ]; do sleep 0.02; done')
        self.until_all_wait(tasks)
        tasks[1].kill()
        tasks[1].wait(5)
        with open(self.path("done"), "w", encoding="utf-8"):
            pass
        self.finish(tasks[0], 20)
        self.finish(tasks[2], 20)

    def test_a_leader_that_cannot_start_tells_the_others_its_code(self):
        tasks = self.start_tasks("exit 0")
        for task in tasks:
            self.finish(task, 20)
        tasks = [self.start(CONVENE, "run", "/no/such/program", log=f"bad{number}.log", **{**self.job, "SLURM_LOCALID": str(number)})
                 for number in range(TASKS)]
        for task in tasks:
            self.finish(task, 20, 64)
        self.assertIn("/no/such/program", self.output(tasks[0]))
        self.assertEqual(self.output(tasks[1]), "")

    def test_a_second_agent_for_the_same_tasks_is_refused(self):
        tasks = self.start_tasks(f'until [ -e {self.path("done")} ]; do sleep 0.02; done')
        self.until_all_wait(tasks)
        text = self.finish(self.start_task(0, "exit 0"), 5, 64)
        self.assertIn("another process leads the tasks of this node already", text)
        self.assertIn("srun --overlap", text)
        with open(self.path("done"), "w", encoding="utf-8"):
            pass
        for task in tasks:
            self.finish(task, 20)

    def test_a_task_with_another_command_is_told_at_once_that_nobody_runs_it(self):
        leader = self.start_task(0, f'until [ -e {self.path("done")} ]; do sleep 0.02; done')
        same = self.start_task(1, f'until [ -e {self.path("done")} ]; do sleep 0.02; done')
        text = self.finish(self.start_task(2, "echo another"), 5, 64)
        self.assertIn(f"task 0 of this node (pid {leader.pid}) runs another command than this task (2 of 3), which is: "
                      "sh -c echo another", text)
        self.assertIn("give each one its own --rdzv-id", text)
        wait_until(lambda: "task 2 of this node has another command" in self.output(leader), 10, "the leader's word")
        wait_until(lambda: "start here" in self.output(leader), 10, "the workers")
        with open(self.path("done"), "w", encoding="utf-8"):
            pass
        for task in (leader, same):
            self.finish(task, 20)

    def test_tasks_with_other_ids_are_jobs_beside_each_other(self):
        told = self.path("told")
        tasks = [self.start_task(number, f'echo "{name} $TORCHELASTIC_RUN_ID $RANK/$WORLD_SIZE" >> {told}', "--rdzv-id", name)
                 for number, name in enumerate("aab")]
        for task in tasks:
            self.finish(task, 30)
        with open(told, encoding="utf-8") as lines:
            self.assertEqual(sorted(lines), ["a a 0/2\n", "a a 1/2\n", "b b 0/1\n"])
        self.assertIn("1 of the 2 other tasks of this node are jobs of their own", self.output(tasks[0]))
        self.assert_nothing_left()

    def start_torchrun(self, node, number, job, port, script):
        """Task `number` of node `node` of two nodes with two tasks each, which meet at this machine's name: for a loopback address
        their scheduler says that they are on two machines."""
        variables = {**self.job, "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NODEID": str(node),
                     "SLURMD_NODENAME": f"n{node}-{os.path.basename(self.directory)}", "SLURM_GTIDS": f"{2 * node},{2 * node + 1}",
                     "SLURM_LOCALID": str(number)}
        return self.start("launcher/torchrun", "--nnodes", "2", "--nproc_per_node", "2", "--rdzv_backend", "c10d", "--rdzv_id", job,
                          "--rdzv_endpoint", f"{socket.gethostname()}:{port}", "--no-python", "sh", "-c", script, log=f"{job}-{node}{number}.log", **variables)

    def test_torchruns_with_other_ids_are_jobs_beside_each_other(self):
        script = f'echo "$TORCHELASTIC_RUN_ID $RANK/$WORLD_SIZE" >> {self.path("told")}'
        ports = {"a": free_port(), "b": free_port()}
        tasks = [self.start_torchrun(node, number, "ab"[number], ports["ab"[number]], script) for node in range(2) for number in range(2)]
        texts = [self.finish(task, 20) for task in tasks]
        with open(self.path("told"), encoding="utf-8") as lines:
            self.assertEqual(sorted(lines), [f"{job} {rank}/4\n" for job in "ab" for rank in range(4)])
        self.assertIn("1 of the 1 other tasks of this node are jobs of their own", texts[0])
        self.assertIn("this task is an agent of its own, as under torchrun", texts[1])
        self.assert_nothing_left()

    def test_torchruns_with_the_same_id_are_one_agent_a_node(self):
        script = f'echo "$RANK/$WORLD_SIZE" >> {self.path("told")}'
        port = free_port()
        for task in [self.start_torchrun(node, number, "a", port, script) for node in range(2) for number in range(2)]:
            self.finish(task, 20)
        with open(self.path("told"), encoding="utf-8") as lines:
            self.assertEqual(sorted(lines), [f"{rank}/4\n" for rank in range(4)])
        self.assert_nothing_left()

    def test_the_workers_run_on_the_cpus_of_all_tasks(self):
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            self.skipTest("this test needs two CPUs")
        script = f'grep Cpus_allowed_list /proc/self/status >> {self.path("cpus")}'
        tasks = [self.start_task(number, script, prefix=("taskset", "-c", str(cpus[min(number, 1)]))) for number in range(TASKS)]
        for task in tasks:
            self.finish(task, 20)
        self.assertIn("runs on the CPUs of all: 2 in place of 1", self.output(tasks[0]))
        with open(self.path("cpus"), encoding="utf-8") as lines:
            allowed = {line.split()[1] for line in lines}
        self.assertEqual(len(allowed), 1)
        self.assertIn(allowed.pop(), (f"{cpus[0]}-{cpus[1]}", f"{cpus[0]},{cpus[1]}"))

    def test_a_signal_before_the_leader_is_there_has_its_usual_effect(self):
        task = self.start_task(1, "exit 0")
        wait_until(lambda: processes_with(self.marker), 5, "the task")
        time.sleep(0.2)
        task.terminate()
        self.assertEqual(task.wait(5), -signal.SIGTERM)


if __name__ == "__main__":
    unittest.main()
