"""Shared by the end-to-end tests: starting programs, waiting with deadlines, and proof that nothing is left running."""

import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

_WORDS = (
    "the node rank of a worker group waits while other agents join and leave again each epoch "
    "forms from members that are ready so training goes on with the same global batch size"
).split()


def find_program(path):
    """A binary of this workspace, from the test's runfiles."""
    root = os.environ.get("TEST_SRCDIR", "")
    for candidate in (os.path.join(root, "convene", path), os.path.join(os.getcwd(), path)):
        if os.path.exists(candidate):
            return candidate
    raise FileNotFoundError(f"{path} is not in this test's data")


CONVENE = "launcher/convene"
CONVENED = "launcher/convened"
CONVENE_TRAIN = "worker_runtime/trainer/convene-train"


def make_text(path, words=40000):
    """Text with some structure to learn, the same every time."""
    state = 12345
    with open(path, "w", encoding="ascii") as out:
        for i in range(words):
            state = (state * 1103515245 + 12345) % 2**31
            out.write(_WORDS[(state >> 16) % len(_WORDS)])
            out.write(".\n" if i % 12 == 11 else " ")


def wait_until(condition, timeout_s, what):
    """Polls because it watches other processes' files; the deadline is what matters. `what`: words, or a function that finds them at the end."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"{what() if callable(what) else what}: not within {timeout_s} s")


def whole_lines(path):
    """The lines of a file, in order, without a line that is still being written; none when there is no file.
    One read, and then the cut: a file's iterator that has given a torn line away gives the line's rest as a line of its own."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return file.read().split("\n")[:-1]


def read_metrics(path):
    """The step objects of a metrics file, in order."""
    return [m for m in map(json.loads, whole_lines(path)) if "loss" in m]


def free_port():
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def processes_with(marker):
    """Pids (not zombies) whose environment holds `marker`."""
    found = []
    for environ in glob.glob("/proc/[0-9]*/environ"):
        pid = int(environ.split("/")[2])
        try:
            with open(environ, "rb") as f:
                if marker.encode() not in f.read():
                    continue
            with open(f"/proc/{pid}/stat", encoding="ascii") as f:
                if f.read().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def environment_of(pid):
    """A process's environment; {} for a process that has ended meanwhile."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            pairs = (entry.split(b"=", 1) for entry in f.read().split(b"\0") if b"=" in entry)
            return {key.decode(): value.decode() for key, value in pairs}
    except (FileNotFoundError, ProcessLookupError):
        return {}


def _at_the_limit(_number, _frame):
    raise AssertionError("the test was still running at its limit, and was told to end")


class ConveneTestCase(unittest.TestCase):
    """A temporary directory, programs started with a marker in their environment, and a check that none survives the test."""

    def setUp(self):
        # Bazel ends a test at its limit by SIGTERM, and by SIGKILL a little later.
        signal.signal(signal.SIGTERM, _at_the_limit)
        self.directory = tempfile.mkdtemp(prefix="cv.", dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.addCleanup(self._tell_of_a_failure)
        self.marker = f"CONVENE_TEST_MARKER={os.getpid()}.{os.path.basename(self.directory)}"
        self.addCleanup(self._kill_leftovers)
        self.data = self.path("text.txt")
        make_text(self.data)

    def path(self, name):
        return os.path.join(self.directory, name)

    def run(self, result=None):
        self._result = result
        return super().run(result)

    def _tell_of_a_failure(self):
        """At once, and with the ends of the programs' logs: unittest tells of failures at the end, which a test at its limit may not reach."""
        told = [text for test, text in self._result.failures + self._result.errors if test is self]
        if not told:
            return
        print(f"\n{self.id()} failed:\n{told[0]}", file=sys.stderr)
        logs = [path for path in glob.glob(self.path("*log*")) if os.path.isfile(path)]
        for path in sorted(logs, key=os.path.getmtime):
            with open(path, encoding="utf-8", errors="replace") as file:
                print(f"--- the end of {os.path.basename(path)}\n{file.read()[-3000:]}", file=sys.stderr, flush=True)

    def _kill_leftovers(self):
        for pid in processes_with(self.marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(self, program, *arguments, log=None, limit=None, prefix=(), **environment):
        """Starts a program of ours; its output goes to the file `log`. `limit`: of ulimit, such as "-n 12". `prefix`: a command
        that becomes the program, such as nohup. A variable that is None is taken away."""
        name, value = self.marker.split("=", 1)
        full = {**os.environ, name: value, "CONVENE_LOG_LEVEL": "info", **environment}
        full = {key: value for key, value in full.items() if value is not None}
        for torchrun_name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            full.pop(torchrun_name, None)
        log_path = self.path(log or f"log.{time.monotonic_ns()}")
        command = [*prefix, find_program(program), *map(str, arguments)]
        if limit is not None:
            command = ["bash", "-c", f'ulimit {limit} && exec "$@"', "bash", *command]
        with open(log_path, "ab") as out:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=full)
        process.log_path = log_path
        self.addCleanup(process.wait, 10)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def output(self, process):
        with open(process.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def finish(self, process, timeout_s, expected_code=0):
        """Waits for the end, checks the exit code, returns the output."""
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.fail(f"still running after {timeout_s} s:\n{self.output(process)[-6000:]}")
        text = self.output(process)
        self.assertEqual(code, expected_code, text[-6000:])
        return text

    def assert_nothing_left(self):
        wait_until(lambda: not processes_with(self.marker), 5, "processes still running")

    def train_arguments(self, **changes):
        """Arguments of convene-train for llama-tiny at a toy size; None removes one."""
        values = {
            "model": "llama-tiny", "data": self.data, "token_cache_dir": self.path("tokens"),
            "steps": 30, "global_batch_size": 8, "micro_batch_size": 1, "sequence_length": 32,
            "validation_samples": 8, "checkpoint_dir": self.path("checkpoints"),
            "checkpoint_every": 5, "metrics_file": self.path("metrics.jsonl"), "log_every": 5,
        }
        values.update(changes)
        arguments = []
        for key, value in values.items():
            if value is not None:
                arguments += ["--" + key.replace("_", "-"), str(value)]
        return arguments

    def slow_disk(self, part):
        """Environment of a job whose fsyncs of paths with `part` wait until the file `hold` of the test's folder is removed."""
        with open(self.path("hold"), "w", encoding="ascii"):
            pass
        return {"LD_PRELOAD": find_program("tests/e2e/libslow_disk.so"), "SLOW_DISK_PATH": part, "SLOW_DISK_HOLD": self.path("hold")}

    def workers(self):
        """RANK -> pid of the trainers running now."""
        ranks = {}
        for pid in processes_with(self.marker):
            try:
                environment = environment_of(pid)
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    is_trainer = b"convene-train" in f.read().split(b"\0")[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if is_trainer and "RANK" in environment:
                ranks[int(environment["RANK"])] = pid
        return ranks

    def wait_for_step(self, step, timeout_s=150, metrics=None):
        path = metrics or self.path("metrics.jsonl")
        return wait_until(
            lambda: any(m["step"] >= step for m in read_metrics(path)), timeout_s,
            f"step {step} in {path}")
