#!/usr/bin/python3
"""The parts that tools/check decides to leave out. tools/check runs it."""

import argparse
import os
import re
import subprocess
import sys
import unittest
from unittest import mock

sys.dont_write_bytecode = True
import check  # noqa: E402  (the line above keeps __pycache__ out of the tree)


def run_of(*chosen):
    with mock.patch.object(check, 'LOGS', os.environ.get('TMPDIR', '/tmp')), mock.patch('builtins.open', mock.mock_open()):
        return check.Run('test', argparse.Namespace(fast=False, parts=[]), set(chosen), check.Counts(), 1e9)


class LeftOutTest(unittest.TestCase):

    def test_what_asan_runs_is_left_out_elsewhere_only_where_asan_runs(self):
        everything = check.Change({}, set(), {'//agent/core:machine_test', '//launcher:flags_test'})
        with mock.patch.object(subprocess, 'run') as bazel, mock.patch.object(check, 'change', return_value=everything), \
                mock.patch.object(check, 'sanitized_folders', return_value=['//agent/...', '//launcher/...']):
            bazel.return_value.stdout = '//agent/core:machine_test\n//launcher:flags_test\n'
            self.assertEqual(check.tests_of_asan(run_of('build', 'test')), [])
            bazel.assert_not_called()
            self.assertEqual(check.tests_of_asan(run_of('build', 'test', 'asan')), ['//agent/core:machine_test', '//launcher:flags_test'])
            self.assertIn('set(//agent/... //launcher/...)', bazel.call_args[0][0][-1])

    def test_what_the_change_does_not_reach_is_sanitized_within_five_days_and_tested_without_on_the_others(self):
        labels = [f'//folder{number}:one_test' for number in range(50)]
        with mock.patch.object(check, 'change', return_value=check.Change({}, set(), {labels[7]})), \
                mock.patch.object(check, 'bazel_query', return_value=labels), mock.patch.object(check, 'day') as today:
            days = []
            for today.return_value in range(5):
                days.append(check.sanitized_tests('asan'))
                self.assertIn(labels[7], days[-1])
                self.assertEqual(check.tests_of_asan(run_of('test', 'asan')), days[-1], 'the part test runs all others')
        self.assertEqual(sorted(set(sum(days, []))), sorted(labels))
        self.assertLess(max(map(len, days)), 25)

    def test_every_folder_that_a_sanitizer_looks_at_is_there(self):
        for folders in check.SANITIZED.values():
            for folder in folders:
                self.assertTrue(check.tracked(f'{folder}/*BUILD.bazel'), folder)
        for path in check.CUDA_BUILT_BY:
            self.assertTrue(os.path.exists(os.path.join(check.ROOT, path)), path)

    def test_gcc_compiles_a_test_that_only_asan_links(self):
        run = run_of('build', 'asan')
        with mock.patch.object(check, 'tests_of_asan', return_value=['//launcher:flags_test']), \
                mock.patch.object(check, 'change', return_value=check.Change({}, {'//launcher:flags_test'}, set())), \
                mock.patch.object(run, 'bazel_build') as build:
            check.part_build(run)
        self.assertEqual([call[0] for call in build.call_args_list],
                         [('--', '//...', '-//launcher:flags_test'), ('--output_groups=compilation_outputs', '--', '//launcher:flags_test')])

    @unittest.skipUnless(os.path.exists(check.NVCC), 'SKIPPED: no CUDA toolkit at /usr/local/cuda')
    @unittest.skipUnless(os.path.isdir(os.path.expanduser('~/.cache/convene/cudnn_frontend')),
                         'SKIPPED: tools/install_cudnn_frontend has not run yet; the part cuda runs it')
    def test_the_graph_names_what_cuda_is_built_from(self):
        paths = check.cuda_paths()
        for path in ('worker_runtime/device/cuda', 'worker_runtime/trainer', 'tests/gpu', 'tools/base', 'tools/bazel'):
            self.assertIn(path, paths)
        self.assertEqual([path for path in paths if re.match(r'@|//|agent|launcher|rendezvous/server', path)], [])

    def test_cuda_is_left_out_only_with_a_reason(self):
        paths = ['worker_runtime/ops', 'worker_runtime/ops/cuda', '.bazelrc']
        self.assertIn('passed on this machine before', check.why_no_cuda(True, None, [], paths))
        self.assertIn('since abc', check.why_no_cuda(False, 'abc', ['launcher/main.cc', 'worker_runtime/opsx.md'], paths))
        self.assertEqual(check.why_no_cuda(False, 'abc', ['launcher/main.cc', 'worker_runtime/ops/cuda/rope.cu'], paths), '')
        self.assertEqual(check.why_no_cuda(False, 'abc', ['.bazelrc'], paths), '')
        self.assertEqual(check.why_no_cuda(False, None, [], paths), '', 'nobody knows what changed')


if __name__ == '__main__':
    unittest.main()
