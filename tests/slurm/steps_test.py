"""`srun convene run`: a step of two nodes trains, is stopped, breaks, is wrong, and leaves nothing behind."""

import os
import re
import signal
import time
import unittest

from tests.slurm.test_slurm import SlurmTestCase
from tests.support.convene_testing import CONVENE, wait_until

TWO_NODES = ['--nodes=2', '--ntasks-per-node=1']


class StepsTest(SlurmTestCase):

    def train(self, *run_flags, options=TWO_NODES, **changes):
        """srun of a training with two workers on each node."""
        return self.srun(options, CONVENE, 'run', '--nproc-per-node', 2, *run_flags, 'convene-train', *self.train_arguments(**changes))

    def kill_a_launcher(self, step):
        """SIGKILL for the launcher that does not serve the rendezvous; returns its node. In a cluster the first node serves; here each node has
        the endpoint's address, so either may."""
        host = re.search(r'convene (\S+)\] info: hosting the rendezvous', self.output(step)).group(1)
        node = next(name for name in self.slurm.nodes if name != host)
        os.kill(self.agent_on(node), signal.SIGKILL)
        return node

    def assert_saved_at_the_last_step(self):
        last = self.metrics()[-1]['step']
        self.assertTrue(os.path.exists(self.path(f'checkpoints/step_{last:08d}/manifest')), f'no checkpoint of step {last}')

    def test_a_step_of_two_nodes_trains(self):
        text = self.finish(self.train(), 150)
        self.assertEqual([m['step'] for m in self.metrics()], list(range(1, 31)))
        self.assertEqual({m['world_size'] for m in self.metrics()}, {4})
        for rank, node in enumerate(self.slurm.nodes):
            self.assertRegex(text, rf'{node}\] info: epoch 1: node {rank} of 2, ranks {2 * rank} to {2 * rank + 1} of 4')
        self.assert_nothing_left()

    def test_scancel_saves_the_current_step_on_all_nodes(self):
        step = self.train(steps=100000, checkpoint_every=100000)
        self.wait_for_step(10)
        job = self.ask('squeue', '-h', '-o', '%A').strip()
        self.ask('scancel', job)
        self.finish(step, 30, 128 + signal.SIGTERM)
        self.assert_saved_at_the_last_step()
        self.assert_nothing_left()

    def test_a_killed_launcher_ends_its_workers_and_the_other_node_goes_on(self):
        step = self.train('--nnodes', '1:2', steps=100000)
        self.wait_for_step(10)
        for pid in self.workers().values():
            with open(f'/proc/{pid}/status', encoding='ascii') as status:
                ignored = int(re.search(r'SigIgn:\s*(\w+)', status.read()).group(1), 16)
            self.assertTrue(ignored >> signal.SIGPIPE - 1 & 1, 'a peer that dies while a worker writes to it would end the worker as well')
        killed = self.kill_a_launcher(step)
        try:
            wait_until(lambda: self.metrics()[-1]['world_size'] == 2, 30, 'a step of the node that is left')
        except AssertionError as late:
            raise AssertionError(f'{late}\n{self.output(step)[-6000:]}') from None
        self.assertFalse(self.workers_on(killed))
        self.assertIsNone(step.poll())
        self.ask('scancel', self.ask('squeue', '-h', '-o', '%A').strip())
        self.finish(step, 30, 128 + signal.SIGKILL)  # srun tells the highest code
        self.assert_saved_at_the_last_step()
        self.assert_nothing_left()

    def test_a_killed_launcher_of_a_job_that_needs_both_nodes_ends_the_step(self):
        step = self.train('--rdzv-conf', 'join_timeout=3', steps=100000)
        self.wait_for_step(5)
        self.kill_a_launcher(step)
        text = self.finish(step, 40, 128 + signal.SIGKILL)
        self.assertIn('1 of at least 2 nodes ready when the join timeout of 3s was over', text)
        self.assertRegex(text, r'Exited with exit code 69')
        self.assert_nothing_left()

    def test_slurm_kills_what_does_not_end_and_its_nodes_are_free(self):
        # A process that left the session and cleared its environment, below a worker that heeds no signal.
        script = "trap '' TERM; env -i setsid sleep 98765 & while :; do sleep 1; done"
        step = self.srun(TWO_NODES, CONVENE, 'run', '--nproc-per-node', 1, '--stop-grace', 'signal=60', '--no-python', 'sh', '-c', script)
        wait_until(lambda: len(self.sleepers()) == 2, 20, 'both workers')
        self.ask('scancel', self.ask('squeue', '-h', '-o', '%A').strip())
        self.finish(step, 30, 128 + signal.SIGKILL)  # KillWait is 5 s
        wait_until(lambda: not self.sleepers(), 10, 'the end of what the workers left')
        self.slurm.wait_until_idle()
        self.assert_nothing_left()

    def sleepers(self):
        found = []
        for pid in set().union(*map(self.processes_on, self.slurm.nodes)):
            try:
                with open(f'/proc/{pid}/cmdline', 'rb') as line:
                    found += [pid] if line.read() == b'sleep\x0098765\0' else []
            except OSError:
                pass
        return found

    def test_a_program_that_does_not_exist_ends_at_once(self):
        started = time.monotonic()
        text = self.finish(self.srun(TWO_NODES, CONVENE, 'run', '--nproc-per-node', 2, 'no-such-program'), 20, 64)
        self.assertLess(time.monotonic() - started, 10)
        self.assertEqual(len(re.findall('no-such-program', text)), 2, text)  # one paragraph from each node
        self.assert_nothing_left()

    def test_a_program_that_fails_gives_its_job_s_code(self):
        text = self.finish(self.srun(TWO_NODES, CONVENE, 'run', '--nproc-per-node', 1, '--no-python', 'sh', '-c', 'exit 3'), 20, 1)
        self.assertIn('exit code 3', text)
        self.assert_nothing_left()

    def test_two_steps_at_once_in_one_allocation(self):
        exact = ' '.join(TWO_NODES) + ' --exact --cpus-per-task=2'
        arguments = ' '.join(self.train_arguments(metrics_file=None, checkpoint_dir=None, checkpoint_every=None))
        lines = [f'srun {exact} convene run --nproc-per-node 2 convene-train {arguments} --metrics-file {self.path(f"metrics{i}.jsonl")} &'
                 for i in range(2)]
        job = self.sbatch(self.write('two.sh', '\n'.join(['#!/bin/bash', *lines, 'wait -n && wait -n', ''])), *TWO_NODES, '--cpus-per-task=4')
        text = self.finish_job(job, 150)
        for i in range(2):
            metrics = self.metrics(f'metrics{i}.jsonl')
            self.assertEqual([m['step'] for m in metrics], list(range(1, 31)), text)
            self.assertEqual({m['world_size'] for m in metrics}, {4})
        self.assert_nothing_left()


if __name__ == '__main__':
    unittest.main()
