"""Starts programs with a deadline and ends everything that they started."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import uuid
from typing import Dict, Iterator, List, NamedTuple, Optional

# In the environment of all that we start, so that what is left is found even when its parent is gone.
MARK_NAME = 'CONVENE_GPU_CHECK'
MARK = str(uuid.uuid4())
GRACE_SECONDS = 10


class Done(NamedTuple):
    code: Optional[int]  # None: it ran past its limit and was stopped
    output: str          # stdout and stderr
    seconds: float
    ended_at: float = 0.0  # the wall clock when it ended or its limit was up: the time that it then takes to stop is no part of it


def environment_of(pid: int) -> Dict[str, str]:
    try:
        with open(f'/proc/{pid}/environ', 'rb') as file:
            return dict(entry.split('=', 1) for entry in file.read().decode('utf-8', 'replace').split('\0') if '=' in entry)
    except OSError:  # it ended, or is not ours
        return {}


def marked() -> Iterator[int]:
    """The processes of ours that live."""
    for name in filter(str.isdigit, os.listdir('/proc')):
        if int(name) != os.getpid() and environment_of(int(name)).get(MARK_NAME) == MARK:
            yield int(name)


def worker_of_rank(rank: int, program: str) -> Optional[int]:
    """The process of ours that runs `program` with this RANK."""
    for pid in marked():
        try:
            with open(f'/proc/{pid}/comm', encoding='utf-8') as file:
                name = file.read().strip()
        except OSError:
            continue
        if environment_of(pid).get('RANK') == str(rank) and name == program[:15]:  # the kernel keeps 15 characters of a name
            return pid
    return None


class Program:
    """A program at work, in a session of its own. Use in a `with`: at its end nothing that it started is left."""

    def __init__(self, command: List[str], environment: Dict[str, str]):
        self._output = tempfile.TemporaryFile()
        self._started = time.monotonic()
        self._child = subprocess.Popen(command, env={**environment, MARK_NAME: MARK}, stdin=subprocess.DEVNULL, stdout=self._output,
                                       stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self) -> 'Program':
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._output.close()

    def ended(self) -> bool:
        return self._child.poll() is not None

    def output(self) -> str:
        """So far."""
        return os.pread(self._output.fileno(), 1 << 24, 0).decode('utf-8', 'replace')

    def wait(self, limit_s: float) -> Done:
        """Waits until the program ends, or stops it after limit_s from now."""
        try:
            self._child.wait(max(0.0, limit_s))
            code: Optional[int] = self._child.returncode
        except subprocess.TimeoutExpired:
            code = None
        seconds, ended_at = time.monotonic() - self._started, time.time()
        self.stop()
        self._output.seek(0)
        return Done(code, self._output.read().decode('utf-8', 'replace'), seconds, ended_at)

    def stop(self) -> None:
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        kill_marked()
        self._child.wait()


def kill_marked() -> None:
    """Kills what is left, and waits until it is gone: its GPU memory is free then. After GRACE_SECONDS a process that hangs in the kernel is left."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := list(marked())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def run(command: List[str], environment: Dict[str, str], limit_s: float) -> Done:
    try:
        with Program(command, environment) as program:
            return program.wait(limit_s)
    except OSError as error:
        return Done(127, f'{command[0]}: {error}', 0.0)


def last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else 'it printed nothing'
