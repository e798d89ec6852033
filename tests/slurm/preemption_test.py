"""A running job loses no step by what Slurm does to it: stops, limits, preemption, requeue, suspension. By tools/nightly slurm: Slurm looks at
limits and graces every 30 s, so most of these minutes are waits."""

import os
import re
import time
import unittest

from tests.slurm.test_slurm import SlurmTestCase
from tests.support.convene_testing import wait_until

NODES = ('--nodes=2', '--ntasks-per-node=1', '--cpus-per-task=4', '--open-mode=append')
RESUMED = r'resumed after step (\d+), saved'


class PreemptionCase(SlurmTestCase):

    def submit(self, *options, line='srun convene run', after=''):
        words = ' '.join(self.train_arguments(steps=100000, checkpoint_every=100000))
        script = f'#!/bin/bash\n{line} --nproc-per-node 2 convene-train {words} {after}\n'
        job = self.sbatch(self.write('job.sh', script), *NODES, *options)
        self.wait_for_metrics(job, lambda last: last['step'] >= 10, 'step 10')
        return job

    def assert_saved(self, job):
        """The checkpoint is of the last step that was made, and whole."""
        last = self.metrics()[-1]['step']
        self.assertTrue(os.path.exists(self.path(f'checkpoints/step_{last:08d}/manifest')),
                        f'no checkpoint of step {last}\n{self.job_output(job)[-6000:]}')
        self.assertNotIn('killing the workers', self.job_output(job))
        return last

    def assert_goes_on(self, job, timeout_s=120):
        """The requeued job goes on from the step that was saved; no step is missing, none is made twice."""
        wait_until(lambda: re.search(RESUMED, self.job_output(job)), timeout_s, 'the job is back')
        step = int(re.search(RESUMED, self.job_output(job))[1])
        self.wait_for_metrics(job, lambda last: last['step'] > step + 5, 'further steps')
        steps = [m['step'] for m in self.metrics()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)), self.job_output(job)[-6000:])
        self.assertGreaterEqual(int(self.job(job)['Restarts']), 1)

    def end(self, job):
        self.ask('scancel', job)
        self.wait_for_state(job, 'CANCELLED FAILED', 30)
        self.assert_saved(job)
        self.assert_nothing_left()

    def stands_still(self):
        """Waits for twice the lease while no step is made; the last step."""
        since = {}  # step -> the time when it was first seen

        def still():
            step, now = self.metrics()[-1]['step'], time.monotonic()
            return now - since.setdefault(step, now) > 10
        wait_until(still, 60, 'the job stands still')
        return max(since)

    def assert_went_on(self, job):
        """In the same epoch, and each step was made once."""
        steps = [m['step'] for m in self.metrics()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)), self.job_output(job)[-6000:])
        self.assertNotIn('epoch 2', self.job_output(job))


