"""Nobody reads what a command prints (a pager, `tee` on a full disk): jobs go on, and commands end."""

import fcntl
import os
import signal
import socket
import subprocess
import time
import unittest

from tests.support.convene_testing import CONVENE, CONVENED, ConveneTestCase, find_program


class StuckReaderTest(ConveneTestCase):

    def full_pipe(self):
        """The writing end of a pipe that has no room and that nobody reads."""
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        self.addCleanup(os.close, write_end)
        flags = fcntl.fcntl(write_end, fcntl.F_GETFL)
        fcntl.fcntl(write_end, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        try:
            while True:
                os.write(write_end, b"x" * 4096)
        except BlockingIOError:
            pass
        fcntl.fcntl(write_end, fcntl.F_SETFL, flags)
        return write_end

    def start_unread(self, program, *arguments, stdout=subprocess.DEVNULL):
        """With the full pipe as its stderr."""
        name, value = self.marker.split("=", 1)
        process = subprocess.Popen([find_program(program), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=stdout,
                                   stderr=self.full_pipe(), env={**os.environ, name: value})
        self.addCleanup(process.wait, 10)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def test_an_agent_restarts_its_workers_and_ends_with_the_right_code(self):
        starts = self.path("starts")
        job = self.start_unread(CONVENE, "run", "--standalone", "--max-restarts", 2, "--no-python", "sh", "-c",
                                f"echo x >> {starts}; echo words >&2; exit 3")
        self.assertEqual(job.wait(40), 1)
        with open(starts, encoding="ascii") as lines:
            self.assertEqual(len(lines.readlines()), 3)
        self.assert_nothing_left()

    def test_a_reader_that_is_slow_but_lives_is_not_taken_for_a_rendezvous_that_hangs(self):
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        with open(self.path("log"), "wb") as log:
            job = subprocess.Popen([find_program(CONVENE), "run", "--standalone", "--outcome-file", self.path("outcome"), "--no-python", "sh", "-c",
                                    f"yes {'x' * 99} | head -n 10000; exit 3"], stdin=subprocess.DEVNULL, stdout=write_end, stderr=log)
        os.close(write_end)
        self.addCleanup(job.wait, 10)
        self.addCleanup(lambda: job.poll() is None and job.kill())
        lines = 0
        while part := os.read(read_end, 50000):
            lines += part.count(b"\n")
            time.sleep(1)  # The reader's pace: all of it takes longer than the rest of the command's end may.
        self.assertEqual(job.wait(10), 1)
        self.assertEqual(lines, 10000)
        with open(self.path("log"), encoding="utf-8") as log:
            self.assertNotIn("did not close", log.read())
        self.assertTrue(os.path.exists(self.path("outcome")))

    def test_a_daemon_goes_on_serving_and_stops_when_told(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        daemon = self.start_unread(CONVENED, "--host", "127.0.0.1", "--port", port)
        for run in range(3):
            job = self.start(CONVENE, "run", "--nnodes", 1, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "is_host=0",
                             "--rdzv-id", run, "--no-python", "true")
            self.finish(job, 30)
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(20), 128 + signal.SIGTERM)
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
