#!/usr/bin/python3
"""The choice of files by tools/ci/lint, and its flags. tools/check runs it."""

import argparse
import glob
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
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
        days = [lint.choose(FILES, [], alone, tenth) for tenth in range(10)]
        self.assertEqual(sorted(sum(days, [])), FILES)

    def test_the_change_comes_first_and_then_what_includes_it(self):
        changed = ['agent/machine.h', 'agent/z.cc', 'README.md', 'agent/x.cc']
        chosen = lint.choose(FILES, changed, lambda path: {path, 'agent/machine.h'} if path == 'agent/y.cc' else {path}, tenth=3)
        change = [path for path in chosen if path in ('agent/x.cc', 'agent/y.cc', 'agent/z.cc')]
        self.assertEqual(change, ['agent/z.cc', 'agent/x.cc', 'agent/y.cc'])
        self.assertEqual(set(chosen) - set(change), set(lint.choose(FILES, [], alone, 3)) - set(change))

    def test_a_large_change_leaves_a_third_of_the_time_to_the_tenth(self):
        changed = [f'agent/new{index}.cc' for index in range(100)]
        chosen = lint.choose(FILES + changed, changed, alone, tenth=3)
        tenth = lint.choose(FILES, [], alone, tenth=3)
        self.assertGreaterEqual(len(tenth), 2)
        self.assertEqual(chosen[:5], [changed[0], changed[1], tenth[0], changed[2], changed[3]])
        self.assertEqual(sorted(chosen), sorted(changed + tenth))


class AllTest(unittest.TestCase):

    def chosen(self, **arguments):
        given = argparse.Namespace(**{'all': False, 'files': [], 'tenth': 0, **arguments})
        return lint.chosen_files(given, 'no such folder', {})

    def test_all_is_every_source_but_the_tests(self):
        chosen = self.chosen(all=True)
        self.assertEqual(len(chosen), len(set(chosen)))
        on_disk = [os.path.relpath(path, lint.ROOT) for path in glob.glob(os.path.join(lint.ROOT, '*', '**', '*.cc'), recursive=True)]
        self.assertEqual(sorted(chosen), sorted(path for path in on_disk if not path.endswith('_test.cc')))

    def test_a_file_that_takes_minutes_is_for_all_alone(self):
        slow = [path for path in self.chosen(all=True) if lint.takes_minutes(path)]
        self.assertTrue(slow)
        for tenth in range(10):
            self.assertFalse(set(slow) & set(self.chosen(tenth=tenth)))

    def test_files_are_these_alone(self):
        self.assertEqual(self.chosen(files=['agent/agent.cc']), ['agent/agent.cc'])


class HeadersTest(unittest.TestCase):

    def test_a_finding_in_a_header_is_one_of_the_file_that_includes_it(self):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(f'{folder}/agent')
            for name, text in (('bad.h', 'inline int* Bad() { return 0; }\n'), ('bad.cc', '#include "agent/bad.h"\n')):
                with open(f'{folder}/agent/{name}', 'w', encoding='utf-8') as file:
                    file.write(text)
            done = subprocess.run(['clang-tidy', '--quiet', f'--config-file={lint.ROOT}/.clang-tidy', 'agent/bad.cc', '--', *lint.FLAGS], cwd=folder,
                                  check=False, capture_output=True, text=True)
        self.assertRegex(done.stdout, r'agent/bad\.h:1:.*modernize-use-nullptr')


class FlagsTest(unittest.TestCase):

    def test_every_define_of_a_system_library_is_one_of_the_flags(self):
        lists = re.findall(r'^    defines = \[(.*?)\]', lint.read('tools/bazel/system.BUILD'), re.M | re.S)
        defines = re.findall(r'"(\w+)"', ''.join(lists))
        self.assertIn('SPDLOG_FMT_EXTERNAL', defines)
        self.assertEqual(set(defines), {flag[2:] for flag in lint.FLAGS if flag.startswith('-D')})


if __name__ == '__main__':
    unittest.main()
