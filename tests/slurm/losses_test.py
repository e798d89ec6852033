"""Nodes that Slurm loses in the middle of a job, and nodes without a shared disk. By tools/nightly slurm: Slurm takes its time."""

import os
import unittest

from tests.slurm.test_slurm import SlurmTestCase
from tests.support.convene_testing import find_program, wait_until

_OPTIONS = ('--nodes=2', '--ntasks-per-node=1', '--cpus-per-task=4', '--no-kill', '--open-mode=append')


class LossesTest(SlurmTestCase):
    SETTINGS = {'SlurmdTimeout': 10}

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
