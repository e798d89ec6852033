#!/usr/bin/python3
"""The decisions of tools/gpu_check, without a GPU: parsing, verdicts, plans, time. tools/check runs it."""

import contextlib
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
import budget  # noqa: E402  (the line above keeps __pycache__ out of the tree)
import curves  # noqa: E402
import gpu_check  # noqa: E402
import layouts  # noqa: E402
import machine  # noqa: E402
import peer  # noqa: E402
import processes  # noqa: E402
import results  # noqa: E402
import sessions  # noqa: E402
import test_binaries  # noqa: E402
import text  # noqa: E402
import training  # noqa: E402

FALLING = [5.5 - 0.02 * step for step in range(60)]
PLACE = machine.Place('/bundle', '/work', 'cuda', {}, {'python': '/usr/bin/python3'})
FAILED_OUTPUT = '''
-------------------------------------------------------------------------------
rms_norm agrees with double
-------------------------------------------------------------------------------
worker_runtime/ops/cuda/kernels_test.cc:41: FAILED:
  CHECK( error <= 2 * plain )
with expansion:
  0.5 <= 0.1

===============================================================================
test cases:  7 |  5 passed | 2 failed
assertions: 90 | 88 passed | 2 failed
'''


def metrics(values, epoch=1, **more):
    return ''.join(json.dumps({'step': number, 'loss': value, 'grad_norm': 1.0, 'epoch': epoch, 'step_seconds': 0.1, **more}) + '\n'
                   for number, value in enumerate(values, 1))


