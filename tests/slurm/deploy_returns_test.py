"""The batch files of tools/deploy/slurm bring a job back: after a stop, and after the loss of a node. By tools/nightly slurm."""

import re
import unittest

from tests.slurm.deploy_case import DeployCase
from tests.support.convene_testing import wait_until


class DeployReturnsTest(DeployCase):

    def train_for_long(self, *options):
        job = self.submit('train.sbatch', '--nodes=2', *options, arguments=['--steps', '100000', '--checkpoint-every', '100000'])
        self.wait_for_metrics(job, lambda last: last['step'] > 10, 'step 10')
        return job

    def assert_goes_on(self, job, timeout_s):
        """It goes on from the step at which it stopped. Then a user cancels it, and it does not come back."""
        self.wait_for_metrics(job, lambda _: 'resumed after step' in self.job_output(job), 'the job goes on after its requeue', timeout_s)
        stopped, resumed = (int(re.search(pattern, self.job_output(job)).group(1))
                            for pattern in (r'stopped after step (\d+)', r'resumed after step (\d+)'))
        self.assertEqual(stopped, resumed)
        self.wait_for_metrics(job, lambda last: last['step'] > resumed + 5, 'further steps')
        self.assert_steps()
        self.assertEqual(self.job(job)['Restarts'], '1')
        self.ask('scancel', job)
        self.wait_for_state(job, 'CANCELLED', 30)
        self.assert_nothing_left()

    def test_train_comes_back_after_a_stop(self):
        job = self.train_for_long()
        self.ask('scancel', '--signal=TERM', f'{job}.0')
        self.assert_goes_on(job, 60)

    def test_train_comes_back_before_its_time_limit(self):
        # The signal may come a minute earlier than asked for.
        self.assert_goes_on(self.train_for_long('--time=2', '--signal=TERM@30'), 150)

    def test_train_comes_back_once_after_a_preemption(self):
        # The launcher asks for the requeue, and the batch file would, too.
        job = self.train_for_long('--partition=low')
        self.ask('sbatch', '--partition=high', '--nodes=3', '--ntasks-per-node=1', '--cpus-per-task=4', '--wrap', 'sleep 1')
        self.assert_goes_on(job, 120)

    def test_a_stopped_task_of_an_array_comes_back_alone(self):
        array = self.submit('train.sbatch', '--nodes=1', '--array=0-1', RUN='', arguments=['--steps', '100000', '--checkpoint-every', '100000'])
        for task in range(2):
            wait_until(lambda task=task: self.metrics(f'runs/train-{task}/metrics.jsonl'), 60, f'a step of task {task}')
        # Slurm gave this one the number of the whole array.
        self.assertEqual(self.job(f'{array}_1')['JobId'], array)
        self.ask('scancel', '--signal=TERM', f'{array}_1.0')
        wait_until(lambda: self.job(f'{array}_1')['Restarts'] == '1', 30, 'the requeue')
        other = self.job(f'{array}_0')
        self.assertEqual((other['Restarts'], other['JobState']), ('0', 'RUNNING'))
        wait_until(lambda: self.job(f'{array}_1')['JobState'] == 'RUNNING', 60, 'the task is back')
        self.ask('scancel', array)
        wait_until(lambda: not self.ask('squeue', '-h').strip(), 30, 'the end of both tasks')
        self.assert_nothing_left()

    def test_a_spare_takes_the_place_of_a_lost_node(self):
        job = self.submit('spares.sbatch', '--nodes=3', SPARES='1', PATIENCE='10', arguments=['--steps', '600'])
        self.wait_for_metrics(job, lambda last: last['step'] > 10, 'step 10')
        # The two that came first train. The batch script runs on the first node.
        lost = next(node for node in self.slurm.nodes[1:] if self.workers_on(node))
        self.slurm.kill_node(lost)
        self.wait_for_metrics(job, lambda last: last['epoch'] == 2, 'a step of the second epoch')
        self.assertEqual({m['world_size'] for m in self.metrics()}, {4})
        self.assertEqual([len(self.workers_on(node)) for node in self.slurm.nodes if node != lost], [2, 2])
        facts = self.wait_for_state(job, 'COMPLETED FAILED CANCELLED NODE_FAIL', 90)
        self.assert_steps(600)
        self.assertEqual(facts['JobState'], 'COMPLETED', self.job_output(job)[-3000:])
        self.assert_nothing_left()


if __name__ == '__main__':
    unittest.main()
