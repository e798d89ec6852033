"""The batch files of tools/deploy/slurm train; deploy_returns_test.py has what takes Slurm longer."""

import os
import unittest

from tests.slurm.deploy_case import DeployCase


class DeployTest(DeployCase):

    def test_train(self):
        job = self.submit('train.sbatch', '--nodes=2')
        text = self.finish_job(job, 150)
        self.assert_steps(30)
        self.assertEqual({m['world_size'] for m in self.metrics()}, {4})
        self.assertEqual(os.path.basename(self.job(job)['StdOut']), f'train-{job}.log')
        self.assertNotIn('killing', text)
        self.assert_nothing_left()

    def test_large(self):
        job = self.submit('large.sbatch', '--nodes=2', TP_SIZE='2', PP_SIZE='2', MAY_LOSE='1', arguments=['--precision', 'fp32'])
        text = self.finish_job(job, 150)
        self.assert_steps(30)
        self.assertEqual({m['layout'] for m in self.metrics()}, {'dp1 x tp2 x pp2'}, text)
        for rank, node in enumerate(self.slurm.nodes[:2]):
            with open(self.path(f'run/nodes/{node}.log'), encoding='utf-8') as log:
                self.assertIn(f'node {rank} of 2', log.read())
        self.assert_nothing_left()


if __name__ == '__main__':
    unittest.main()
