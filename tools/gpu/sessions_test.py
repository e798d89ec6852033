#!/usr/bin/python3
"""The sessions of tools/gpu_check, and the slices of its programs, without a GPU. tools/check runs it."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import gpu_check  # noqa: E402  (the line above keeps __pycache__ out of the tree)
import results  # noqa: E402
import sessions  # noqa: E402
import test_binaries  # noqa: E402


class SessionsTest(unittest.TestCase):
    """`first` as it went, and so what `second` runs again."""

    def rows(self, *told):
        return [{'part': part, 'item': item, 'name': item, 'outcome': outcome} for part, item, outcome in told]

    def first(self, **worse):
        """All of `first` proven, but for the items that `worse` names by how they begin."""
        return self.rows(*((stage.part, name, next((outcome for begin, outcome in worse.items() if name.startswith(begin)), 'passed'))
                           for stage in sessions.FIRST for name in stage.only))

    def names(self, *calls):
        return [(stage.part, stage.only) for stage in sessions.unproven(calls)]

    def test_where_all_is_proven_nothing_is_run_again(self):
        self.assertEqual(self.names(self.first()), [])
        self.assertEqual(sessions.plan('second', [self.first()]), [[], sessions.SECOND])
        self.assertEqual(sessions.plan('second', []), [[], sessions.SECOND])

    def test_what_failed_or_was_cut_comes_again_in_the_order_of_the_plan(self):
        self.assertEqual(self.names(self.first(llama='skipped', fp32='failed')),
                         [('layouts', ('fp32, one rank', 'fp32, dp2')), ('bench', ('llama-3.2-1b, 8 x 2048',))])

    def test_one_bad_row_of_an_item_is_enough(self):
        self.assertEqual(self.names(self.first() + self.rows(('layouts', 'fp32, dp2', 'failed'), ('layouts', 'fp32, dp2', 'measured'))),
                         [('layouts', ('fp32, dp2',))])

    def test_a_call_that_was_killed_left_the_rest_unproven(self):
        self.assertEqual(self.names(self.first()[:4]), [(stage.part, stage.only) for stage in sessions.FIRST[1:]])
        self.assertEqual(self.names([]), [(stage.part, stage.only) for stage in sessions.FIRST])

    def test_the_later_of_two_calls_counts(self):
        again = self.rows(('layouts', 'fp32, dp2', 'passed'), ('ops', 'another', 'failed'))
        self.assertEqual(self.names(self.first(fp32='failed'), again), [('layouts', ('fp32, one rank',)), ('ops', ('another',))])

    def test_rows_of_no_item_ask_for_nothing(self):
        self.assertEqual(self.names(self.first() + self.rows(('bench', '', 'skipped'), ('machine', test_binaries.TOOLCHAIN_TEST, 'failed'))), [])

    def test_every_name_is_one_that_the_parts_know(self):
        made = test_binaries.parse_manifest(json.dumps([
            {'label': name.split(', ')[0], 'kind': 'bench' if name.split(', ')[0].endswith('_bench') else 'test', 'part': 'ops', 'file': 'x'}
            for stage in sessions.FIRST + sessions.SECOND for name in stage.only if name.startswith('//')]))
        for stage in sessions.FIRST + sessions.SECOND:
            self.assertLessEqual(set(stage.only), set(gpu_check.names_of(stage.part, 'cuda', made)))

    def test_nothing_is_run_twice(self):
        items = [(stage.part, name) for stage in sessions.FIRST + sessions.SECOND for name in stage.only]
        self.assertEqual(len(items), len(set(items)))

    def test_it_fits_the_lease(self):
        # 15 minutes, less two starts of 2 minutes, each call 10 s late.
        self.assertLessEqual(sum(sessions.SECONDS.values()) + 2 * 120 + 2 * 10, 15 * 60 + 10)
        self.assertLessEqual(sum(stage.seconds for stage in sessions.FIRST), sessions.SECONDS['first'])

    def test_a_file_that_is_no_result_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(f'{folder}/other.json', 'w', encoding='utf-8') as file:
                file.write('[]')
            with self.assertRaisesRegex(ValueError, 'other.json'):
                sessions.read_rows(f'{folder}/other.json')
            with contextlib.redirect_stdout(io.StringIO()):
                results.Results(folder, {}).passed('ops', 'x', '')
            self.assertEqual(len(sessions.read_rows(folder)), 1)


class SlicesTest(unittest.TestCase):
    """Binaries that are several items."""

    def binaries(self):
        return test_binaries.parse_manifest(json.dumps([
            {'label': test_binaries.SLOWEST_TEST, 'kind': 'test', 'part': 'ops', 'file': 'a'},
            {'label': test_binaries.KERNELS_BENCH, 'kind': 'bench', 'part': '', 'file': 'b'}]))

    def chosen(self, kind, *only):
        check = gpu_check.Check('', 'cuda', '0', {}, dict, frozenset(only), 1, self.binaries(), None)
        return [binary.name for binary in check.chosen(kind)]

    def test_the_sweep_of_shapes_is_apart(self):
        self.assertEqual([(binary.name, binary.slice.arguments) for binary in self.binaries()[:2]],
                         [(test_binaries.SLOWEST_TEST, ['~[sweep]']), (f'{test_binaries.SLOWEST_TEST}, the sweep of shapes', ['[sweep]'])])
        self.assertEqual(len(self.chosen('test')), 2)
        self.assertEqual(self.chosen('test', test_binaries.SLOWEST_TEST), [test_binaries.SLOWEST_TEST])

    def test_a_yardstick_runs_alone_where_it_is_named_and_else_within_its_bench(self):
        copy = f'{test_binaries.KERNELS_BENCH}, copy'
        self.assertEqual(self.chosen('bench'), [test_binaries.KERNELS_BENCH])
        self.assertEqual(self.chosen('bench', copy), [copy])

    def test_the_programs_know_what_cuts_them(self):
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../worker_runtime/ops/cuda')
        for path, text in (('attention/attention_test.cc', test_binaries.SWEEP), ('kernels_bench.cc', '"copy (the yardstick)"'),
                           ('matmul/libraries_bench.cc', '"8192 x 8192 x 8192"'), ('bench_support.h', '"--only"')):
            with open(os.path.join(root, path), encoding='utf-8') as file:
                self.assertEqual(file.read().count(text), 1, path)

    def test_the_sanitizers_take_a_test_once(self):
        self.assertEqual([binary.name for binary in test_binaries.sanitized(self.binaries())], [test_binaries.SLOWEST_TEST])


if __name__ == '__main__':
    unittest.main()
