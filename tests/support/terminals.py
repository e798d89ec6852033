"""A terminal for the end-to-end tests: a person who types, and reads the screen."""

import fcntl
import os
import pty
import select
import subprocess
import termios
import time


def _become_terminals_leader():
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A person at a terminal of their own, where one command of `case`, a ConveneTestCase, runs. With `log`, the name of a file in the case's
    folder, the command writes there (case.output() and case.finish() read it), and only its stdin is the terminal."""

    def __init__(self, case, command, log=None):
        self.master, self.slave = pty.openpty()
        case.addCleanup(os.close, self.master)
        case.addCleanup(os.close, self.slave)
        self.settings = termios.tcgetattr(self.slave)
        name, value = case.marker.split('=', 1)
        output = self.slave if log is None else os.open(case.path(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self.process = subprocess.Popen(command, stdin=self.slave, stdout=output, stderr=output, preexec_fn=_become_terminals_leader,
                                        env={**os.environ, name: value, 'T': case.directory, 'TERM': 'dumb'})
        if log is not None:
            os.close(output)
            self.process.log_path = case.path(log)
        case.addCleanup(self.process.wait, 10)
        case.addCleanup(lambda: self.process.poll() is None and self.process.kill())
        self.text = ''

    def read(self, timeout_s):
        """Returns False when nothing came within the time."""
        if not select.select([self.master], [], [], timeout_s)[0]:
            return False
        self.text += os.read(self.master, 65536).decode(errors='replace')
        return True

    def expect(self, words, timeout_s=30):
        """Returns the screen's text up to and with these words, and takes it off the screen."""
        deadline = time.monotonic() + timeout_s
        while words not in self.text:
            if time.monotonic() > deadline:
                raise AssertionError(f'{words!r} is not on the screen:\n{self.text}')
            self.read(0.05)
        before, self.text = self.text.split(words, 1)
        return before

    def type(self, text):
        os.write(self.master, text.encode())

    def finish(self, timeout_s=30):
        """The exit code; the rest of the screen is in `text`."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read(0.05)
        while self.read(0.05):
            pass
        return self.process.wait(1)
