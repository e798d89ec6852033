#!/usr/bin/env python3
"""Measures how long one node of an elastic job waits when it may begin alone: `--nnodes 1:2`, and no second node comes.

usage: tests/bench/elastic_bench.py [--runs N] [--torch-runs N] [--convene PATH]
From the start of the command, which hosts the rendezvous itself, until its worker runs (a shell that writes into a pipe). torchrun
is measured beside it: it waits 30 s for its last call, so a few runs are enough. Prints medians, and a line for RESULTS.md.
"""

import argparse
import os
import platform
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import launch_bench  # noqa: E402  (beside this file)
from tests.support import torch_environment  # noqa: E402  (launch_bench found the way)

GOAL_S = 0.2
LIMIT_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def seconds_until_worker(command, environment):
    """`command`: all but the endpoint and the program."""
    directory = tempfile.mkdtemp(prefix='elastic.')
    path = os.path.join(directory, 'started')
    os.mkfifo(path)
    started = os.open(path, os.O_RDWR)
    whole = [*command, '--nnodes', '1:2', '--nproc-per-node', '1', '--rdzv-backend', 'c10d', '--rdzv-id', 'bench',
             '--rdzv-endpoint', f'127.0.0.1:{free_port()}', '--no-python', '/bin/sh', '-c', f'echo > {path}']
    log = os.path.join(directory, 'log')
    try:
        with open(log, 'wb') as output:
            start = time.monotonic()
            child = subprocess.Popen(whole, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        ready = select.select([started], [], [], LIMIT_S)[0]
        seconds = time.monotonic() - start
        if not ready:
            child.kill()
        code = child.wait()
        if not ready or code != 0:
            with open(log, encoding='utf-8', errors='replace') as file:
                sys.exit(f'elastic_bench: {" ".join(whole)} ended with {code}:\n{file.read()[-2000:]}')
        return seconds
    finally:
        os.close(started)
        shutil.rmtree(directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--runs', type=int, default=11)
    parser.add_argument('--torch-runs', type=int, default=2, help='of 30 s each; 0: convene alone')
    parser.add_argument('--convene', help='the program to measure (default: builds //launcher:convene)')
    arguments = parser.parse_args()
    convene = [arguments.convene or launch_bench.build_convene(), 'run']
    seconds_until_worker(convene, dict(os.environ))  # warms the page cache
    ours = [seconds_until_worker(convene, dict(os.environ)) for _ in range(arguments.runs)]
    theirs = []
    peer = '–'
    if arguments.torch_runs:
        try:
            peer = f'torchrun {torch_environment.install_torch()}'
        except torch_environment.NoTorch as error:
            sys.exit(f'elastic_bench: {error}; --torch-runs 0 measures convene alone')
        theirs = [seconds_until_worker([torch_environment.TORCHRUN], torch_environment.torch_environment())
                  for _ in range(arguments.torch_runs)]
    median = statistics.median(ours)
    print(f'{platform.node()}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {len(ours)} and {len(theirs)} runs, medians')
    if theirs:
        peer += f' {statistics.median(theirs):.1f} s'
    print(f'| elastic 1:2, one node, nobody else: command → its worker runs | `tests/bench/elastic_bench.py` | {median:.3f} s '
          f'({min(ours):.3f} to {max(ours):.3f}) | {peer} | '
          f'{"1/%.0f" % (statistics.median(theirs) / median) if theirs else "–"} | ≤ {GOAL_S} s |')
    return 0 if median <= GOAL_S else 1


if __name__ == '__main__':
    sys.exit(main())