class Workplace(unittest.TestCase):
    """Results in a folder of its own, and nothing printed."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        silence = contextlib.redirect_stdout(io.StringIO())
        silence.__enter__()
        self.addCleanup(silence.__exit__, None, None, None)
        self.results = results.Results(self.folder, {'gpu': 'none'})

    def script(self, name, body):
        path = f'{self.folder}/{name}'
        with open(path, 'w', encoding='utf-8') as file:
            file.write('#!/bin/sh\n' + body)
        os.chmod(path, 0o755)
        return test_binaries.Binary(f'//ops:{name}', 'test', 'ops', name)

    def outcomes(self):
        return [(row.outcome, row.passed, row.failed, row.skipped) for row in self.results.rows]


class CurvesTest(unittest.TestCase):
    def test_metrics_are_read_without_a_torn_line_and_the_later_of_a_repeated_step(self):
        curve = curves.parse_metrics(metrics([5.0, 4.0, None]) + json.dumps({'step': 2, 'validation_loss': 1.0}) + '\n' + metrics([4.5], 2) + '{"step": 4,')
        self.assertEqual((curve[1].loss, curve[1].epoch, sorted(curve)), (4.5, 2, [1, 2, 3]))
        self.assertTrue(math.isnan(curve[3].loss))

    def test_fp32_passes_up_to_its_tolerances_and_not_beyond(self):
        for early, late, good in ((9e-7, 9e-5, True), (2e-6, 0, False), (0, 2e-4, False)):
            ours = [loss * (1 + (early if step < curves.FP32_EARLY_STEPS else late)) for step, loss in enumerate(FALLING)]
            self.assertEqual(curves.judge_fp32(ours, FALLING).good, good, (early, late))

    def test_no_number_never_passes(self):
        broken = FALLING[:40] + [math.nan] * 20
        self.assertFalse(curves.judge_fp32(broken, FALLING).good)
        self.assertFalse(curves.judge_bf16(broken, FALLING, [1.0]).good)
        self.assertFalse(curves.judge_bf16(FALLING, FALLING, []).good)

    def test_a_short_run_is_compared_as_far_as_it_came_but_not_too_short(self):
        self.assertIn('40 steps', curves.judge_fp32(FALLING[:40], FALLING).text)
        self.assertFalse(curves.judge_fp32(FALLING[:10], FALLING).good)

    def test_an_oracle_that_learns_nothing_proves_nothing(self):
        self.assertFalse(curves.judge_fp32([5.5] * 60, [5.5] * 60).good)

    def test_bf16_may_be_twice_as_far_as_the_farthest_of_pytorch(self):
        ours = [loss * 1.0019 for loss in FALLING]
        self.assertTrue(curves.judge_bf16(ours, FALLING, [5e-4, 1e-3]).good)
        self.assertFalse(curves.judge_bf16(ours, FALLING, [5e-4, 9e-4]).good)

    def test_identical_means_every_digit_of_loss_and_norm(self):
        first = curves.parse_metrics(metrics([5.0, 4.000000000000001]))
        self.assertTrue(curves.judge_identical(first, first, 2).good)
        self.assertIn('step 2 differs', curves.judge_identical(first, curves.parse_metrics(metrics([5.0, 4.0])), 2).text)
        self.assertIn('step 3 of 3 is missing', curves.judge_identical(first, first, 3).text)


class BudgetTest(unittest.TestCase):
    def test_unused_time_goes_to_the_later_ones(self):
        now = [0.0]
        given = []
        for (_, share), takes in zip(budget.Budget(90, lambda: now[0]).shares('abc'), (10, 60, 5)):
            given.append(share)
            now[0] += takes
        self.assertEqual(given, [30, 40, 20])

    def test_weights_divide_what_is_left(self):
        given = [share for _, share in budget.Budget(100, lambda: 0.0).shares([1, 4], float)]
        self.assertEqual(given, [20, 100])

    def test_each_has_its_floor_and_a_share_of_what_the_floors_leave(self):
        given = [share for _, share in budget.Budget(100, lambda: 0.0).shares('ab', floor=lambda item: {'a': 10, 'b': 50}[item])]
        self.assertEqual(given, [30, 100])

    def test_where_the_floors_do_not_fit_the_first_have_theirs(self):
        now, given = [0.0], []
        for _, share in budget.Budget(100, lambda: now[0]).shares('abc', floor=lambda item: 45):
            given.append(share)
            now[0] += share
        self.assertEqual(given, [45, 45, 10])


class TestBinariesTest(Workplace):
    def test_cases_are_counted_and_a_hung_test_fails(self):
        binaries = [self.script('good', 'echo "SKIPPED: one GPU only"; echo "All tests passed (9 assertions in 4 test cases)"'),
                    self.script('bad', f'cat <<"END"\n{FAILED_OUTPUT}\nEND\nexit 2'), self.script('hangs', 'sleep 60')]
        with mock.patch.object(test_binaries, 'TEST_LIMIT_SECONDS', 3):
            test_binaries.run_tests('ops', binaries, self.folder, dict(os.environ), budget.Budget(60), self.results)
        self.assertEqual(self.outcomes(), [('passed', 3, 0, 1), ('failed', 5, 2, 0), ('failed', 0, 1, 0)])
        self.assertEqual(list(processes.marked()), [])
        self.assertTrue(self.results.any_failed())
        self.assertEqual(self.results.totals(), '8 passed, 3 failed, 1 skipped')

    def test_the_slowest_comes_last_and_has_more_time(self):
        binaries = [self.script('attention_test', 'sleep 3; echo "All tests passed (9 assertions in 4 test cases)"'), self.script('quick_test', 'sleep 60')]
        slowest = '//ops:attention_test'
        with mock.patch.object(test_binaries, 'SLOWEST_TEST', slowest), mock.patch.object(test_binaries, 'LONG_LIMIT_SECONDS', {slowest: 180}), \
                mock.patch.object(test_binaries, 'TEST_LIMIT_SECONDS', 3):
            test_binaries.run_tests('ops', binaries, self.folder, dict(os.environ), budget.Budget(60), self.results)
        self.assertEqual([(row.name, row.outcome) for row in self.results.rows], [('//ops:quick_test', 'failed'), ('//ops:attention_test', 'passed')])

    def test_a_test_tells_the_time_of_each_case(self):
        test_binaries.run_tests('ops', [self.script('told', 'test "$*" = "--durations yes"')], self.folder, dict(os.environ), budget.Budget(60), self.results)
        self.assertEqual(self.outcomes(), [('passed', 1, 0, 0)])

    def test_each_case_of_a_test_over_nccl_is_a_run_of_its_own(self):
        # As Catch2 does: a comma separates names, so that in a name a backslash stands before it.
        binary = self.script('nccl_test', 'case "$1" in --list*) printf "adds, in order\nhangs\nlast\n"; exit 3;; hangs) sleep 60;; esac\n'
                             'test "$1" = "adds\\, in order" -o "$1" = last || exit 9; echo "All tests passed (9 assertions in 1 test case)"')
        with mock.patch.object(test_binaries, 'NCCL_TEST', binary.label), mock.patch.object(test_binaries, 'LONG_LIMIT_SECONDS', {binary.label: 60}), \
                mock.patch.object(test_binaries, 'TEST_LIMIT_SECONDS', 3):
            test_binaries.run_tests('layouts', [binary], self.folder, dict(os.environ), budget.Budget(90), self.results)
        self.assertEqual([(row.name.partition(', ')[2], row.outcome) for row in self.results.rows],
                         [('adds, in order', 'passed'), ('hangs', 'failed'), ('last', 'passed')])

    def test_a_test_over_nccl_that_does_not_tell_its_cases_fails(self):
        binary = self.script('nccl_test', 'echo "error while loading shared libraries: libnccl.so.2"; exit 127')
        with mock.patch.object(test_binaries, 'NCCL_TEST', binary.label), mock.patch.object(test_binaries, 'LONG_LIMIT_SECONDS', {binary.label: 60}):
            test_binaries.run_tests('layouts', [binary], self.folder, dict(os.environ), budget.Budget(90), self.results)
        self.assertEqual(self.outcomes(), [('failed', 0, 1, 0)])
        self.assertIn('libnccl.so.2', self.results.rows[0].text)

    def test_without_time_nothing_is_started_and_it_is_said(self):
        test_binaries.run_tests('ops', [self.script('never', 'touch started')], self.folder, {}, budget.Budget(0), self.results)
        self.assertEqual(self.outcomes(), [('skipped', 0, 0, 1)])
        self.assertIn('--only', self.results.rows[0].text)

    def test_sanitizer_verdicts(self):
        def judged(code, output, tool='memcheck'):
            return test_binaries.judge_sanitizer(tool, code, output).outcome
        self.assertEqual(judged(0, '========= ERROR SUMMARY: 0 errors'), 'passed')
        self.assertEqual(judged(0, '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)', 'racecheck'), 'passed')
        self.assertEqual(judged(86, '========= Invalid __global__ write of size 4 bytes\n========= ERROR SUMMARY: 1 error'), 'failed')
        self.assertEqual(judged(86, '========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)', 'racecheck'), 'failed')
        self.assertEqual(judged(3, FAILED_OUTPUT + '========= ERROR SUMMARY: 0 errors'), 'failed')
        self.assertEqual(judged(1, '========= Error: Device not supported'), 'skipped')
        self.assertEqual(judged(139, 'Segmentation fault'), 'failed')
        self.assertEqual(judged(0, 'SKIPPED: no CUDA device\nAll tests passed (1 assertion in 1 test case)\n========= ERROR SUMMARY: 0 errors'), 'skipped')
        self.assertEqual(judged(0, 'SKIPPED: one GPU\nAll tests passed (2 assertions in 2 test cases)\n========= ERROR SUMMARY: 0 errors'), 'passed')
        self.assertEqual(judged(None, ''), 'skipped')
        self.assertEqual(judged(1, '========= Error: Device not supported\n========= ERROR SUMMARY: 0 errors'), 'skipped')

    def test_what_is_sanitized_launches_kernels_of_ours(self):
        made = [test_binaries.Binary(label, 'test', 'ops', label) for label in ('//device/cuda:device_test', *reversed(test_binaries.SANITIZED))]
        self.assertEqual([binary.label for binary in test_binaries.sanitized(made)], list(test_binaries.SANITIZED))

    def test_figures_come_a_line_each_or_in_a_list(self):
        lines = '{"name": "rms_norm", "gb_per_s": 3912.51}\n{"gb_per_s": 1}\n{torn\n'
        self.assertEqual([test_binaries.figure_text(record) for record in test_binaries.parse_figures(lines)], ['gb_per_s 3913'])
        whole = json.dumps({'device': 'NVIDIA H200', 'kernels': [{'name': 'copy', 'bytes': 8}, {'name': 'rope', 'bytes': 4}]})
        self.assertEqual([record['name'] for record in test_binaries.parse_figures(whole)], ['copy', 'rope'])
        self.assertEqual(test_binaries.parse_figures(''), [])

    def test_a_figure_with_a_goal_says_whether_it_is_met(self):
        self.assertEqual(test_binaries.figure_text({'name': 'rope', 'fraction_of_copy': 0.8}), 'fraction_of_copy 0.8 (goal 0.85: MISSED)')
        self.assertEqual(test_binaries.figure_text({'name': 'product', 'ratio': 0.99}), 'ratio 0.99 (goal 0.95)')

    def test_a_bench_gives_a_row_for_each_figure_and_none_is_a_failure(self):
        benches = [self.script('good_bench', 'echo \'{"name": "copy", "gb_per_s": 4300.0}\' > "$2"'), self.script('mute_bench', 'echo nothing')]
        test_binaries.run_benches(benches, self.folder, dict(os.environ), budget.Budget(30), self.results)
        self.assertEqual(self.results.rows[0].figures['gb_per_s'], 4300.0)
        self.assertEqual(self.outcomes(), [('measured', 0, 0, 0), ('failed', 0, 1, 0)])


    def test_a_bench_that_was_stopped_keeps_its_figures_and_the_longest_comes_last(self):
        benches = [self.script('long_bench', 'echo \'{"name": "product", "tflops": 700.0}\' > "$2"; sleep 60'),
                   self.script('copy_bench', 'echo \'{"name": "copy", "gb_per_s": 4300.0}\' > "$2"')]
        with mock.patch.object(test_binaries, 'LONGEST_BENCH', benches[0].label), mock.patch.object(test_binaries, 'LEAST_SECONDS', 1):
            test_binaries.run_benches(benches, self.folder, dict(os.environ), budget.Budget(3), self.results)
        self.assertEqual([(row.name, row.outcome) for row in self.results.rows],
                         [('copy', 'measured'), ('product', 'measured'), ('//ops:long_bench', 'skipped')])


class LayoutsTest(unittest.TestCase):
    def test_the_command_says_layout_device_and_precision(self):
        command = layouts.train_command(layouts.Run('bf16, all', layouts.LAYOUTS[4], 'cuda', 'bf16'), PLACE)
        for flag, value in (('--nproc-per-node', '8'), ('--device', 'cuda'), ('--precision', 'bf16'), ('--tp-size', '2'), ('--pp-size', '2'),
                            ('--metrics-file', '/work/bf16--all.jsonl')):
            self.assertEqual(command[command.index(flag) + 1], value)
        self.assertNotIn('--deterministic', command)

    def test_every_layout_can_split_the_shape_and_the_batch(self):
        for layout in layouts.LAYOUTS:
            for size in ('heads', 'kv_heads', 'ffn_size', 'vocabulary_size'):
                self.assertEqual(layouts.SHAPE[size] % layout.tp, 0)
            self.assertEqual(layouts.SHAPE['layers'] % layout.pp, 0)
            self.assertEqual(layouts.GLOBAL_BATCH_SIZE % (layouts.MICRO_BATCH_SIZE * layout.dp), 0)

    def test_the_distance_of_pytorch_comes_from_pairs_and_a_lone_one_is_left_out(self):
        fp32, bf16 = peer.Answer([4.0, 2.0], [], {}), peer.Answer([4.04, 2.02], [], {})
        self.assertEqual([round(distance, 6) for distance in layouts.torch_distances([fp32, bf16, fp32])], [0.01])

    def test_slow_is_not_hung(self):
        curve = curves.parse_metrics(metrics(FALLING))
        self.assertEqual(layouts.why_stalled(curve, 5.0, 60, 45), '')
        self.assertIn('hung after step 60', layouts.why_stalled(curve, 50.0, 60, 45))
        self.assertIn('no step was finished in 60 s', layouts.why_stalled({}, math.inf, 60, 45))

    def test_what_had_less_than_its_floor_did_not_hang(self):
        self.assertEqual(layouts.why_stalled({}, math.inf, 30, 45), '')

    def test_the_names_are_those_of_the_items(self):
        for device in ('cuda', 'cpu'):
            place = machine.Place('/bundle', '/work', device, {}, {})
            self.assertEqual(sorted(layouts.names(device)), sorted(item.name for item in layouts.all_items(layouts.Curves(place, None), place, None)))

    def test_a_measure_runs_where_a_chosen_item_needs_it(self):
        def planned(*names):
            return [item.name for item in layouts.plan(PLACE, set(names), None)]
        self.assertEqual(planned('fp32, dp2'), [layouts.ORACLE, 'fp32, dp2'])
        self.assertEqual(planned('bf16, dp2'), [layouts.ORACLE, 'PyTorch, bf16 against fp32', 'bf16, dp2'])
        self.assertEqual(planned(layouts.DETERMINISTIC), [layouts.DETERMINISTIC])

    def test_the_text_is_the_same_everywhere(self):
        self.assertEqual(text.made_up_text(60), 'dqb jm nxdf avmorvj ixcz ik psv paky fbtks ecv bdbt iht fila')
        self.assertEqual(len(text.made_up_text(1000)), 1000)


    def test_a_run_tells_how_its_ranks_met(self):
        output = '[0] epoch 1\n[0] info: NCCL 2.28.9: 2 x NET/Socket over lo\n[0] step 1/40\n'
        self.assertEqual(layouts.transports(output), '; NCCL 2.28.9: 2 x NET/Socket over lo')
        self.assertEqual(layouts.transports('[0] NCCL works without registered memory: why\n'), '')


class TrainTest(Workplace):
    """Of a launcher that makes steps until it is stopped."""

    STEPS = ('while [ "$1" != --metrics-file ]; do shift; done\ni=0\n'
             'while :; do i=$((i+1)); echo "{\\"step\\": $i, \\"loss\\": 1.0, \\"grad_norm\\": 1.0}" >> "$2"; sleep 0.05; done\n')

    def trained(self, limit_s, first='', **changes):
        os.makedirs(f'{self.folder}/bin')
        self.script('bin/convene', first + self.STEPS)
        place = machine.Place(self.folder, self.folder, 'cuda', dict(os.environ), {})
        return layouts.train(layouts.Run('bf16, dp2', layouts.LAYOUTS[1], 'cuda', 'bf16', **changes), place, limit_s, self.results)

    def test_a_run_is_stopped_when_it_has_done_enough(self):
        trained = self.trained(60, enough=5)
        self.assertGreaterEqual(len(trained.curve), 5)
        self.assertEqual((trained.failure, trained.cut, trained.seconds < 20), ('', True, True))

    def test_else_at_its_limit(self):
        trained = self.trained(2, steps=100)
        self.assertEqual((trained.failure, trained.cut, 2 <= trained.seconds < 20), ('', True, True))

    def test_a_run_that_takes_long_to_stop_did_not_hang(self):
        with mock.patch.object(layouts, 'STALLED_AFTER_SECONDS', 1), mock.patch.object(processes, 'GRACE_SECONDS', 2):
            trained = self.trained(2, 'trap "sleep 60" TERM\n', steps=100)
        self.assertEqual((trained.failure, trained.cut, len(trained.curve) > 0), ('', True, True))

    def test_ranks_that_share_a_gpu_stop_early_and_one_alone_does_not(self):
        runs = {item.name: item.work.args[0] for item in layouts.plan(PLACE, set(), self.results) if item.name.startswith(('fp32', 'bf16'))}
        self.assertEqual({run.enough < run.steps for name, run in runs.items() if 'one rank' in name}, {False})
        self.assertEqual({run.enough for name, run in runs.items() if 'one rank' not in name}, {layouts.STEPS_OVER_NCCL})
        self.assertGreaterEqual(layouts.STEPS_OVER_NCCL, curves.LEAST_STEPS_OVER_NCCL)


class KeptTest(Workplace):
    """Two starts, each with a curve and an output of the test's own."""

    TIMED = 'algorithms of products: 0 known, 8 timed in 1.25 s; kept in here\n'
    KNOWN = 'algorithms of products: 8 known, 0 timed in 0.00 s; kept in here\n'

    def checked(self, outputs, values=tuple(FALLING)):
        runs = []

        def train(run, *_):
            runs.append(run)
            return layouts.Trained(curves.parse_metrics(metrics(FALLING if len(runs) == 1 else values)), '', 1.0, outputs[len(runs) - 1])
        with mock.patch.object(layouts, 'train', train):
            layouts.check_kept(PLACE, self.results, 90)
        self.assertEqual([layouts.train_command(run, PLACE)[-2] for run in runs], ['--tuning-dir'] * 2)
        self.assertEqual(len({layouts.train_command(run, PLACE)[-1] for run in runs}), 1)
        self.assertEqual(len({layouts.metrics_path(run, PLACE) for run in runs}), 2)
        return self.results.rows[-1]

    def test_the_second_start_times_nothing_and_gives_the_same_digits(self):
        row = self.checked([self.TIMED, self.KNOWN])
        self.assertEqual(row.outcome, 'passed', row.text)
        self.assertIn('8 products timed in 1.25 s', row.text)

    def test_a_second_start_that_times_fails_and_so_does_another_digit(self):
        self.assertEqual(self.checked([self.TIMED, self.TIMED]).outcome, 'failed')
        self.assertEqual(self.checked([self.KNOWN, self.KNOWN]).outcome, 'failed')
        self.assertEqual(self.checked([self.TIMED, '']).outcome, 'failed')
        self.assertEqual(self.checked([self.TIMED, self.KNOWN], [*FALLING[:7], FALLING[7] + 1e-12, *FALLING[8:]]).outcome, 'failed')


