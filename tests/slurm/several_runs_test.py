"""Several runs where Slurm repeats or shares its numbers: a requeued job, an array, two steps at once; a spare node; a line without srun."""

import os
import re
import unittest

from tests.slurm.test_slurm import SlurmTestCase
from tests.support.convene_testing import CONVENE, wait_until

# Each worker tells who it is.
_TELL = 'echo "$TORCHELASTIC_RUN_ID $RANK/$WORLD_SIZE" >> told; '
_ONE_TASK_A_NODE = '--ntasks-per-node=1'


class SeveralRunsTest(SlurmTestCase):
    NODES = 3

    def run_step(self, options, *flags, script='exit 0'):
        """srun of workers that tell, and then do what the script says."""
        return self.srun([*options, _ONE_TASK_A_NODE, f'--chdir={self.directory}'], CONVENE, 'run', *flags, '--no-python', 'sh', '-c',
                         _TELL + script)

    def submit(self, text, *options):
        return self.sbatch(self.write('job.sh', f'#!/bin/bash\n{text}\n'), *options)

    def wait_until_told(self, count):
        def told():
            if not os.path.exists(self.path('told')):
                return []
            with open(self.path('told'), encoding='utf-8') as lines:
                return sorted(line.strip() for line in lines)
        return wait_until(lambda: len(told()) == count and told(), 60, f'{count} workers')

    def test_a_requeued_job_is_another_run(self):
        job = self.submit(f"srun convene run sh -c '{_TELL}'\n" + 'if [ -z "$SLURM_RESTART_COUNT" ]; then exit 75; fi', '--nodes=2',
                          _ONE_TASK_A_NODE)
        self.finish_job(job, 60)
        self.assertEqual(self.wait_until_told(4), sorted(f'{job}.0{restart} {rank}/2' for restart in ('', '-r1') for rank in (0, 1)))

    def test_the_tasks_of_an_array_are_runs_of_their_own(self):
        self.submit(f"srun convene run sh -c '{_TELL}'", '--nodes=1', '--array=0-2')
        ids = [re.sub(r'^\d+', 'ARRAY', line) for line in self.wait_until_told(3)]
        self.assertEqual(ids, [f'ARRAY_{task}.0 0/1' for task in range(3)])

    def test_a_step_beside_another_by_overlap(self):
        first = self.run_step(['--nodes=2'], script=f'until [ -e {self.path("done")} ]; do sleep 0.05; done')
        self.wait_until_told(2)
        job = self.ask('squeue', '-h', '-o', '%A').strip()
        self.finish(self.run_step(['--nodes=2', '--overlap', f'--jobid={job}']), 30)
        self.assertIsNone(first.poll())
        self.write('done', '')
        self.finish(first, 30)
        self.assertEqual(self.wait_until_told(4), [f'{job}.{step} {rank}/2' for step in (0, 1) for rank in (0, 1)])

    def test_a_spare_in_the_allocation_waits_and_no_node_is_too_many(self):
        text = self.finish(self.run_step(['--nodes=3'], '--nnodes', 2, '--spares', 1, script='sleep 1'), 60)
        self.assertEqual([told.split()[1] for told in self.wait_until_told(2)], ['0/2', '1/2'], text)
        self.assertIn('or --spares 1', self.finish(self.run_step(['--nodes=3'], '--nnodes', 2), 20, 64))

    def test_a_line_of_a_batch_script_on_one_node_is_warned_unless_it_replaces_the_shell(self):
        line = 'convene run --no-python sh -c "exit 0"'
        self.assertIn('without a grace', self.finish_job(self.submit(f'{line}\nexit 0', '--nodes=1'), 60))
        self.assertNotIn('grace', self.finish_job(self.submit(f'exec {line}', '--nodes=1'), 60))


if __name__ == '__main__':
    unittest.main()
