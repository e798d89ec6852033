"""The runner of cases that stand beside each other: what it says of each, and that they run at the same time."""

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from tests.support import side_by_side

MEETING = "SIDE_BY_SIDE_MEETING"  # names a folder where two cases meet


class _Cases(unittest.TestCase):
    """Not found by the loader: main() below and the tests name them."""

    def passes(self):
        pass

    def fails(self):
        self.assertEqual(1, 2, "one is not two")

    def skips(self):
        self.skipTest("no moon tonight")

    def is_killed(self):
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def _meets(self, own, other):
        folder = os.environ[MEETING]
        with open(os.path.join(folder, own), "w", encoding="ascii"):
            pass
        deadline = time.monotonic() + 20
        while not os.path.exists(os.path.join(folder, other)):
            self.assertLess(time.monotonic(), deadline, f"{other} did not come")
            time.sleep(0.005)

    def meets_one(self):
        self._meets("two", "one")

    def meets_two(self):
        self._meets("one", "two")

    def waits(self):
        signal.signal(signal.SIGTERM, self._told_to_end)
        with open(os.path.join(os.environ[MEETING], "waits"), "w", encoding="ascii"):
            pass
        time.sleep(60)

    def _told_to_end(self, *_):
        raise AssertionError("told to end")


def _run(*names, at_once=2):
    out = io.StringIO()
    return side_by_side.run([_Cases(name) for name in names], at_once, out), out.getvalue()


class SideBySideTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.environ[MEETING] = folder.name

    def test_closing_lines_are_those_of_unittest(self):
        passed, text = _run("passes", "skips")
        self.assertTrue(passed, text)
        self.assertRegex(text, r"skips .*\.\.\. skipped 'no moon tonight'\n")
        self.assertRegex(text, r"\n-{70}\nRan 2 tests in [0-9.]+s\n\nOK \(skipped=1\)\n$")

    def test_a_failure_is_told_whole(self):
        passed, text = _run("passes", "fails", "passes")
        self.assertFalse(passed)
        self.assertRegex(text, r"\n={70}\nFAIL: fails .*\n-{70}\n(.*\n)*.*1 != 2 : one is not two\n")
        self.assertRegex(text, r"Ran 3 tests in [0-9.]+s\n\nFAILED \(failures=1\)\n$")

    def test_a_case_that_is_killed_has_failed_and_its_output_is_shown(self):
        passed, text = _run("is_killed")
        self.assertFalse(passed)
        self.assertRegex(text, r"last words\n(.*\n)*.*is_killed: [0-9.]+ s, ended by signal 9\]")

    def test_no_case_is_no_success(self):
        self.assertFalse(_run()[0])

    def test_cases_run_at_the_same_time(self):
        passed, text = _run("meets_one", "meets_two")
        self.assertTrue(passed, text)

    def test_at_the_limit_of_the_file_each_case_is_told_and_shown(self):
        process = subprocess.Popen(
            [sys.executable, __file__, "_Cases.waits"], stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 20
        while not os.path.exists(os.path.join(os.environ[MEETING], "waits")):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.005)
        process.terminate()
        text = process.communicate(timeout=20)[1]
        self.assertEqual(process.returncode, 1)
        self.assertRegex(text, r"AssertionError: told to end\n(.*\n)*\[__main__._Cases.waits: still running after [0-9.]+ s\]\n$")


if __name__ == "__main__":
    if sys.argv[1:2] == ["_Cases.waits"]:
        side_by_side.main(at_once=2)
    unittest.main()