class GraphsTest(Workplace):
    """Each run ends at once, with a curve and an output of the test's own."""

    ON = '[rank 0] CUDA graphs  on, captured in the second step\n'

    def checked(self, graphed_output, graphed_values=tuple(FALLING), cut=False):
        runs = []

        def train(run, *_):
            runs.append(run)
            values = graphed_values if run.cuda_graphs else FALLING
            return layouts.Trained(curves.parse_metrics(metrics(values)), '', 1.0, graphed_output if run.cuda_graphs else '', cut)
        with mock.patch.object(layouts, 'train', train):
            for layout in layouts.graphed_layouts('cuda'):
                layouts.check_graphs(layout, PLACE, self.results, 90)
        return runs

    def test_each_layout_runs_with_and_without_and_must_give_the_same_digits(self):
        runs = self.checked(self.ON)
        self.assertEqual([(run.layout.name, run.cuda_graphs) for run in runs],
                         [(name, graphs) for name in ('one rank', 'dp2', 'pp2') for graphs in (False, True)])
        self.assertEqual(len({layouts.metrics_path(run, PLACE) for run in runs}), len(runs))
        self.assertTrue(all(run.deterministic for run in runs))
        self.assertEqual({row.outcome for row in self.results.rows}, {'passed'})
        self.assertNotIn('--cuda-graphs', layouts.train_command(runs[0], PLACE))
        self.assertIn('--cuda-graphs', layouts.train_command(runs[1], PLACE))

    def test_one_digit_fails(self):
        self.checked(self.ON, [*FALLING[:7], FALLING[7] + 1e-12, *FALLING[8:]])
        self.assertEqual({row.outcome for row in self.results.rows}, {'failed'})
        self.assertIn('step 8 differs', self.results.rows[0].text)

    def test_a_run_that_used_no_graphs_proves_nothing(self):
        self.checked('CUDA graphs  off: with tp_size 2\n')
        self.checked(self.ON + 'warning: CUDA graphs are off from here on, a pass could not be captured: cuDNN\n')
        self.assertEqual({row.outcome for row in self.results.rows}, {'failed'})
        self.assertIn('cuDNN', self.results.rows[-1].text)

    def test_runs_that_were_cut_short_are_compared_as_far_as_both_came(self):
        self.checked(self.ON, FALLING[:12], cut=True)
        self.assertEqual({row.outcome for row in self.results.rows}, {'passed'})
        self.assertIn('12 steps have the same digits', self.results.rows[0].text)

    def test_too_few_steps_are_no_verdict(self):
        self.checked(self.ON, FALLING[:9], cut=True)
        self.checked('', [], cut=True)
        self.assertEqual({row.outcome for row in self.results.rows}, {'skipped'})


