"""How the batch files of tools/deploy/slurm judge the end of their srun. Without a Slurm: srun and scontrol are stand-ins that tell and note."""

import os
import re
import subprocess
import tempfile
import unittest

from tests.support.convene_testing import find_program

# SRUN_CODE is srun's exit code, TOLD the launchers' own, where they come so far.
_SRUN = """#!/bin/bash
while [ $# -gt 0 ] && [ "$1" != --outcome-file ]; do shift; done
[ -z "$TOLD" ] || echo '{"exit_code":'"$TOLD"',"explanation":"{\\"exit_code\\":9,","first_failure":null,"lost_output":""}' >"$2"
exit "$SRUN_CODE"
"""
_SCONTROL = '#!/bin/bash\necho "$@" >>requeued\n'
_FILES = ('train.sbatch', 'spares.sbatch', 'large.sbatch')
_MAY_BE_FEWER = _FILES[1:]


class DeployEndsTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = folder.name
        for name, text in (('srun', _SRUN), ('scontrol', _SCONTROL)):
            with open(f'{self.directory}/{name}', 'w', opener=lambda path, flags: os.open(path, flags, 0o755), encoding='ascii') as out:
                out.write(text)

    def end_of(self, file, srun_code, told='', **environment):
        """Runs the batch file; returns its exit code and whether it asked for the requeue."""
        requeued = f'{self.directory}/requeued'
        if os.path.exists(requeued):
            os.remove(requeued)
        variables = {'SLURM_JOB_ID': '35', 'SLURM_JOB_NAME': 'train', 'SLURM_NNODES': '40', 'SLURM_SUBMIT_DIR': self.directory,
                     'RUN': f'{self.directory}/run', 'SRUN_CODE': str(srun_code), 'TOLD': str(told)}
        path = os.path.realpath(find_program(f'tools/deploy/slurm/{file}'))
        done = subprocess.run(['bash', path], cwd=self.directory, capture_output=True, text=True, timeout=60, check=False,
                              env={'PATH': f'{self.directory}:/usr/bin:/bin', **variables, **environment})
        self.assertEqual(done.stderr, '')
        return done.returncode, os.path.exists(requeued)

    def test_after_an_oom_kill_in_the_step_the_launchers_words_count(self):
        # srun has 1 for the step, whatever the launchers ended with.
        for file in _FILES:
            self.assertEqual(self.end_of(file, 1, told=143), (143, True), file)
            self.assertEqual(self.end_of(file, 1, told=0), (0, False), file)
            self.assertEqual(self.end_of(file, 1, told=1), (1, False), file)

    def test_a_launcher_that_was_killed_hides_nothing(self):
        for file in _FILES:
            self.assertEqual(self.end_of(file, 137, told=143), (143, True), file)
            self.assertEqual(self.end_of(file, 137, told=0), (0, False), file)
            self.assertEqual(self.end_of(file, 137, told=69), (69, file in _MAY_BE_FEWER), file)

    def test_a_step_that_a_user_killed_stays_ended(self):
        # `scancel JOB.0`, a killed srun: no launcher lives to tell anything, and what an earlier attempt told is not of this one.
        for file in _FILES:
            self.assertEqual(self.end_of(file, 143, told=143), (143, True), file)
            self.assertEqual(self.end_of(file, 137), (137, False), file)

    def test_without_their_words_srun_s_code_counts(self):
        for file in _FILES:
            self.assertEqual(self.end_of(file, 143), (143, True), file)
            self.assertEqual(self.end_of(file, 64), (64, False), file)
            # The last launcher to write was one whose node cannot be used: srun has the code of all of them together.
            self.assertEqual(self.end_of(file, 143, told=71), (143, True), file)
            self.assertEqual(self.end_of(file, 0, told=0), (0, False), file)

    def test_a_job_comes_back_so_often_and_no_more(self):
        for file in _FILES:
            self.assertEqual(self.end_of(file, 143, told=143, SLURM_RESTART_COUNT='19'), (143, True), file)
            self.assertEqual(self.end_of(file, 143, told=143, SLURM_RESTART_COUNT='20'), (143, False), file)

    def test_the_last_task_of_an_array_comes_back_alone(self):
        self.end_of('train.sbatch', 143, told=143, SLURM_ARRAY_JOB_ID='35', SLURM_ARRAY_TASK_ID='2')
        with open(f'{self.directory}/requeued', encoding='ascii') as asked:
            self.assertEqual(re.split(r'\s+', asked.read().strip()), ['requeue', '35_2'])


if __name__ == '__main__':
    unittest.main()
