"""Nodes and controllers that Slurm loses in the middle of a job, and nodes without a shared disk. By tools/nightly slurm: Slurm takes its time."""

import os
import re
import signal
import unittest

from tests.slurm.test_slurm import SlurmTestCase
from tests.support.convene_testing import find_program, wait_until

_OPTIONS = ('--nodes=2', '--ntasks-per-node=1', '--cpus-per-task=4', '--no-kill', '--open-mode=append')


class LossesTest(SlurmTestCase):
    NODES, SETTINGS = 3, {'SlurmdTimeout': 10}

    def train(self, *options, run_flags='', **changes):
        words = ' '.join(self.train_arguments(**changes))
        script = f'#!/bin/bash\nsrun --no-kill --kill-on-bad-exit=0 convene run --nproc-per-node 2 {run_flags} convene-train {words}\n'
        return self.sbatch(self.write('job.sh', script), *_OPTIONS, *options)

    def test_a_node_without_power_shrinks_the_job(self):
        job = self.train(run_flags='--nnodes 1:2', steps=100000)
        self.wait_for_metrics(job, lambda last: last['step'] > 10, 'step 10')
        self.slurm.kill_node(self.slurm.nodes[1])
        self.wait_for_metrics(job, lambda last: last['world_size'] == 2, 'a step of the survivor')
        step = self.metrics()[-1]['step']
        # Slurm finds out later, and lets the survivor go on.
        wait_until(lambda: self.slurm.states()[self.slurm.nodes[1]].startswith('down'), 60, 'Slurm gives the node up')
        self.wait_for_metrics(job, lambda last: last['step'] > step + 20, 'further steps')
        facts = self.job(job)
        self.assertEqual((facts['JobState'], facts['NodeList']), ('RUNNING', self.slurm.nodes[0]))
        steps = {m['step'] for m in self.metrics()}
        self.assertEqual(steps, set(range(1, len(steps) + 1)))
        self.ask('scancel', job)
        self.wait_for_state(job, 'CANCELLED', 30)
        self.assert_nothing_left()

    def test_a_node_whose_slurmd_died_computes_on_until_slurm_gives_it_up(self):
        job = self.train(run_flags='--nnodes 1:2', steps=100000)
        self.wait_for_metrics(job, lambda last: last['step'] > 10, 'step 10')
        self.slurm.kill_slurmd(self.slurm.nodes[1])
        wait_until(lambda: self.slurm.states()[self.slurm.nodes[1]].startswith('down'), 60, 'Slurm gives the node up')
        self.assertEqual({m['world_size'] for m in self.metrics()}, {4})
        # When slurmd comes back, it ends what it finds there. The survivor goes on alone.
        self.slurm.start_node(self.slurm.nodes[1])
        self.wait_for_metrics(job, lambda last: last['world_size'] == 2, 'a step of the survivor', 90)
        self.assertFalse(self.workers_on(self.slurm.nodes[1]))
        self.ask('scancel', job)
        self.wait_for_state(job, 'CANCELLED', 30)
        self.assert_nothing_left()

    def test_without_no_kill_slurm_requeues_the_job_and_it_goes_on(self):
        script = '#!/bin/bash\nsrun convene run --nproc-per-node 1 convene-train ' + ' '.join(self.train_arguments(steps=100000)) + '\n'
        job = self.sbatch(self.write('job.sh', script), '--nodes=1', '--cpus-per-task=4', '--requeue', '--open-mode=append')
        self.wait_for_metrics(job, lambda last: last['step'] > 10, 'step 10')
        self.slurm.kill_node(self.slurm.nodes[0] if self.job(job)['BatchHost'] == self.slurm.nodes[0] else self.slurm.nodes[1])
        wait_until(lambda: 'resumed after step' in self.job_output(job), 120, 'the job goes on elsewhere')
        self.assertEqual(self.job(job)['Restarts'], '1')

    def test_a_job_whose_first_node_lost_its_slurmd_goes_on_elsewhere_and_alone(self):
        words = ' '.join(self.train_arguments(steps=100000, checkpoint_every=100000))
        script = self.write('job.sh', f'#!/bin/bash\nsrun convene run --nproc-per-node 1 convene-train {words}\n')
        job = self.sbatch(script, '--nodes=2', '--ntasks-per-node=1', '--cpus-per-task=4', '--requeue', '--open-mode=append')
        self.wait_for_metrics(job, lambda last: last['step'] > 10, 'step 10')
        lost = self.job(job)['BatchHost']
        self.slurm.kill_slurmd(lost)  # its workers compute on
        wait_until(lambda: re.search(r'resumed after step \d+, saved', self.job_output(job)), 120, 'the job is back')
        self.assertFalse(self.workers_on(lost))
        saved = int(re.search(r'resumed after step (\d+), saved', self.job_output(job))[1])
        self.wait_for_metrics(job, lambda last: last['step'] > saved + 10, 'further steps')
        steps = [m['step'] for m in self.metrics()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)), self.job_output(job)[-6000:])

    @staticmethod
    def text_of(path):
        with open(path, encoding='utf-8', errors='replace') as text:
            return text.read()

    def test_a_controller_that_restarts_is_not_noticed(self):
        job = self.train(run_flags='--nnodes 2', steps=100000)
        self.wait_for_metrics(job, lambda last: last['step'] > 10, 'step 10')
        self.slurm.stop_controller()
        step = self.metrics()[-1]['step']
        wait_until(lambda: self.metrics()[-1]['step'] > step + 20, 60, 'steps without a controller')
        self.slurm.start_controller()
        self.ask('scancel', '--signal=TERM', job)
        self.assertEqual(self.wait_for_state(job, 'FAILED', 30)['ExitCode'], '143:0')
        last = self.metrics()[-1]['step']
        self.assertTrue(os.path.exists(self.path(f'checkpoints/step_{last:08d}/manifest')))
        self.assertNotIn('epoch 2', self.job_output(job))
        self.assert_nothing_left()

    def test_a_stop_does_not_wait_long_for_a_controller_that_is_gone(self):
        job = self.train(run_flags='--nnodes 2', steps=100000)
        self.wait_for_metrics(job, lambda last: last['step'] > 10, 'step 10')
        output = self.job(job)['StdOut']
        self.slurm.stop_controller()
        for agent in [self.agent_on(node) for node in self.slurm.nodes if self.workers_on(node)]:
            os.kill(agent, signal.SIGTERM)
        wait_until(lambda: not self.workers(), 30, 'the end of the workers')
        wait_until(lambda: 'scontrol does not tell whether Slurm preempts job' in self.text_of(output), 20, 'the word about scontrol')
        self.slurm.start_controller()
        self.assertEqual(self.wait_for_state(job, 'FAILED', 60)['ExitCode'], '143:0')
        last = self.metrics()[-1]['step']
        self.assertTrue(os.path.exists(self.path(f'checkpoints/step_{last:08d}/manifest')))

    def test_the_programs_travel_by_sbcast(self):
        # Each node has a disk of its own there.
        local = self.slurm.path('local')
        os.mkdir(self.path('pack'))
        for name in ('convene', 'convene-train'):
            os.symlink(os.path.realpath(find_program({'convene': 'launcher/convene', 'convene-train': 'worker_runtime/trainer/convene-train'}[name])),
                       self.path(f'pack/{name}'))
        words = ' '.join(self.train_arguments())
        script = f"""#!/bin/bash
set -e
tar -czhf pack.tar.gz pack
sbcast pack.tar.gz {local}/pack.tar.gz
srun --ntasks-per-node=1 tar -xzf {local}/pack.tar.gz -C {local}
rm -r pack bin
srun --ntasks-per-node=1 {local}/pack/convene run --nproc-per-node 2 {local}/pack/convene-train {words}
"""
        job = self.sbatch(self.write('job.sh', script), *_OPTIONS)
        text = self.finish_job(job, 90)
        self.assertEqual([m['step'] for m in self.metrics()], list(range(1, 31)), text)
        self.assertFalse(os.listdir(local))


if __name__ == '__main__':
    unittest.main()