class KillTest(Workplace):
    """Two runs without a kill that come as far as the test says; the run with one only tells what it is compared with."""

    def compared_with(self, *steps, failure=''):
        told = []
        runs = iter(steps)

        def train(run, *_):
            count = next(runs)
            return layouts.Trained(curves.parse_metrics(metrics(FALLING[:count])), failure, 1.0, '', count < run.steps)
        with mock.patch.object(layouts, 'train', train), \
                mock.patch.object(layouts, 'check_kill', lambda run, place, limit_s, reference, results: told.append(max(reference))):
            layouts.check_determinism(PLACE, self.results, 90)
        return told

    def test_the_run_with_a_kill_is_compared_with_the_longer_run_without(self):
        self.assertEqual(self.compared_with(50, 50), [50])
        self.assertEqual(self.compared_with(38, 45), [45])
        self.assertEqual({row.outcome for row in self.results.rows}, {'passed'})

    def test_with_nothing_to_compare_it_is_left_out_and_said(self):
        self.assertEqual(self.compared_with(34, 20), [])
        self.assertEqual(self.compared_with(50, 50, failure='it hung'), [])
        self.assertEqual([row.outcome for row in self.results.rows], ['passed', 'skipped', 'failed', 'skipped'])
        self.assertIn('came to step 34 at most', self.results.rows[1].text)


