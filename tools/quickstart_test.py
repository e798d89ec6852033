#!/usr/bin/python3
"""tools/quickstart with stand-ins for the three programs. tools/check runs it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOOLS = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, TOOLS)
import quickstart_run  # noqa: E402: from beside this file

# Starts 8 workers; starts all again when one dies. Rank 0 writes the metrics, from the last checkpointed step on.
LAUNCHER = '''#!/usr/bin/python3
import os, subprocess, sys, time
command = sys.argv[sys.argv.index('--max-restarts') + 2:]
for epoch in range(1, 5):
    workers = [subprocess.Popen(command, env={**os.environ, 'RANK': str(rank), 'EPOCH': str(epoch)}) for rank in range(8)]
    while all(worker.poll() is None for worker in workers): time.sleep(0.01)
    if workers[0].poll() == 0: break
    print('FAKE worker died, starting again', flush=True)
    for worker in workers: worker.kill()
for worker in workers: worker.kill(); worker.wait()
'''
TRAINER = '''#!/usr/bin/python3
import json, os, sys, time
def flag(name): return sys.argv[sys.argv.index(name) + 1]
if os.environ['RANK'] != '0': time.sleep(60)
steps, epoch = int(flag('--steps')), int(os.environ['EPOCH'])
falls = float(os.environ.get('FAKE_FALL', '4'))
with open(flag('--metrics-file'), 'a', buffering=1) as file:
    for step in range(1 if epoch == 1 else steps // 2 - 2, steps + 1):
        time.sleep(float(os.environ.get('FAKE_STEP_SECONDS', '0.02')))
        file.write(json.dumps(dict(step=step, loss=6 - falls * step / steps, epoch=epoch, world_size=8)) + chr(10))
    file.write(json.dumps(dict(step=steps, validation_loss=6 - falls)) + chr(10))
'''
PLOT = '#!/bin/sh\necho "PLOT of $1"\n'


class PrecisionTest(unittest.TestCase):
    def test_bf16_is_for_processors_that_multiply_it(self):
        self.assertEqual(quickstart_run.precision_for(['avx512f', 'amx_bf16']), 'bf16')
        self.assertEqual(quickstart_run.precision_for(['avx512f', 'avx512_bf16']), 'bf16')
        self.assertEqual(quickstart_run.precision_for(['avx2', 'avx512f']), 'fp32')


class QuickstartTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        os.makedirs(f'{self.root}/tools')
        for name in ['quickstart', 'quickstart_run.py']:
            shutil.copy(f'{TOOLS}/{name}', f'{self.root}/tools/{name}')
        os.makedirs(f'{self.root}/programs')
        for name, text in [('convene', LAUNCHER), ('convene-train', TRAINER), ('loss_plot', PLOT)]:
            with open(f'{self.root}/programs/{name}', 'w') as file:
                file.write(text)
            os.chmod(file.name, 0o755)
        with open(f'{self.root}/page.pod', 'w') as file:
            file.write('text')

    def start(self, **environment):
        command = [f'{self.root}/tools/quickstart', '--steps', '60', '--programs', f'{self.root}/programs', '--data', f'{self.root}/*.pod']
        return subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def left_running(self):
        """Command lines, of any process, that name this test's folder."""
        found = []
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{pid}/cmdline', encoding='utf-8', errors='replace') as file:
                    found += [line for line in [file.read()] if self.root in line]
            except OSError:  # it ended
                pass
        return found

    def test_a_killed_worker_is_recovered_from_and_the_loss_falls(self):
        run = self.start()
        output = run.communicate(timeout=60)[0]
        self.assertEqual(run.returncode, 0, output)
        self.assertRegex(output, r'Step \d+: kill -9 \d+, the worker of rank 5')
        self.assertRegex(output, r'Recovered: step 28 was done \d+\.\d s after the kill, on 8 workers')
        self.assertIn('Learned: loss 5.800 -> 2.133', output)
        self.assertIn('2.000 on text it never saw', output)
        self.assertIn('PLOT of quickstart-run/metrics.jsonl', output)
        self.assertIn('--steps 120', output)
        self.assertEqual(self.left_running(), [])

    def test_a_loss_that_does_not_fall_fails_loudly(self):
        run = self.start(FAKE_FALL='0.1')
        output = run.communicate(timeout=60)[0]
        self.assertEqual(run.returncode, 1, output)
        self.assertIn('quickstart FAILED: the loss did not fall enough: 5.995 at the beginning, 5.903 at the end', output)

    def test_an_interrupt_or_a_termination_leaves_nothing_running(self):
        for number, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143)]:
            with self.subTest(signal=number):
                run = self.start(FAKE_STEP_SECONDS='1')
                deadline = time.monotonic() + 20
                while len(self.left_running()) < 10 and time.monotonic() < deadline:
                    time.sleep(0.02)
                run.send_signal(number)
                output = run.communicate(timeout=30)[0]
                self.assertEqual(run.returncode, code, output)
                self.assertEqual(self.left_running(), [])

    def test_missing_text_is_said_before_anything_starts(self):
        os.remove(f'{self.root}/page.pod')
        run = self.start()
        self.assertIn('quickstart FAILED: no text at', run.communicate(timeout=30)[0])
        self.assertEqual(run.returncode, 1)


if __name__ == '__main__':
    sys.exit(unittest.main())
