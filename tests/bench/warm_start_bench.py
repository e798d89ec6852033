#!/usr/bin/env python3
"""Measures what warm workers save at a run's first start: from the command to the first step of a DDP script (8 workers, gloo), cold and warm.

usage: tests/bench/warm_start_bench.py [--runs N]
An earlier run of the script makes the record. Then cold and warm runs take turns. The system calls that name a file are counted in runs of
their own, by strace. It needs the environment that tools/torch_environment makes.
"""

import argparse
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import recovery_bench as recovery  # noqa: E402  (beside this file)
import warm_bench  # noqa: E402  (beside this file)
from tests.support import torch_environment  # noqa: E402  (recovery_bench found the way)

WORKERS = 8
LIMIT_S = 400


class Bench:
    """Runs of one command in one folder: a record is found by both."""

    def __init__(self, program):
        self.folder = tempfile.mkdtemp(prefix='warm.')
        self.program = program
        self.environment = {**torch_environment.torch_environment(), 'XDG_CACHE_HOME': self.path('cache')}

    def path(self, name):
        return os.path.join(self.folder, name)

    def log(self):
        with open(self.path('log'), encoding='utf-8') as file:
            return file.read()

    def run(self, flags, prefix=(), until=lambda: True):
        """Seconds until the first step is done, and then `until`; the run is ended."""
        for name in ('checkpoint.pt', 'metrics.jsonl'):
            if os.path.exists(self.path(name)):
                os.remove(self.path(name))
        command = [*prefix, self.program, 'run', '--standalone', '--nproc-per-node', str(WORKERS), *flags, '--no-python', torch_environment.PYTHON, '-u',
                   warm_bench.SCRIPT, self.path('checkpoint.pt'), self.path('metrics.jsonl')]
        start = time.monotonic()
        with open(self.path('log'), 'wb') as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder, env=self.environment)
        try:
            recovery.wait_for(lambda: recovery.last_line(self.path('metrics.jsonl')), LIMIT_S, 'the first step')
            seconds = time.monotonic() - start
            recovery.wait_for(until, LIMIT_S, 'the record')
        finally:
            launcher = process.pid
            if prefix:
                with open(f'/proc/{process.pid}/task/{process.pid}/children', encoding='ascii') as file:
                    launcher = int(file.read().split()[0])
            os.kill(launcher, signal.SIGTERM)
            process.wait(60)
        return seconds

    def calls(self, flags):
        """Of all processes of a run, from its command to its end."""
        self.run(flags, prefix=('strace', '-f', '-c', '-e', 'trace=%file', '-o', self.path('calls')))
        with open(self.path('calls'), encoding='utf-8') as file:
            return next(int(line.split()[3 if len(line.split()) > 4 else 2]) for line in file if line.endswith(' total\n'))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--runs', type=int, default=5)
    arguments = parser.parse_args()
    bench = Bench(f'{recovery.build_programs()}/launcher/convene')
    try:
        print(f'{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; '
              f'PyTorch {torch_environment.torch_version() or "is not here"}', flush=True)
        warm = ('--warm-workers', 'auto')
        bench.run(warm, until=lambda: bench.log().count(warm_bench.IMPORTED) == warm_bench.RECORDS)
        samples = {'cold': [], 'warm': []}
        for _ in range(arguments.runs):
            samples['cold'].append(bench.run(()))
            samples['warm'].append(bench.run(warm))
            text = bench.log()
            if f'{WORKERS} of {WORKERS} workers start from spares' not in text:
                sys.exit(f'warm_start_bench: the start was not warm:\n{text}')
        for name, values in samples.items():
            recovery.report(f'command -> first step, DDP script, {WORKERS} workers: {name}', values)
        print(f'ratio of the medians {statistics.median(samples["warm"]) / statistics.median(samples["cold"]):.2f}', flush=True)
        cold_calls, warm_calls = bench.calls(()), bench.calls(warm)
        print(f'calls that name a file: {cold_calls} cold, {warm_calls} warm, ratio {warm_calls / cold_calls:.2f}')
    finally:
        shutil.rmtree(bench.folder)


if __name__ == '__main__':
    try:
        main()
    except recovery.TooSlow as slow:
        sys.exit(f'warm_start_bench: {slow}')