class TurnsTest(Workplace):
    """Rivals that take as long as they are told, on a clock of the test's own."""

    CASE = training.Case('llama-125m', 1024, 32)

    def measured(self, limit_s, ours_s, theirs_s, peer_works=True, we_work=True, turns=2):
        now, started = [0.0], []
        clocked = budget.Budget(limit_s, lambda: now[0])

        def rival(name, seconds, works):
            def run(*arguments):
                started.append('graphed' if '--cuda-graphs' in arguments else 'fp8' if 'fp8' in arguments else name)
                now[0] += seconds
                return training.Sample([0.1], 1000.0, {}) if works else None
            return run
        with mock.patch.object(training, 'run_ours', rival('ours', ours_s, we_work)), \
                mock.patch.object(training, 'run_profiled', lambda *_: started.append('profiled')), \
                mock.patch.object(training, 'run_torch', rival('torch', theirs_s, peer_works)), \
                mock.patch.object(training.budgets, 'Budget', lambda _: clocked):
            training.measure(self.CASE, PLACE, '0', limit_s, turns, self.results)
        return started

    def test_the_rivals_take_turns(self):
        self.assertEqual(self.measured(100, 10, 20), ['torch', 'ours', 'profiled', 'graphed', 'fp8', 'torch', 'ours'])
        self.assertEqual([row.name.split(',')[0] for row in self.results.rows],
                         ['convene-train --cuda-graphs', 'convene-train --precision fp8', 'PyTorch', 'convene-train', 'ours beside PyTorch'])
        self.assertIn('1.000 x the speed without', self.results.rows[0].text)

    def test_a_second_turn_that_does_not_fit_is_left_out_and_said(self):
        self.assertEqual(self.measured(70, 10, 20), ['torch', 'ours', 'profiled', 'graphed', 'fp8'])
        self.assertIn('1 of 2 turns', self.results.rows[-1].text)
        self.assertEqual(self.measured(45, 10, 20), ['torch', 'ours'])
        self.assertEqual([row.outcome for row in self.results.rows if '--cuda-graphs' in row.name], ['measured', 'skipped'])

    def test_one_turn_where_one_is_wanted(self):
        self.assertEqual(self.measured(100, 10, 20, turns=1), ['torch', 'ours', 'profiled', 'graphed', 'fp8'])
        self.assertNotIn('turns', self.results.rows[-1].text)

    def test_a_peer_that_cannot_run_is_tried_once(self):
        self.assertEqual(self.measured(100, 10, 20, peer_works=False), ['torch', 'ours', 'profiled', 'graphed', 'fp8', 'ours'])

    def test_pytorch_is_shown_where_ours_fails(self):
        self.assertEqual(self.measured(100, 10, 20, we_work=False), ['torch', 'ours'])
        self.assertEqual([row.name.split(',')[0] for row in self.results.rows], ['PyTorch'])


