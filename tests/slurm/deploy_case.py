"""Submits the batch files of tools/deploy/slurm at a small size: the same files, with other options and variables."""

import os

from tests.slurm.test_slurm import SlurmTestCase
from tests.support.convene_testing import find_program

_FILES = 'tools/deploy/slurm'


class DeployCase(SlurmTestCase):
    NODES, CPUS, GPUS = 3, 4, 2
    METRICS = 'run/metrics.jsonl'
    SETTINGS = {'SlurmdTimeout': 10}

    def submit(self, name, *options, arguments=(), **environment):
        file = os.path.realpath(find_program(f'{_FILES}/{name}'))
        words = self.train_arguments(model='llama-tiny', data=None, metrics_file=None, checkpoint_dir=None) + list(arguments)
        return self.ask('env', f'--chdir={self.directory}', 'sbatch', '--parsable', '--gpus-per-node=2', '--cpus-per-task=2', *options, file, *words,
                        **{'RUN': self.path('run'), 'DATA': self.data, **environment}).strip()

    def assert_steps(self, last=None):
        """Each step was made once, in order, up to the step `last`."""
        steps = [m['step'] for m in self.metrics()]
        self.assertEqual(steps, list(range(1, (last or len(steps)) + 1)))
