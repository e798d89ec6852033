"""The launcher reads Slurm's variables: tasks, GPUs, names, allocations that do not fit."""

import signal
import time
import unittest

from tests.slurm.test_slurm import SlurmTestCase
from tests.support.convene_testing import CONVENE


class VariablesTest(SlurmTestCase):
    GPUS = 2

    def train(self, *options, run_flags=(), **changes):
        return self.srun(['--nodes=2', *options], CONVENE, 'run', *run_flags, 'convene-train', *self.train_arguments(**changes))

    def assert_trained(self, step, workers=4):
        text = self.finish(step, 150)
        self.assertEqual([m['step'] for m in self.metrics()], list(range(1, 31)))
        self.assertEqual({m['world_size'] for m in self.metrics()}, {workers})
        self.assert_nothing_left()
        return text

    def assert_refused(self, step, word):
        started = time.monotonic()
        text = self.finish(step, 20, 64)
        self.assertLess(time.monotonic() - started, 10)
        self.assertIn(word, text)
        self.assert_nothing_left()

    def test_a_worker_for_each_gpu_that_slurm_gave(self):
        text = self.assert_trained(self.train('--ntasks-per-node=1', '--gpus-per-node=2'))
        self.assertIn('SLURM_GPUS_ON_NODE', text)

    def test_a_task_for_each_worker(self):
        self.assert_trained(self.train('--ntasks-per-node=2', '--gpus-per-node=2'))

    def test_all_tasks_end_with_their_agent_s_code_when_slurm_stops_them(self):
        step = self.train('--ntasks-per-node=2', steps=100000, checkpoint_every=100000)
        self.wait_for_step(5)
        self.ask('scancel', '--signal=TERM', self.ask('squeue', '-h', '-o', '%A').strip() + '.0')
        text = self.finish(step, 30, 128 + signal.SIGTERM)
        self.assertIn(f'stopped after step {self.metrics()[-1]["step"]}', text)
        self.assert_nothing_left()

    def test_gpus_that_srun_hides_from_the_first_task_are_refused(self):
        self.assert_refused(self.train('--ntasks-per-node=2', '--gpus-per-task=1'), '--gpus-per-task')

    def test_an_allocation_that_is_smaller_than_nnodes(self):
        self.assert_refused(self.train('--ntasks-per-node=1', run_flags=['--nnodes', 3]), '--nnodes')

    def test_a_plain_line_of_a_batch_script_on_two_nodes_is_refused(self):
        script = '#!/bin/bash\nconvene run --nproc-per-node 1 convene-train ' + ' '.join(self.train_arguments()) + '\n'
        job = self.sbatch(self.write('job.sh', script), '--nodes=2')
        self.assertIn('plain line of a batch script', self.finish_job(job, 20, 'FAILED'))
        self.assertEqual(self.job(job)['ExitCode'], '64:0')

    def test_a_step_over_two_components_of_a_heterogeneous_job(self):
        script = self.write('job.sh', '#!/bin/bash\nsrun --het-group=0,1 convene run --nproc-per-node 2 convene-train ' +
                            ' '.join(self.train_arguments()) + '\n')
        job = self.sbatch(script, '--nodes=1', '--ntasks=1', '--cpus-per-task=3', ':', '--nodes=1', '--ntasks=1', '--cpus-per-task=2')
        text = self.finish_job(job, 150)
        self.assertEqual({m['world_size'] for m in self.metrics()}, {4}, text)
        self.assertEqual([m['step'] for m in self.metrics()], list(range(1, 31)))
        self.assert_nothing_left()


class NamesTest(SlurmTestCase):
    NAMES_RESOLVE = False

    def test_nodes_whose_names_slurm_alone_knows(self):
        step = self.srun(['--nodes=2', '--ntasks-per-node=1'], CONVENE, 'run', '--nproc-per-node', 2, 'convene-train', *self.train_arguments())
        self.finish(step, 150)
        self.assertEqual({m['world_size'] for m in self.metrics()}, {4})
        self.assert_nothing_left()


if __name__ == '__main__':
    unittest.main()
