"""The exit code that a scheduler sees for each way in which a worker can end: the rows of `convene --help-exit-codes`."""

import os
import sys
import unittest

from tests.support.convene_testing import CONVENE, ConveneTestCase

# A shell's words: becomes a program that opens its session and goes on with the Perl that follows, up to a "'".
_IN_SESSION = ("exec perl -MIO::Socket::UNIX -e 'my $s = IO::Socket::UNIX->new($ENV{CONVENE_SESSION}) or die;"
               'print $s "hello $ENV{LOCAL_RANK} $ENV{CONVENE_EPOCH}\\n"; $s->flush;')

# Becomes a program for which pidfd_open (434) fails with EPERM, as under the seccomp profile of an old container runtime.
_WITHOUT_PIDFDS = """
import ctypes, os, struct, sys
lines = ((0x20, 0, 0, 0), (0x15, 0, 1, 434), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
program = ctypes.create_string_buffer(struct.pack("HP", len(lines), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program) != 0:
    sys.exit("no seccomp filter")
os.execv(sys.argv[1], sys.argv[1:])
"""


class ExitCodesTest(ConveneTestCase):

    def run_script(self, script, expected_code, *flags):
        text = self.finish(self.start(CONVENE, "run", "--standalone", *flags, "sh", "-c", script),
                           20, expected_code)
        self.assert_nothing_left()
        return text

    def test_all_workers_ended_with_0(self):
        self.run_script("exit 0", 0, "--nproc-per-node", 2)

    def test_a_failed_worker_is_1_and_its_own_code_is_told(self):
        for code, words in ((3, "exit code 3"), (64, "exit code 64"), (70, "exit code 70"),
                            (75, "exit code 75"), (76, "exit code 76"),
                            (127, "exit code 127 (program or library not found)")):
            with self.subTest(code=code):
                text = self.run_script(f"echo last words >&2; exit {code}", 1)
                self.assertIn("The first failure was rank 0 (local rank 0, pid ", text)
                self.assertIn(f": {words}.", text)
                self.assertIn("Its last lines:\n  last words", text)

    def test_a_killed_worker_is_1_and_its_signal_is_told(self):
        self.assertIn("killed by SIGKILL (", self.run_script("kill -9 $$", 1))

    def test_75_in_a_session_starts_the_worker_again_for_free(self):
        marker = self.path("started")
        self.run_script(f"[ -e {marker} ] && exit 0; touch {marker}; {_IN_SESSION} exit 75;'", 0,
                        "--max-restarts", 0)

    def test_the_workers_own_code_where_it_was_asked_for(self):
        for script, code in (("exit 3", 3), ("exit 64", 64), ("exit 76", 76), ("exit 255", 255),
                             ("kill -9 $$", 128 + 9), ("kill -11 $$", 128 + 11), ("exit 0", 0)):
            with self.subTest(script=script):
                self.run_script(script, code, "--propagate-exit-code")

    def test_the_first_failure_is_the_one_whose_code_is_propagated(self):
        # Rank 0 ends with another code because rank 1 has failed.
        script = 'if [ "$RANK" = 1 ]; then exit 5; fi; trap "exit 9" TERM; while :; do sleep 0.02; done'
        text = self.run_script(script, 5, "--propagate-exit-code", "--nproc-per-node", 2)
        self.assertIn("The first failure was rank 1", text)

    def test_a_node_whose_health_check_fails_is_71_to_the_shell(self):
        text = self.run_script("echo never", 71, "--health-check", "echo no GPU >&2; exit 1")
        self.assertNotIn("never", text.replace("echo never", ""))
        self.assertIn("no GPU", text)

    def test_a_node_that_cannot_watch_processes_is_71_and_says_why(self):
        run = self.start(CONVENE, "run", "--standalone", "true", prefix=[sys.executable, "-c", _WITHOUT_PIDFDS])
        text = self.finish(run, 20, 71)
        self.assertIn("does not allow pidfd_open (Operation not permitted)", text)
        self.assertNotIn("guardian", text)

    def test_what_is_wrong_with_the_command_is_64(self):
        self.run_script("exit 0", 64, "--nproc-per-node", "many")

    def test_an_outcome_file_has_no_earlier_runs_outcome(self):
        outcome = self.path("outcome")
        self.run_script("exit 0", 0, "--outcome-file", outcome)
        self.assertTrue(os.path.exists(outcome))
        run = self.start(CONVENE, "run", "--standalone", "--outcome-file", outcome, "true", prefix=["sh", "-c", 'ulimit -n 35; exec "$0" "$@"'])
        self.assertIn("may open 35 files", self.finish(run, 20, 64))
        self.assertFalse(os.path.exists(outcome))
        for no_file in (self.directory, "/dev/null"):
            self.assertIn("--outcome-file", self.run_script("exit 0", 64, "--outcome-file", no_file))


if __name__ == "__main__":
    unittest.main()