class RefusedTest(Workplace):
    CASE = training.Case('llama-125m', 1024, 32)

    def ours(self, *flags):
        os.makedirs(f'{self.folder}/bin', exist_ok=True)
        self.script('bin/convene-train', 'echo "precision fp8 needs a GPU of compute capability 8.9 or later"; exit 64')
        place = machine.Place(self.folder, self.folder, 'cuda', dict(os.environ), {})
        self.assertIsNone(training.run_ours(self.CASE, place, '0', 30, self.results, *flags))
        return self.results.rows[-1]

    def test_a_precision_that_the_card_has_not_is_no_failure(self):
        refused = self.ours('--precision', 'fp8')
        self.assertEqual(refused.outcome, 'skipped')
        self.assertIn('8.9 or later', refused.text)
        self.assertEqual(self.ours('--cuda-graphs').outcome, 'failed')

    def test_a_precision_is_given_once(self):
        command = training.train_command(self.CASE, 'cuda', machine.Place(self.folder, self.folder, 'cuda', {}, {}), 'metrics', '--precision', 'fp8')
        self.assertEqual(command.count('--precision'), 1)


class ProfileTest(Workplace):
    CASE = training.Case('llama-125m', 1024, 32)

    def profiled(self, body, limit_s):
        os.makedirs(f'{self.folder}/bin', exist_ok=True)
        self.script('bin/convene-train', body)
        training.run_profiled(self.CASE, machine.Place(self.folder, self.folder, 'cuda', dict(os.environ), {}), limit_s, self.results)
        return self.results.rows[-1]

    def test_a_profile_that_did_not_come_is_said(self):
        self.assertEqual(self.profiled('echo "profile of 20 steps"; echo "products  12.5  80.0%"', 30).figures, {'shares': {'products': 80.0}})
        self.assertEqual(self.profiled('sleep 60', 1).outcome, 'skipped')
        failed = self.profiled('echo "out of memory"; exit 1', 30)
        self.assertEqual((failed.outcome, 'out of memory' in failed.text), ('failed', True))


