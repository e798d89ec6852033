#!/usr/bin/python3
"""The choice of files by tools/ci/lint. tools/check runs it."""

import importlib.machinery
import importlib.util
import os
import sys
import unittest

sys.dont_write_bytecode = True
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lint')
LOADER = importlib.machinery.SourceFileLoader('lint', PATH)
lint = importlib.util.module_from_spec(importlib.util.spec_from_loader('lint', LOADER))
LOADER.exec_module(lint)

FILES = [f'agent/{name}.cc' for name in 'abcdefghijklmnopqrstuvwxyz']


def alone(path):
    return {path}


class ChooseTest(unittest.TestCase):

    def test_ten_days_see_every_file_once(self):
        days = [lint.choose(FILES, set(), alone, tenth) for tenth in range(10)]
        self.assertEqual(sorted(sum(days, [])), FILES)

    def test_the_change_comes_first_and_then_what_includes_it(self):
        changed = {'agent/z.cc', 'agent/machine.h', 'README.md'}
        chosen = lint.choose(FILES, changed, lambda path: {path, 'agent/machine.h'} if path == 'agent/y.cc' else {path}, tenth=3)
        self.assertEqual(chosen[:2], ['agent/z.cc', 'agent/y.cc'])
        self.assertEqual(set(chosen[2:]), set(lint.choose(FILES, set(), alone, 3)) - set(chosen[:2]))


if __name__ == '__main__':
    unittest.main()
