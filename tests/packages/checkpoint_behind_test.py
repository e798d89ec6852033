"""Work of convene.checkpoint behind the training: it is done in its order, and also where the interpreter ends."""

import subprocess
import sys
import unittest

from tests.support.convene_testing import find_program

SCRIPT = '''
import atexit, importlib.util, sys
spec = importlib.util.spec_from_file_location('checkpoint_behind', sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
used, fresh = module.Behind('used'), module.Behind('fresh')
used.submit(print, 'within')
atexit.register(lambda: [behind.submit(print, 'at the end').result() for behind in (used, fresh)])
'''


class CheckpointBehindTest(unittest.TestCase):

    def test_an_interpreter_that_ends_does_the_work_at_once(self):
        path = find_program('tools/deploy/python/convene/checkpoint_behind.py')
        done = subprocess.run([sys.executable, '-c', SCRIPT, path], capture_output=True, text=True, check=True)
        self.assertEqual((done.stdout.split('\n'), done.stderr), (['within', 'at the end', 'at the end', ''], ''))


if __name__ == '__main__':
    unittest.main()
