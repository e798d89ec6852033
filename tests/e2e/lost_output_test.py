"""Output that cannot be written: a full disk, a closed console. It is counted and told, and the exit code stays the worker's."""

import json
import os
import subprocess
import unittest

from tests.support.convene_testing import CONVENE, CONVENED, CONVENE_TRAIN, ConveneTestCase, find_program, free_port, wait_until

_NO_SPACE = "No space left on device"


class LostOutputTest(ConveneTestCase):

    def run_to(self, redirections, program, *arguments, before=""):
        """The command under the shell's redirections, as a person types it: its exit code, and what stdout and stderr still took."""
        words = ["sh", "-c", f'{before} "$@" {redirections}', "sh", find_program(program), *map(str, arguments)]
        name, value = self.marker.split("=", 1)
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, name: value, "CONVENE_LOG_LEVEL": "info"})
        return done.returncode, done.stdout, done.stderr

    def run_worker(self, redirections, script, *flags, program=CONVENE, before=""):
        words = ["run"] if program == CONVENE else []
        result = self.run_to(redirections, program, *words, "--standalone", *flags, "--no-python", "sh", "-c", script, before=before)
        self.assert_nothing_left()
        return result

    def test_a_full_disk_under_stdout_is_told_at_once_and_in_the_last_words(self):
        for program in (CONVENE, "launcher/torchrun"):
            outcome = self.path("outcome")
            code, _, log = self.run_worker(">/dev/full", "echo ok", "--outcome-file", outcome, program=program)
            self.assertEqual(code, 0, log)
            self.assertEqual(log.count(f"stdout takes no output ({_NO_SPACE})"), 1, log)
            last = log.splitlines()[-1]
            self.assertIn("succeeded", last)
            self.assertRegex(last, rf"is lost: 1 line \(\d+ B\) for stdout \({_NO_SPACE}\)")
            with open(outcome, encoding="utf-8") as file:
                self.assertIn(_NO_SPACE, json.load(file)["lost_output"])

    def test_the_exit_code_stays_the_worker_s(self):
        code, _, log = self.run_worker(">/dev/full", "echo ok; exit 3", "--propagate-exit-code")
        self.assertEqual(code, 3)
        self.assertIn(_NO_SPACE, log.splitlines()[-1])
        self.assertEqual(self.run_worker(">/dev/full 2>/dev/full", "echo ok; echo bad >&2; exit 3", "--propagate-exit-code")[0], 3)
        self.assertEqual(self.run_worker(">&- 2>&-", "echo ok; echo bad >&2")[0], 0)

    def test_a_full_disk_under_stderr_is_told_on_stdout(self):
        code, output, _ = self.run_worker("2>/dev/full", "echo ok; echo bad >&2; exit 3")
        self.assertEqual(code, 1)
        self.assertIn("[0] ok\n", output)
        self.assertEqual(output.count(f"stderr takes no output ({_NO_SPACE})"), 1, output)
        self.assertIn("exit code 3", output)  # The last words.
        self.assertRegex(output.splitlines()[-1], rf"\d+ lines .* log could not be written to stderr \({_NO_SPACE}\)")

    def test_a_closed_stdout_and_a_reader_that_goes_are_told(self):
        code, _, log = self.run_worker(">&-", "echo ok")
        self.assertEqual(code, 0)
        self.assertIn("1 line (7 B) for stdout (Bad file descriptor)", log.splitlines()[-1])
        _, _, log = self.run_worker("| true", "sleep 0.5; for i in 1 2 3; do echo $i; done")
        self.assertIn("for stdout (Broken pipe)", log.splitlines()[-1])

    def test_a_full_disk_under_log_files_is_in_the_last_words(self):
        # No file may grow beyond 32 KiB.
        script = 'for i in $(seq 1000); do printf "%0100d\\n" $i; done'
        code, _, log = self.run_worker("", script, "--log-dir", self.path("logs"), "--redirects", 3, before="ulimit -f 64;")
        self.assertEqual(code, 0, log)
        self.assertEqual(log.count("stdout.log: File too large: lines are dropped until that is over"), 1, log)
        self.assertRegex(log, r"warning: write \S+/0/stdout.log: File too large")
        lost = r"is lost: \d+ lines \([0-9.]+ KiB\) for log files \(write \S+/0/stdout.log: File too large\)$"
        self.assertRegex(log.splitlines()[-1], lost)

    def test_a_query_whose_answer_is_not_written_fails_with_a_word(self):
        port = free_port()
        endpoint = f"127.0.0.1:{port}"
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", port)
        wait_until(lambda: "serving" in self.output(daemon), 20, "the daemon")
        job = self.start(CONVENE, "run", "--nnodes", 1, "--rdzv-endpoint", endpoint, "--rdzv-conf", "is_host=0", "--rdzv-id", "r",
                         "--no-python", "sh", "-c", "echo ok; sleep 60")
        wait_until(lambda: "[0] ok" in self.output(job), 20, "the worker")
        for words in (["--help"], ["run", "--help"], ["--version"], ["run", "--print-completion", "bash"], ["data", "--help"],
                      ["status", "--endpoint", endpoint], ["status", "--json", "--endpoint", endpoint],
                      ["logs", "r", "--endpoint", endpoint]):
            for redirection, reason in ((">/dev/full", _NO_SPACE), (">&-", "Bad file descriptor")):
                code, _, log = self.run_to(redirection, CONVENE, *words)
                self.assertEqual((code, log), (1, f"convene: write error: {reason}\n"), words)
            code, _, log = self.run_to("| true; exit 0", CONVENE, *words)
            self.assertEqual((code, log), (0, ""), words)
        self.assertEqual(self.run_to(">/dev/full", CONVENE_TRAIN, "--help")[::2], (1, f"convene-train: write error: {_NO_SPACE}\n"))
        self.assertEqual(self.run_to("| true; exit 0", CONVENE_TRAIN, "--help")[::2], (0, ""))
        job.terminate()
        self.finish(job, 20, 143)


if __name__ == "__main__":
    unittest.main()
