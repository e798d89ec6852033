#!/usr/bin/env python3
"""Starting and ending a job of two empty workers: `convene run` against torchrun, in turns, in one run.

usage: tests/bench/launch_bench.py [--runs N] [--convene PATH] [--without-torch]
Prints the medians of wall time and of the peak resident memory (of the largest process), the ratios, and a line for RESULTS.md.
PyTorch comes from tools/torch_environment.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import Dict, List, NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from tests.support import torch_environment  # noqa: E402  (after the line above)

JOB = ['--standalone', '--nproc-per-node', '2']
TRUE = '/bin/true'


class Sample(NamedTuple):
    seconds: float
    peak_mib: float


def measure(command: List[str], environment: Dict[str, str]) -> Sample:
    started = time.monotonic()
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)  # the child's and its children's peak, the larger of them
    seconds = time.monotonic() - started
    if status != 0:
        sys.exit(f'launch_bench: {" ".join(command)} ended with {os.waitstatus_to_exitcode(status)}:\n{errors.decode()[-2000:]}')
    return Sample(seconds, usage.ru_maxrss / 1024)


def build(*targets: str) -> str:
    """bazel-bin, with the targets in it."""
    subprocess.run(['bazel', 'build', *targets], cwd=ROOT, check=True)
    return subprocess.run(['bazel', 'info', 'bazel-bin'], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def build_convene() -> str:
    return os.path.join(build('//launcher:convene'), 'launcher/convene')


def median(samples: List[Sample]) -> Sample:
    return Sample(statistics.median(s.seconds for s in samples), statistics.median(s.peak_mib for s in samples))


def figures(sample: Sample) -> str:
    return f'{sample.seconds * 1000:.1f} ms, {sample.peak_mib:.1f} MiB'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--runs', type=int, default=11)
    parser.add_argument('--convene', help='the program to measure (default: builds //launcher:convene)')
    parser.add_argument('--without-torch', action='store_true', help='measure convene alone')
    arguments = parser.parse_args()

    commands = {'convene run': ([arguments.convene or build_convene(), 'run', *JOB, TRUE], dict(os.environ))}
    if not arguments.without_torch:
        try:
            version = torch_environment.install_torch()
        except torch_environment.NoTorch as error:
            sys.exit(f'launch_bench: {error}; --without-torch measures convene alone')
        commands[f'torchrun {version}'] = ([torch_environment.TORCHRUN, *JOB, '--no-python', TRUE], torch_environment.torch_environment())

    samples: Dict[str, List[Sample]] = {name: [] for name in commands}
    for number in range(arguments.runs + 1):
        for name, (command, environment) in commands.items():
            sample = measure(command, environment)
            if number > 0:  # the first of each warms the page cache
                samples[name].append(sample)

    print(f'{platform.node()}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {arguments.runs} runs each, in turns; medians')
    for name, of_name in samples.items():
        fastest, slowest = min(s.seconds for s in of_name), max(s.seconds for s in of_name)
        middle = median(of_name)
        print(f'{name:24} {middle.seconds * 1000:9.1f} ms ({fastest * 1000:.1f}-{slowest * 1000:.1f})  {middle.peak_mib:7.1f} MiB')
    ours, *peers = ((name, median(of_name)) for name, of_name in samples.items())
    cells = ['2 × `/bin/true`, whole process', '`tests/bench/launch_bench.py`', figures(ours[1])]
    for name, theirs in peers:
        cells += [f'{name} {figures(theirs)}',
                  f'1/{theirs.seconds / ours[1].seconds:.0f}, 1/{theirs.peak_mib / ours[1].peak_mib:.0f}', '1/50, 1/10']
    print('| ' + ' | '.join(cells) + ' |')
    return 0


if __name__ == '__main__':
    sys.exit(main())
