#!/usr/bin/python3
"""tools/ci/bazel_events.py against what unittest and Catch2 really print. tools/check runs it."""

import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
import bazel_events  # noqa: E402  (the line above keeps __pycache__ out of the tree)

# A test file of each kind: run by Python itself, so that the words are those of this Python.
CASES = r'''
import unittest
class CableTest(unittest.TestCase):
    def test_good(self):
        pass
    def test_cut(self):
        raise AssertionError("the survivor is told: not within 7 s\nserving\n===\n" + "x" * 3000 + " the end")
    def test_missing(self):
        open("/no/such/file")
    def test_other_machine(self):
        self.skipTest("no network namespaces: it's not permitted")
'''
CATCH2 = '''Filters: none
SKIPPED: no GPU here

-------------------------------------------------------------------------------
A lease ends
-------------------------------------------------------------------------------
rendezvous/core/lease_test.cc:30
...............................................................................

rendezvous/core/lease_test.cc:41: FAILED:
  CHECK( lease.IsOver(now) )
with expansion:
  false

rendezvous/core/lease_test.cc:42: FAILED:
  REQUIRE( lease.left() == Seconds(0) )
with expansion:
  5s == 0s

===============================================================================
test cases: 4 | 3 passed | 1 failed
assertions: 9 | 7 passed | 2 failed
'''


def run_unittest(methods):
    """(whether it passed, what it printed), of a test that has only these of CASES."""
    head, *cases = CASES.split('    def ')
    text = head + ''.join('    def ' + case for case in cases if case.split('(')[0] in methods) + 'unittest.main(verbosity=2)\n'
    done = subprocess.run([sys.executable, '-c', text], capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout + done.stderr


class WhyFailedTest(unittest.TestCase):

    def test_a_compiler_names_file_and_line(self):
        output = ('INFO: Analyzed 9 targets\nERROR: tools/base/BUILD.bazel:104:13: Compiling tools/base/a.cc failed: (Exit 1): gcc failed\n'
                  "tools/base/a.cc:51:15: error: invalid conversion from 'const char*' to 'int' [-fpermissive]\n   51 | int x;\n" * 2
                  + 'FAILED: Build did NOT complete successfully\n')
        self.assertEqual(bazel_events.why_failed(output), ["tools/base/a.cc:51:15: error: invalid conversion from 'const char*' to 'int' [-fpermissive]"])

    def test_a_finding_is_its_own_reason(self):
        output = ''.join(f'agent/a.cc:{line}: sleeping hides a race [sleep]\n' for line in range(9)) + 'tidy: 9 findings in 12 files\n'
        self.assertEqual(bazel_events.why_failed(output)[-2:], ['agent/a.cc:4: sleeping hides a race [sleep]', 'and 4 more'])

    def test_a_script_that_tests_names_its_case(self):
        _, output = run_unittest(['test_good', 'test_missing'])
        self.assertIn('test_missing', bazel_events.why_failed(output)[0])

    def test_other_commands_say_it_last(self):
        self.assertEqual(bazel_events.why_failed('one\n\ntwo\n'), ['one', 'two'])
        self.assertEqual(bazel_events.why_failed('ERROR: no such target //x\nlast\n'), ['ERROR: no such target //x'])
        self.assertEqual(bazel_events.why_failed(''), ['it printed nothing'])


class BazelEventsTest(unittest.TestCase):

    def test_unittest_counts_its_cases(self):
        ok, output = run_unittest(['test_good', 'test_other_machine'])
        self.assertTrue(ok)
        self.assertEqual(bazel_events.count_cases(ok, output), (1, 0, ["SKIPPED: no network namespaces: it's not permitted"]))
        ok, output = run_unittest(['test_good', 'test_cut', 'test_missing', 'test_other_machine'])
        self.assertFalse(ok)
        self.assertEqual(bazel_events.count_cases(ok, output)[:2], (1, 2))

    def test_what_failed_is_said_with_its_cause_and_its_end(self):
        missing, cut = bazel_events.failures(run_unittest(['test_good', 'test_cut', 'test_missing'])[1])
        self.assertIn('test_cut', cut)
        self.assertIn('AssertionError: the survivor is told: not within 7 s | serving | ', cut)
        self.assertTrue(cut.endswith(' the end'), cut)
        self.assertLess(len(cut), 1300)
        self.assertIn('test_missing', missing)
        self.assertIn("FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'", missing)

    def test_of_a_long_output_the_lines_that_say_why_are_kept(self):
        died = 'x ' * 700 + '\nFatal Python error: Aborted\n' + 'Thread 0x1\n' * 5 + 'Extension modules: ' + 'a, ' * 700
        line = bazel_events.failures(died)[0]
        self.assertIn('Fatal Python error: Aborted', line)
        self.assertIn('Extension modules: ', line)
        self.assertLess(len(line), 1300)

    def test_a_test_that_passed_and_then_hung_has_failed(self):
        _, output = run_unittest(['test_good'])
        self.assertEqual(bazel_events.count_cases(False, output + '-- Test timed out at 2026-11-22 --\n'), (0, 1, []))

    def test_catch2(self):
        self.assertEqual(bazel_events.count_cases(False, CATCH2), (2, 1, ['SKIPPED: no GPU here']))
        first, second = bazel_events.failures(CATCH2)
        self.assertEqual(first, 'rendezvous/core/lease_test.cc:41: FAILED: | CHECK( lease.IsOver(now) ) | with expansion: | false')
        self.assertIn('5s == 0s', second)
        self.assertEqual(bazel_events.count_cases(True, 'All tests passed (12 assertions in 3 test cases)\n'), (3, 0, []))

    def test_a_binary_that_died_shows_its_last_lines(self):
        self.assertEqual(bazel_events.count_cases(False, 'loading\nSegmentation fault\n'), (0, 1, []))
        self.assertEqual(bazel_events.failures('loading\nSegmentation fault\n'), ['loading | Segmentation fault'])
        self.assertEqual(bazel_events.failures(''), ['it printed nothing'])

    def test_many_failures_are_counted_and_not_all_told(self):
        self.assertEqual(bazel_events.failures('a_test.cc:1: FAILED:\n  CHECK( x )\n\n' * 8)[-1], 'and 3 more')


if __name__ == '__main__':
    unittest.main()
