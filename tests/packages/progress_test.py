"""convene.progress: the page that a script writes, a script without a page, and the signal that asks for its stacks."""

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from tests.support.convene_testing import find_program

FOLDER = os.path.dirname(find_program('tools/deploy/python/convene/progress.py'))
PATIENT = 'import os, signal, sys, time, progress\n'
ASKED = 'os.kill(os.getpid(), signal.SIGUSR2)\ntime.sleep(0.1)\n'


class ProgressTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.page = f'{self.folder}/page'
        with open(self.page, 'wb') as out:
            out.write(b'CONVPRG1'.ljust(4096, b'\0'))

    def run_script(self, text, page=None):
        """(exit code, stderr) of a script that tells a step."""
        result = subprocess.run([sys.executable, '-c', PATIENT + text], stderr=subprocess.PIPE, encoding='utf-8', timeout=60,
                                env={**os.environ, 'PYTHONPATH': FOLDER, 'CONVENE_PROGRESS': self.page if page is None else page})
        return result.returncode, result.stderr

    def told(self):
        with open(self.page, 'rb') as file:
            return struct.unpack_from('<qqQII24s', file.read(), 8)

    def test_a_script_without_a_page_goes_on(self):
        with open(f'{self.folder}/short', 'wb'):
            pass
        for page, words in ((f'{self.folder}/none', 'No such file'), (f'{self.folder}/short', 'mmap length'), ('', '')):
            code, text = self.run_script('progress.Progress().tell(3)', page)
            self.assertEqual(code, 0, text)
            self.assertIn(words, text)
            self.assertEqual('a hang goes unnoticed' in text, bool(words), text)

    def test_a_page_has_step_and_process(self):
        code, text = self.run_script('print(os.getpid(), file=sys.stderr)\nprogress.Progress().tell(3, "validation")')
        sequence, step, _, flags, pid, phase = self.told()
        self.assertEqual((code, sequence, step, flags, phase.rstrip(b'\0')), (0, 2, 3, 1, b'validation'))
        self.assertEqual(pid, int(text))

    def test_the_use_of_the_machine_is_told_in_millionths(self):
        for mfu, millionths in ((0.413, 413000), (-1, 0), (float('nan'), 0), (1e9, 2**32 - 1)):
            code, text = self.run_script(f'progress.Progress().tell(3, mfu=float("{mfu}"))')
            with open(self.page, 'rb') as file:
                self.assertEqual((code, text, *struct.unpack_from('<I', file.read(), 132)), (0, '', millionths))

    def test_a_number_of_any_kind_ends_no_worker(self):
        """A clock goes back, a sum of a float mask, a loss that is lost: a page has whole numbers, and no number counts 0."""
        code, text = self.run_script('p = progress.Progress()\nfor odd in (-1e-9, float("nan"), float("inf"), 1e40, 2.0):\n'
                                     '    p.tell(7.0, compute_s=odd, wait_s=odd, data_s=odd, checkpoint_s=odd, tokens=odd, memory_bytes=odd)\n'
                                     'p.tell(float("nan"), tokens=3)')
        with open(self.page, 'rb') as file:
            page = file.read()
        self.assertEqual((code, text, self.told()[:2]), (0, '', (12, 0)))
        *times, tokens, memory, _ = struct.unpack_from('<7Q', page, 64)
        self.assertEqual((times, tokens, memory), ([(1 << 62) - 1] * 4, (1 << 62) - 1, 2))

    def test_a_signal_asks_for_the_stacks_of_all_threads(self):
        code, text = self.run_script('import threading\nthreading.Thread(target=time.sleep, args=(1,)).start()\np = progress.Progress()\n'
                                     f'def stands():\n    {ASKED.strip().splitlines()[0]}\n    time.sleep(0.1)\nstands()\np.tell(1)')
        self.assertEqual((code, text.count('most recent call first')), (0, 2), text)
        self.assertIn('in stands', text)

    def test_a_scripts_own_handler_is_left_alone(self):
        own = 'signal.signal(signal.SIGUSR2, lambda *_: print("own", file=sys.stderr))\n'
        for text in (f'{own}p = progress.Progress()\n', f'p = progress.Progress()\n{own}'):
            code, said = self.run_script(f'{text}p.tell(1)\n{ASKED}')
            self.assertEqual((code, said), (0, 'own\n'))
            self.assertEqual(self.told()[3], 0)
        # A handler that Python does not know.
        code, said = self.run_script('import faulthandler\nout = open(os.devnull, "w")\nfaulthandler.register(signal.SIGUSR2, file=out)\n'
                                     f'progress.Progress().tell(1)\n{ASKED}')
        self.assertEqual((code, said, self.told()[3]), (0, '', 0))


if __name__ == '__main__':
    unittest.main()
