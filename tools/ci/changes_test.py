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
        tree = changes.Tree(f'{self.folder}/{name}')
        tree.git('config', 'user.name', 'test')
        tree.git('config', 'user.email', 'test@localhost')
        return tree

    def write(self, path, text):
        whole = os.path.join(self.tree.root, path)
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, 'w', encoding='utf-8') as file:
            file.write(text)

    def commit(self, path, text, days_ago=0):
        self.write(path, text)
        when = subprocess.run(['date', '-d', f'{days_ago} days ago', '+%s +0000'], check=True, capture_output=True, text=True).stdout.strip()
        subprocess.run(['git', 'add', '.'], cwd=self.tree.root, check=True)
        subprocess.run(['git', 'commit', '-q', '-m', text], cwd=self.tree.root, check=True,
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
        self.assertEqual(self.tree.changed_lately(), ['now.cc', 'this noon.cc', 'this morning.cc'])

    def test_what_a_merge_edits_counts(self):
        self.tree = self.repository('third')
        self.commit('both.cc', 'old', days_ago=9)
        self.tree.git('checkout', '-q', '-b', 'side')
        self.commit('both.cc', 'of the side', days_ago=8)
        self.commit('side.cc', 'new', days_ago=8)
        self.tree.git('checkout', '-q', 'main')
        self.commit('both.cc', 'of main', days_ago=7)
        self.assertIsNone(self.tree.git('merge', '-q', '--no-commit', 'side'), 'a conflict')
        self.commit('both.cc', 'of both, by hand')
        self.assertEqual(self.tree.git('log', '-1', '--format=%P').count(' '), 1, 'two parents')
        self.assertEqual(self.tree.changed_lately(), ['both.cc', 'side.cc'])

    def test_in_a_shallow_clone_every_file_is_new(self):
        self.commit('launcher/main.cc', 'two')
        for more in (['--single-branch'], ['--no-single-branch']):
            clone = changes.Tree(f'{self.folder}/clone{more[0]}')
            subprocess.run(['git', 'clone', '-q', '--depth', '1', *more, f'file://{self.tree.root}', clone.root], check=True)
            self.assertEqual(clone.git('rev-parse', '--is-shallow-repository').strip(), 'true')
            self.assertIsNone(clone.landed())
            self.assertEqual(clone.changed_lately(), ['agent/core/step.cc', 'launcher/main.cc'])

    def test_a_shallow_clone_of_a_branch_does_not_know_where_it_left_main(self):
        self.tree.git('checkout', '-q', '-b', 'change')
        self.commit('launcher/main.cc', 'two')
        clone = changes.Tree(f'{self.folder}/clone')
        subprocess.run(['git', 'clone', '-q', '--depth', '1', '--no-single-branch', '-b', 'change', f'file://{self.tree.root}', clone.root], check=True)
        self.assertIsNotNone(clone.git('rev-parse', 'origin/main'))
        self.assertIsNone(clone.landed())

    def test_a_checkout_of_a_commit_without_a_branch_knows(self):
        self.tree.git('checkout', '-q', '-b', 'change')
        self.commit('launcher/main.cc', 'two')
        self.tree.git('checkout', '-q', '--detach')
        self.assertEqual(self.tree.landed(), self.first)

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