class PreemptionTest(PreemptionCase):

    def test_scancel_and_signals_that_ask_for_nothing(self):
        job = self.submit()
        self.ask('scancel', '--signal=USR1', job)
        self.ask('scancel', '--signal=CONT', job)
        step = self.metrics()[-1]['step']
        self.wait_for_metrics(job, lambda last: last['step'] > step + 10, 'steps after USR1')
        # TERM to the steps alone: the batch script ends with srun's code.
        self.ask('scancel', '--signal=TERM', job)
        self.assertEqual(self.wait_for_state(job, 'FAILED', 30)['ExitCode'], '143:0')
        self.assert_saved(job)
        self.assertIn('is in no grace of a preemption', self.job_output(job))
        self.assert_nothing_left()

    def test_scontrol_requeue(self):
        job = self.submit('--requeue')
        self.ask('scontrol', 'requeue', job)
        self.assert_goes_on(job)
        self.end(job)

    def test_a_batch_script_that_requeues_its_job_itself(self):
        # As with #SBATCH --signal=B:USR1@SECONDS.
        job = self.submit('--requeue', line="trap 'scontrol requeue $SLURM_JOB_ID' USR1\nsrun convene run", after='&\nwait; wait')
        self.ask('scancel', '--batch', '--signal=USR1', job)
        self.assert_goes_on(job)
        self.end(job)

    def test_a_batch_script_that_a_signal_ends(self):
        job = self.submit()
        self.ask('scancel', '--batch', '--signal=TERM', job)
        self.wait_for_state(job, 'FAILED CANCELLED COMPLETED', 30)
        self.assert_saved(job)
        self.assert_nothing_left()

    def test_a_preemption_with_a_grace(self):
        job = self.submit('--partition=low', '--requeue')
        high = self.ask('sbatch', '--parsable', '--partition=high', *NODES[:3], '--wrap', 'sleep 5').strip()
        self.wait_for_state(high, 'RUNNING COMPLETED', 60)
        self.assert_saved(job)
        self.assertIn("is back in Slurm's queue", self.job_output(job))
        self.assert_goes_on(job)
        self.end(job)

    def test_a_preemption_without_a_grace(self):
        job = self.submit('--partition=nograce', '--requeue')
        high = self.ask('sbatch', '--parsable', '--partition=high', *NODES[:3], '--wrap', 'sleep 5').strip()
        self.wait_for_state(high, 'RUNNING COMPLETED', 60)
        self.assert_saved(job)
        self.assert_goes_on(job)
        self.end(job)

    def test_a_preemption_of_a_job_that_must_not_be_requeued(self):
        job = self.submit('--partition=low', '--no-requeue')
        self.ask('sbatch', '--partition=high', *NODES[:3], '--wrap', 'sleep 1')
        self.wait_for_state(job, 'FAILED COMPLETED PREEMPTED CANCELLED', 60)
        self.assert_saved(job)
        self.assertIn('must not be requeued (Requeue=0)', self.job_output(job))

    def test_a_preemption_that_cancels(self):
        job = self.submit('--partition=lowcancel', '--requeue')
        self.ask('sbatch', '--partition=high', *NODES[:3], '--wrap', 'sleep 1')
        self.wait_for_state(job, 'FAILED COMPLETED PREEMPTED CANCELLED', 60)
        self.assert_saved(job)
        self.assertIn('PreemptMode=CANCEL of partition lowcancel', self.job_output(job))

    def test_a_signal_before_the_limit(self):
        # A minute is the shortest limit, and the signal comes up to a minute early.
        job = self.submit('--time=1', '--signal=TERM@20')
        self.wait_for_state(job, 'FAILED TIMEOUT', 100)
        self.assert_saved(job)

    def test_a_signal_before_the_limit_for_the_batch_script_alone(self):
        # With exec the launcher is the batch script's process.
        job = self.submit('--time=1', '--signal=B:TERM@20', '--nodes=1', line='exec convene run --standalone')
        self.wait_for_state(job, 'FAILED TIMEOUT', 100)
        self.assert_saved(job)

    def test_the_time_limit(self):
        job = self.submit('--time=1')
        self.wait_for_state(job, 'TIMEOUT', 120)
        self.assert_saved(job)
        self.assert_nothing_left()

    def test_suspend_and_resume(self):
        job = self.submit()
        self.ask('scontrol', 'suspend', job)
        self.wait_for_state(job, 'SUSPENDED', 20)
        step = self.stands_still()
        self.ask('scontrol', 'resume', job)
        self.wait_for_metrics(job, lambda last: last['step'] > step + 5, 'steps after the resume')
        self.assert_went_on(job)
        self.end(job)

    def test_all_tasks_of_an_array_are_preempted_and_come_back(self):
        words = ' '.join(self.train_arguments(steps=100000, checkpoint_every=100000, metrics_file=None, checkpoint_dir=None))
        of_task = '--metrics-file metrics$SLURM_ARRAY_TASK_ID --checkpoint-dir checkpoints$SLURM_ARRAY_TASK_ID'
        script = self.write('job.sh', f'#!/bin/bash\nsrun convene run convene-train {words} {of_task}\n')
        array = self.sbatch(script, '--array=0-1', '--nodes=1', *NODES[1:], '--partition=low', '--requeue')
        for task in range(2):
            self.wait_for_task(task, 5)
        self.ask('sbatch', '--partition=high', *NODES[:3], '--wrap', 'sleep 1')
        for task in range(2):
            job = f'{array}_{task}'
            wait_until(lambda job=job: re.search(RESUMED, self.job_output(job)), 120, f'task {task} is back')
            self.assertIn("is back in Slurm's queue", self.job_output(job))
            self.wait_for_task(task, int(re.search(RESUMED, self.job_output(job))[1]) + 5)
            steps = [m['step'] for m in self.metrics(f'metrics{task}')]
            self.assertEqual(steps, list(range(1, len(steps) + 1)), self.job_output(job)[-6000:])
            self.assertEqual(self.job(job)['Restarts'], '1')  # the last task has the number of the whole array

    def wait_for_task(self, task, step):
        name = f'metrics{task}'
        wait_until(lambda: self.metrics(name) and self.metrics(name)[-1]['step'] > step, 60, f'step {step} of task {task}')


class GangTest(PreemptionCase):
    """A site where preempted jobs are suspended."""
    SETTINGS = {'PreemptMode': 'SUSPEND,GANG', 'SelectTypeParameters': 'CR_CPU_Memory', 'DefMemPerCPU': 100}
    PARTITIONS = ('PartitionName=low Default=YES PriorityTier=1 OverSubscribe=FORCE:1 PreemptMode=SUSPEND',
                  'PartitionName=high PriorityTier=10 OverSubscribe=FORCE:1 PreemptMode=OFF')

    def test_a_preemption_that_suspends(self):
        job = self.submit()
        high = self.ask('sbatch', '--parsable', '--partition=high', *NODES[:3], '--wrap', 'sleep 600').strip()
        self.wait_for_state(job, 'SUSPENDED', 60)
        step = self.stands_still()
        self.ask('scancel', high)
        self.wait_for_metrics(job, lambda last: last['step'] > step + 5, 'steps after the resume')
        self.assert_went_on(job)
        self.end(job)

    def test_a_suspended_job_that_is_cancelled_leaves_nothing(self):
        job = self.submit()
        self.ask('scontrol', 'suspend', job)
        self.wait_for_state(job, 'SUSPENDED', 20)
        self.ask('scancel', job)  # Slurm kills it without a TERM
        self.wait_for_state(job, 'CANCELLED', 30)
        wait_until(lambda: not self.workers(), 20, 'the end of the workers')
        self.assert_nothing_left()


if __name__ == '__main__':
    unittest.main()
