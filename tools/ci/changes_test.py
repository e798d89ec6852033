#!/usr/bin/python3
"""tools/ci/changes.py on repositories that git makes for it. tools/check runs it."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import changes  # noqa: E402  (the line above keeps __pycache__ out of the tree)


class TreeTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.tree = self.repository('first')
        self.commit('agent/core/step.cc', 'one')
        self.first = self.tree.git('rev-parse', 'HEAD').strip()

    def repository(self, name):
        subprocess.run(['git', 'init', '-q', '-b', 'main', f'{self.folder}/{name}'], check=True)
        return changes.Tree(f'{self.folder}/{name}')

    def write(self, path, text):
        whole = os.path.join(self.tree.root, path)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, 'w', encoding='utf-8') as file:
            file.write(text)

    def commit(self, path, text, days_ago=0):
        self.write(path, text)
        when = subprocess.run(['date', '-d', f'{days_ago} days ago', '+%s +0000'], check=True, capture_output=True, text=True).stdout.strip()
        identity = ['-c', 'user.name=test', '-c', 'user.email=test@localhost']
        subprocess.run(['git', 'add', '.'], cwd=self.tree.root, check=True)
        subprocess.run(['git', *identity, 'commit', '-q', '-m', text], cwd=self.tree.root, check=True,
                       env={**os.environ, 'GIT_COMMITTER_DATE': when, 'GIT_AUTHOR_DATE': when})

    def test_on_a_branch_the_change_is_all_since_main(self):
        self.tree.git('checkout', '-q', '-b', 'change')
        self.commit('agent/core/step.cc', 'two')
        self.commit('proto/a b.proto', 'three')
        self.write('launcher/new.cc', 'not committed')
        self.assertEqual(self.tree.landed(), self.first)
        self.assertEqual(self.tree.changed_since(self.first), ['agent/core/step.cc', 'launcher/new.cc', 'proto/a b.proto'])

    def test_a_main_that_ends_here_tells_nothing(self):
        self.commit('agent/core/step.cc', 'two')
        self.assertIsNone(self.tree.landed())

    def test_a_clone_of_one_branch_and_no_other_knows_nothing(self):
        self.tree.git('checkout', '-q', '-b', 'change')
        self.commit('agent/core/step.cc', 'two')
        subprocess.run(['git', 'clone', '-q', '--single-branch', '-b', 'change', self.tree.root, f'{self.folder}/clone'], check=True)
        self.assertIsNone(changes.Tree(f'{self.folder}/clone').landed())

    def test_a_clone_with_a_main_behind_it_knows(self):
        self.tree.git('checkout', '-q', '-b', 'change')
        self.commit('agent/core/step.cc', 'two')
        subprocess.run(['git', 'clone', '-q', '-b', 'change', self.tree.root, f'{self.folder}/clone'], check=True)
        self.assertEqual(changes.Tree(f'{self.folder}/clone').landed(), self.first)

    def test_where_nothing_is_known_the_last_day_counts(self):
        self.tree = self.repository('second')
        self.commit('old.cc', 'one', days_ago=9)
        self.commit('this morning.cc', 'two', days_ago=5)
        self.commit('this noon.cc', 'three', days_ago=5)
        self.write('now.cc', 'not committed')
        self.assertEqual(self.tree.changed_lately(), ['now.cc', 'this morning.cc', 'this noon.cc'])

    def test_a_fingerprint_knows_names_bytes_and_nothing_else(self):
        before = self.tree.fingerprint(['agent'], 'nvcc 13')
        self.commit('launcher/flags.cc', 'elsewhere')
        self.assertEqual(self.tree.fingerprint(['agent'], 'nvcc 13'), before)
        self.assertNotEqual(self.tree.fingerprint(['agent'], 'nvcc 14'), before)
        self.write('agent/core/step.cc', 'edited, and not committed')
        self.assertNotEqual(self.tree.fingerprint(['agent'], 'nvcc 13'), before)
        self.write('agent/core/step.cc', 'one')
        self.assertEqual(self.tree.fingerprint(['agent'], 'nvcc 13'), before)
        self.write('agent/core/another.cc', '')
        self.assertNotEqual(self.tree.fingerprint(['agent'], 'nvcc 13'), before)

    def test_a_folder_is_no_prefix_of_a_name(self):
        self.assertEqual(changes.below(['worker_runtime/a.cc', 'worker_runtimes.md', 'WORKSPACE'], ['worker_runtime', 'WORKSPACE']),
                         ['worker_runtime/a.cc', 'WORKSPACE'])


if __name__ == '__main__':
    unittest.main()
