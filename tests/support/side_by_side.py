"""Runs the cases of a test file beside each other: for cases that wait most of their time. A file ends with

    side_by_side.main(at_once=3)

in place of unittest.main(). Each case runs in a process of its own, forked from this one, so the cases share no memory, no signal's handler and no pid.
The output of a case is shown whole when the case ends. The closing lines are unittest's, over all cases. Arguments name cases, as unittest's do.
"""

import contextlib
import os
import signal
import sys
import tempfile
import time
import unittest

_LAST_WORDS_S = 10  # for the cases that run when Bazel tells this file to end


def main(at_once):
    sys.exit(0 if run(_cases(sys.argv[1:]), at_once) else 1)


def run(cases, at_once, out=None):
    """Whether every case passed or skipped. In the order of the list; `at_once` of them at a time."""
    out = out or sys.stderr
    began = time.monotonic()
    waiting, running, counts = list(cases), {}, {"failures": 0, "skipped": 0}
    before = signal.signal(signal.SIGTERM, lambda *_: _end(running, out))
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                case = waiting.pop(0)
                pid, output = _fork(case)
                running[pid] = (case, output, time.monotonic())
            pid, status = os.wait()
            case, output, case_began = running.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if code not in (_PASSED, _SKIPPED):
                counts["failures"] += 1
            counts["skipped"] += code == _SKIPPED
            _show(case, output, out, f"{time.monotonic() - case_began:.1f} s" + (f", ended by signal {-code}" if code < 0 else ""))
    finally:
        signal.signal(signal.SIGTERM, before)
    told = ", ".join(f"{name}={count}" for name, count in counts.items() if count)
    print(f"\n{'-' * 70}\nRan {len(cases)} test{'s' * (len(cases) != 1)} in {time.monotonic() - began:.3f}s\n\n"
          f"{'FAILED' if counts['failures'] else 'OK'}{f' ({told})' if told else ''}", file=out, flush=True)
    return bool(cases) and not counts["failures"]


# Exit codes of a case's process. Python itself ends with 1 or 2 where it fails.
_PASSED, _FAILED, _SKIPPED = 0, 1, 77


def _cases(names):
    main_module = sys.modules["__main__"]
    loader = unittest.defaultTestLoader
    return list(_flat(loader.loadTestsFromNames(names, main_module) if names else loader.loadTestsFromModule(main_module)))


def _flat(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


def _fork(case):
    """The pid of the case's process, and the file of its output."""
    output = tempfile.TemporaryFile()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid, output
    code = _FAILED
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite([case]))
        code = _FAILED if not result.wasSuccessful() else _SKIPPED if result.skipped else _PASSED
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)  # neither the parent's cleanups nor its buffers are this process's


def _show(case, output, out, how_long):
    output.seek(0)
    print(f"{output.read().decode(errors='replace')}[{case.id()}: {how_long}]", file=out, flush=True)
    output.close()


def _end(running, out):
    """At the limit of the file: each case that runs is told, says where it was, and is shown."""
    for pid in running:
        with contextlib.suppress(ProcessLookupError):  # ended, and told in this moment
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _LAST_WORDS_S
    for pid, (case, output, began) in list(running.items()):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
        _show(case, output, out, f"still running after {time.monotonic() - began:.1f} s")
    os._exit(1)
