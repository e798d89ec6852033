#!/usr/bin/python3
"""recovery.py with trainers that compute nothing. tools/check runs it."""

import os
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import recovery  # noqa: E402  (the line above keeps __pycache__ out of the tree)

# Its argument: the last step of the first epoch. After the kill it goes on from a step that it has made before.
JOB = '''
import json, os, subprocess, sys, time
folder, last = sys.argv[1], int(sys.argv[2])
def steps(epoch, numbers):
    with open(folder + '/metrics', 'a') as out:
        for step in numbers:
            out.write(json.dumps({'step': step, 'loss': 1.0, 'grad_norm': 1.0, 'epoch': epoch, 'step_seconds': 0.1}) + '\\n')
print(os.environ.get('SAYS', ''), flush=True)
worker = subprocess.Popen([folder + '/convene-train', '1000'], env={**os.environ, 'RANK': '0'})
steps(1, range(1, last + 1))
worker.wait()
time.sleep(0.3)
steps(2, [last - 2])
time.sleep(1000)
'''


class RecoveryTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix='recovery.')
        self.addCleanup(shutil.rmtree, self.folder)
        with open(f'{self.folder}/job', 'w', encoding='ascii') as file:
            file.write(JOB)
        shutil.copy('/bin/sleep', f'{self.folder}/convene-train')

    def recover(self, last=10, with_spares=False, limit_s=20.0, **environment):
        command = [sys.executable, f'{self.folder}/job', self.folder, str(last)]
        return recovery.recover(command, {**os.environ, **environment}, f'{self.folder}/metrics', with_spares, limit_s)

    def test_the_time_ends_at_the_next_step_also_where_that_was_made_before(self):
        recovered = self.recover()
        self.assertGreater(recovered.seconds, 0.3)
        self.assertLess(recovered.seconds, 5)

    def test_a_job_whose_spares_are_not_ready_is_not_killed(self):
        recovered = self.recover(with_spares=True, limit_s=1.0)
        self.assertEqual((recovered.seconds, recovered.cut), (None, True))
        self.assertIn('before a worker was killed, with spares ready', recovered.why)
        self.assertIsNotNone(self.recover(with_spares=True, SAYS=f'{recovery.SPARES_ARE_READY}: 1').seconds)

    def test_a_job_that_ends_is_told_with_its_last_line(self):
        os.remove(f'{self.folder}/convene-train')
        recovered = self.recover()
        self.assertFalse(recovered.cut)
        self.assertIn('ended with 1 before a worker was killed: FileNotFoundError', recovered.why)

    def test_the_median_of_each_kind_is_told(self):
        self.assertEqual(recovery.summary({'cold': [3.0, 1.0, 2.0], 'warm': [0.5]}),
                         'cold: next step 2.00 s after the kill (median of 3), warm: next step 0.50 s after the kill (median of 1)')


if __name__ == '__main__':
    unittest.main()