class TrainingTest(unittest.TestCase):
    def test_parameters_are_those_of_the_named_models(self):
        counts = {name: training.parameters(shape) for name, shape in training.SHAPES.items()}
        self.assertEqual(counts, {'llama-15m': 14_358_912, 'llama-125m': 123_587_328, 'llama-350m': 359_842_816, 'llama-3.2-1b': 1_235_814_400,
                                  'llama-3.2-3b': 3_212_749_824})

    def test_flops_are_those_of_formulas_md(self):
        llama_8b = training.Shape(32, 4096, 14336, 32, 8, 128, 128256, 0)
        self.assertAlmostEqual(training.flops_per_token(llama_8b, 8192, causal=False) / 1e9, 57.91, places=2)
        self.assertAlmostEqual(training.flops_per_token(llama_8b, 8192, causal=True) / 1e9, 51.47, places=2)

    def test_warm_up_does_not_count(self):
        self.assertEqual(training.steady([9, 9, 9, 1, 1, 1]), [1, 1, 1])
        self.assertEqual(training.steady([9.0] * 5 + [1.0] * 20), [1.0] * 20)
        self.assertEqual(training.steady([]), [])

    def test_the_profile_of_the_trainer_is_read_by_its_groups(self):
        output = ('step 25 ...\nprofile of 22 steps        ms a step   share\nproducts                       25.00   50.0%\n'
                  '  MatMul                       25.00   50.0%\nmemory-bound                   12.50   25.0%\n'
                  'gaps                            2.00    4.0%\nstep                           50.00\n')
        self.assertEqual(training.profile_shares(output), {'products': 50.0, 'memory-bound': 25.0, 'gaps': 4.0})
        self.assertEqual(training.profile_shares('no table'), {})

    def test_ratios_stand_beside_their_goals(self):
        case = training.Case('llama-3.2-1b', 2048, 8)
        ours = training.summary(case, [training.Sample([0.1, 0.1], 50_000.0, {})])
        theirs = training.summary(case, [training.Sample([0.11], 60_000.0, {})])
        self.assertAlmostEqual(ours['tokens_per_second'], 163_840)
        self.assertEqual(training.compare(case, ours, theirs), "1.10 x PyTorch's speed (goal 1.15: MISSED), 0.83 x its memory (goal 0.9), "
                         f"{ours['share_of_peak_full']:.1%} of the peak (goal 55%)")
        self.assertEqual(training.compare(training.Case('llama-125m', 1024, 32), ours, None), '')

    def test_the_peers_answers_stand_between_its_warnings(self):
        output = 'warning: {x\n{"losses": [2.0], "step_seconds": [0.1], "attention": "cudnn"}\n{"x": 1}\n{torn\n{"losses": [1.0], "step_seconds": []}\n'
        self.assertEqual(peer.parse(output), [peer.Answer([2.0], [0.1], {'attention': 'cudnn'}), peer.Answer([1.0], [], {})])
        self.assertEqual(peer.parse('Traceback\n'), [])


