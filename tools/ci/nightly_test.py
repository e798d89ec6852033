#!/usr/bin/python3
"""tools/nightly: what it counts. The parts' programs are stand-ins. tools/check runs it."""

import os
import shutil
import subprocess
import tempfile
import unittest

_NIGHTLY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'nightly')


class NightlyTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.program('tools/install_packages', 'exit 0')
        shutil.copy(_NIGHTLY, os.path.join(self.folder, 'tools/nightly'))

    def program(self, path, script):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(f'#!/bin/sh\n{script}\n')
        os.chmod(path, 0o755)

    def run_parts(self, *parts):
        path = os.path.join(self.folder, 'bin') + ':' + os.environ['PATH']
        return subprocess.run([os.path.join(self.folder, 'tools/nightly'), '1s', *parts], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False, env={**os.environ, 'HOME': self.folder, 'PATH': path})

    def test_parts_that_run_whole_pass(self):
        self.program('tools/deploy/kubernetes/validate', 'echo all fit')
        self.program('bin/bazel', 'echo "Ran 3 tests in 1s"; echo; echo OK')
        done = self.run_parts('manifests', 'hosts')
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (0, '2 passed, 0 failed, 0 skipped'), done.stdout)

    def test_a_part_whose_tests_skip_is_not_passed_and_says_why(self):
        self.program('bin/bazel', "echo \"test_x (T) ... skipped 'no sshd'\"; echo \"test_y (T) ... skipped 'no sshd'\"; echo 'OK (skipped=2)'")
        done = self.run_parts('hosts')
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (0, '0 passed, 0 failed, 1 skipped'), done.stdout)
        self.assertRegex(done.stdout, "(?s)skipped  hosts: .*'no sshd'.*hosts.log")

    def test_a_part_for_which_this_machine_lacks_something_is_skipped(self):
        self.program('tools/deploy/kubernetes/validate', 'exit 69')
        done = self.run_parts('manifests')
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (0, '0 passed, 0 failed, 1 skipped'), done.stdout)
        self.assertIn('the validator cannot be installed', done.stdout)

    def test_a_finding_is_a_failure_whatever_else_skips(self):
        self.program('tools/deploy/kubernetes/validate', 'echo "SKIPPED: one"; echo "ERROR: job.yaml does not fit"; exit 1')
        done = self.run_parts('manifests')
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (1, '0 passed, 1 failed, 0 skipped'), done.stdout)
        self.assertIn('FAILED   manifests: ERROR: job.yaml does not fit', done.stdout)


if __name__ == '__main__':
    unittest.main()
