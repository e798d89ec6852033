#!/usr/bin/python3
"""tools/quickstart with stand-ins for the two programs, and the plot that it ends with. tools/check runs it."""

import glob
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
import loss_plot  # noqa: E402: from beside this file
import quickstart_finetune  # noqa: E402
import quickstart_run  # noqa: E402

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
begins_anew = epoch > 1 and 'FAKE_NO_CHECKPOINT' in os.environ
with open(flag('--metrics-file'), 'w' if begins_anew else 'a', buffering=1) as file:
    if begins_anew: time.sleep(1)
    for step in range(1 if epoch == 1 or begins_anew else steps // 2 - 2, steps + 1):
        time.sleep(float(os.environ.get('FAKE_STEP_SECONDS', '0.02')))
        file.write(json.dumps(dict(step=step, loss=6 - falls * step / steps, epoch=epoch, world_size=8)) + chr(10))
    file.write(json.dumps(dict(step=steps, validation_loss=6 - falls)) + chr(10))
'''


def steps(losses, epoch=1):
    return [dict(step=number, loss=loss, epoch=epoch) for number, loss in losses]


class LossPlotTest(unittest.TestCase):
    # A straight line down from (1, 5.75) to (16, 2).
    FALLING = [(step, 6 - step * 0.25) for step in range(1, 17)]

    def test_a_falling_loss_falls_with_numbers_at_both_axes(self):
        self.assertEqual(loss_plot.plot(steps(self.FALLING), 12, 5),
                         '   5.750 │⠑⢢\n'
                         '         │  ⠉⠢⢄\n'
                         '         │    ⠈⠒⢄⡀\n'
                         '         │       ⠘⠤⡀\n'
                         '   2.000 │         ⠈⠱⣀\n'
                         '         └────────────\n'
                         '          1    8    16\n'
                         '          step    ⠤ training loss\n')

    def test_validations_and_restarts_are_marked_and_a_loss_that_is_no_number_is_a_gap(self):
        lines = steps(self.FALLING[:8]) + steps([(9, None)]) + steps(self.FALLING[9:11]) + steps(self.FALLING[11:], epoch=2)
        lines += [dict(step=8, validation_loss=3), dict(step=9, validation_loss=None), dict(step=16, validation_loss=5)]
        lines += steps([(99, None)], epoch=4)
        self.assertEqual(loss_plot.plot(lines, 8, 4),
                         '   5.750 │⠑⢄   ┊ o\n'
                         '         │  ⠑⢄ ┊\n'
                         '         │   o⠐⢄\n'
                         '   2.000 │     ┊⠑⢄\n'
                         '         └────────\n'
                         '          1  8  16\n'
                         '          step    ⠤ training loss   o validation loss   ┊ restart\n')

    def test_validation_sets_have_letters_of_their_own(self):
        lines = steps(self.FALLING) + [dict(step=8, validation_loss=5.75), dict(step=1, validation_set='web', validation_loss=2),
                                       dict(step=16, validation_set='code', validation_loss=5.75)]
        self.assertEqual(loss_plot.plot(lines, 8, 4),
                         '   5.750 │⠑⢄ o   a\n'
                         '         │  ⠑⢄\n'
                         '         │    ⠑⢄\n'
                         '   2.000 │b     ⠑⢄\n'
                         '         └────────\n'
                         '          1  8  16\n'
                         '          step    ⠤ training loss   o validation loss   a code   b web\n')

    def test_a_single_point_and_none_at_all_can_be_plotted(self):
        self.assertEqual(loss_plot.plot([]), 'no losses to plot\n')
        self.assertEqual(loss_plot.plot(steps([(5, None)])), 'no losses to plot\n')
        self.assertEqual(loss_plot.plot(steps([(5, 2.5)]), 8, 2),
                         '   2.500 │    ⡀\n'
                         '   2.500 │\n'
                         '         └────────\n'
                         '          5\n'
                         '          step    ⠤ training loss\n')

    def test_an_early_spike_and_a_long_run_stay_inside_the_area(self):
        lines = loss_plot.plot(steps((step, 1e30 if step == 101 else 2.0) for step in range(1, 20001)), 60, 10).splitlines()
        self.assertEqual(len(lines), 13)
        self.assertTrue(lines[0].startswith('   1e+30 │'), lines[0])


class PrecisionTest(unittest.TestCase):
    def test_bf16_is_for_processors_that_multiply_it(self):
        self.assertEqual(quickstart_run.precision_for(['avx512f', 'amx_bf16']), 'bf16')
        self.assertEqual(quickstart_run.precision_for(['avx512f', 'avx512_bf16']), 'bf16')
        self.assertEqual(quickstart_run.precision_for(['avx2', 'avx512f']), 'fp32')


class TextTest(unittest.TestCase):
    def test_the_text_is_called_what_it_is(self):
        self.assertEqual(quickstart_run.describe_text(quickstart_run.DATA, [44_000] * 207), "207 pages of Perl's manual (9.1 MB)")
        self.assertEqual(quickstart_run.describe_text('/books/*.txt', [100_000]), '1 file of /books/*.txt (0.1 MB)')

    def test_a_manual_without_its_pages_is_no_manual(self):
        with self.assertRaisesRegex(quickstart_run.Failure, r'only 1 page \(0.3 MB\).*perl-doc(.|\n)*install_packages quickstart(.|\n)*path-include'):
            quickstart_run.describe_text(quickstart_run.DATA, [300_178])


# Gives the manual's answers behind a training alone, or only noise (FAKE_NOISE); names its model's folder for the export.
TEACHER = LAUNCHER.split('\n')[0] + '''
import json, os, re, sys
def flag(name): return sys.argv[sys.argv.index(name) + 1]
if sys.argv[1] == 'run':
    exec(LAUNCHER)
elif sys.argv[1] == 'generate':
    pairs = [json.loads(line)['messages'] for line in open(os.path.join(os.path.dirname(flag('--prompts')), 'pairs.jsonl'))]
    answers = {pair[0]['content']: pair[1]['content'] for pair in pairs}
    knows = flag('--model').endswith('checkpoints') and 'FAKE_NOISE' not in os.environ
    with open(flag('--output'), 'w') as out:
        for line in open(flag('--prompts')):
            asked = json.loads(line)['messages'][0]['content']
            out.write(json.dumps(dict(text=answers[asked] if knows else 'noise')) + chr(10))
else:
    os.mkdir(flag('--output'))
'''.replace('exec(LAUNCHER)', f'exec({LAUNCHER.replace("range(8)", "range(2)")!r})')


class FinetuneTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        os.makedirs(f'{self.root}/tools')
        os.makedirs(f'{self.root}/programs')
        for name in ['quickstart', 'quickstart_run.py', 'quickstart_finetune.py', 'loss_plot.py']:
            shutil.copy(f'{TOOLS}/{name}', f'{self.root}/tools/{name}')
        for path, text in [('programs/convene', TEACHER), ('programs/convene-train', TRAINER),
                           ('tools/tokenizer_environment', '#!/bin/sh\necho "${FAKE_MODEL-/dev/null}"; test -z "$FAKE_NO_PYPI"\n')]:
            with open(f'{self.root}/{path}', 'w') as file:
                file.write(text)
            os.chmod(file.name, 0o755)

    def run_it(self, **environment):
        command = [f'{self.root}/tools/quickstart', '--finetune', '--programs', f'{self.root}/programs']
        run = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        return run.returncode, run.stdout

    def test_functions_have_the_words_of_the_manual(self):
        pod = '=item abs VALUE\n\n=item abs\n\n=for Pod::Functions absolute value function\n\n=item Groups\n=for Pod::Functions =String\n'
        self.assertEqual(quickstart_finetune.functions_of(pod), {'abs': 'absolute value function'})

    @unittest.skipUnless(glob.glob(quickstart_finetune.MANUAL), 'no manual of Perl (tools/install_packages quickstart)')
    def test_it_asks_teaches_kills_asks_again_and_exports(self):
        code, output = self.run_it()
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r'Step \d+: kill -9 \d+, the worker of rank 1')
        self.assertRegex(output, r'Recovered: step \d+ was done \d+\.\d s after the kill, on 8 workers')
        self.assertRegex(output, r'convene-train --init-from .* --lora-rank \d+')
        self.assertIn("      lcfirst: return a string with just the next letter in lower case.\n", output)
        self.assertIn("Learned: 12 of 12 answers are the manual's, word for word; before there were 0", output)
        self.assertTrue(os.path.isdir(f'{self.root}/quickstart-run/tuned'))

    @unittest.skipUnless(glob.glob(quickstart_finetune.MANUAL), 'no manual of Perl (tools/install_packages quickstart)')
    def test_a_model_that_learned_nothing_or_cannot_be_had_fails_loudly(self):
        code, output = self.run_it(FAKE_NOISE='1')
        self.assertEqual(code, 1, output)
        self.assertIn("of 12 answers 0 were the manual's before the tuning and 0 after it", output)
        code, output = self.run_it(FAKE_NO_PYPI='1', FAKE_MODEL='no network')
        self.assertEqual(code, 1, output)
        self.assertIn('quickstart FAILED: the model cannot be had: no network', output)


class QuickstartTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        os.makedirs(f'{self.root}/tools')
        for name in ['quickstart', 'quickstart_run.py', 'loss_plot.py']:
            shutil.copy(f'{TOOLS}/{name}', f'{self.root}/tools/{name}')
        os.makedirs(f'{self.root}/programs')
        for name, text in [('convene', LAUNCHER), ('convene-train', TRAINER)]:
            with open(f'{self.root}/programs/{name}', 'w') as file:
                file.write(text)
            os.chmod(file.name, 0o755)
        with open(f'{self.root}/page.pod', 'w') as file:
            file.write('text')

    def start(self, count=60, programs='programs', **environment):
        command = [f'{self.root}/tools/quickstart', '--steps', str(count), '--programs', f'{self.root}/{programs}', '--data', f'{self.root}/*.pod']
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
        self.assertIn('step    ⠤ training loss   o validation loss   ┊ restart\n', output)
        self.assertIn('--steps 120', output)
        self.assertEqual(self.left_running(), [])

    def test_the_programs_of_the_run_before_are_taken(self):
        self.start().communicate(timeout=60)
        run = self.start(programs='quickstart-run/bin')
        self.assertIn('Learned: ', run.communicate(timeout=60)[0])
        self.assertEqual(run.returncode, 0)

    def test_too_few_steps_for_a_checkpoint_before_the_kill_are_refused(self):
        run = self.start(count=41)
        self.assertIn('quickstart FAILED: --steps 41 is too few', run.communicate(timeout=30)[0])
        self.assertEqual(run.returncode, 1)

    def test_a_job_that_begins_anew_after_the_kill_is_watched_to_its_end(self):
        run = self.start(FAKE_NO_CHECKPOINT='1')
        output = run.communicate(timeout=60)[0]
        self.assertEqual(run.returncode, 0, output)
        self.assertRegex(output, r'Recovered: step 1 was done .* from the beginning')

    def test_a_loss_that_does_not_fall_fails_loudly(self):
        run = self.start(FAKE_FALL='0.1')
        output = run.communicate(timeout=60)[0]
        self.assertEqual(run.returncode, 1, output)
        self.assertIn('quickstart FAILED: the loss did not fall enough: 5.995 at the beginning, 5.903 at the end', output)

    def test_a_shorter_run_is_not_held_to_the_promise_of_the_whole_one(self):
        run = self.start(FAKE_FALL='1.9')
        output = run.communicate(timeout=60)[0]
        self.assertEqual(run.returncode, 0, output)

    def test_a_second_run_in_the_clone_is_refused_and_leaves_the_first_alone(self):
        first = self.start(FAKE_STEP_SECONDS='0.1')
        deadline = time.monotonic() + 20
        while not os.path.exists(f'{self.root}/quickstart-run/metrics.jsonl'):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        second = self.start()
        self.assertIn('quickstart FAILED: another tools/quickstart runs in this clone', second.communicate(timeout=20)[0])
        self.assertEqual(second.returncode, 1)
        output = first.communicate(timeout=60)[0]
        self.assertEqual(first.returncode, 0, output)

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