class CommandTest(Workplace):
    def test_without_a_gpu_it_says_so_and_runs_nothing(self):
        if not machine.why_no_gpu():
            self.skipTest('this machine has a GPU')
        done = subprocess.run([sys.executable, gpu_check.__file__, 'ops', '--output', f'{self.folder}/out'], check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, 69, done.stderr)
        self.assertIn('nothing was run', done.stderr)
        self.assertFalse(os.path.exists(f'{self.folder}/out'))

    def test_a_folder_that_cannot_be_is_told_before_any_work(self):
        with open(f'{self.folder}/file', 'w', encoding='utf-8'):
            pass
        done = subprocess.run([sys.executable, gpu_check.__file__, 'layouts', '--device', 'cpu', '--output', f'{self.folder}/file/out'], check=False,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertIn('no results can be written to the folder', done.stderr)
        self.assertEqual(done.stdout, '')

    def test_an_unknown_part_is_bad_usage(self):
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as ended:
            gpu_check.parse_arguments(['opps'])
        self.assertEqual(ended.exception.code, 64)

    def test_a_session_is_a_call_of_its_own(self):
        for bad in (['first', 'ops'], ['second', '--only', 'x'], ['first', '--after', 'x'], ['ops', '--after', 'x'], ['first', '--device', 'cpu']):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as ended:
                gpu_check.parse_arguments(bad)
            self.assertEqual(ended.exception.code, 64, bad)
        self.assertEqual(gpu_check.parse_arguments(['second', '--after', 'a', '--after', 'b']).seconds, sessions.SECONDS['second'])

    def test_only_takes_a_name_or_the_beginning_of_one(self):
        names = layouts.names('cuda')
        self.assertEqual(gpu_check.chosen_names(['fp32, dp2', 'determ'], names), {'fp32, dp2', layouts.DETERMINISTIC})
        for text, message in (('CUDA graphs', 'begins several names:\n  CUDA graphs, deterministic bf16, one rank\n'), ('graphs', 'is no name')):
            with self.assertRaisesRegex(ValueError, message):
                gpu_check.chosen_names([text], names)
        self.assertEqual(gpu_check.chosen_names([], names), set())

    def test_all_is_every_part(self):
        self.assertEqual(gpu_check.parse_arguments(['all']).parts, list(gpu_check.PARTS))
        self.assertEqual(gpu_check.parse_arguments(['bench', '--only', '3b']).parts, ['bench'])

    def test_the_json_file_has_every_figure_after_each_result(self):
        self.results.measured('bench', 'copy', '4.3 TB/s', tb_per_s=4.3)
        with open(f'{self.folder}/gpu_check.json', encoding='utf-8') as file:
            written = json.load(file)
        self.assertEqual((written['machine'], written['results'][0]['figures']), ({'gpu': 'none'}, {'tb_per_s': 4.3}))
        self.assertEqual(self.results.table(), 'bench  copy  measured  4.3 TB/s')


if __name__ == '__main__':
    unittest.main()
