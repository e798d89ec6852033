#!/usr/bin/env python3
"""Two nodes of two workers under `srun`, to the first training step, against the same command by hand on both nodes, in turns, in one run.

usage: tests/bench/slurm_bench.py [--runs N] [--bin FOLDER]
It brings up a Slurm of its own (tests/slurm/test_slurm.py; root only). Prints the medians, and a line for RESULTS.md.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Callable, Dict, List

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from tests.slurm.test_slurm import NoSlurm, Slurm  # noqa: E402  (after the line above)
from tests.support.convene_testing import free_port, make_text  # noqa: E402

LIMIT_S = 60


def build() -> Dict[str, str]:
    labels = {'convene': '//launcher:convene', 'convene-train': '//worker_runtime/trainer:convene-train'}
    subprocess.run(['bazel', 'build', *labels.values()], cwd=ROOT, check=True)
    output = subprocess.run(['bazel', 'info', 'bazel-bin'], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    return {name: os.path.join(output, label[2:].replace(':', '/')) for name, label in labels.items()}


def first_step(metrics: str, commands: List[List[str]], environment: Dict[str, str]) -> float:
    """Seconds until the metrics file has its first line; the commands then run to their end."""
    started = time.monotonic()
    running = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
               for command in commands]
    while not os.path.exists(metrics) or os.path.getsize(metrics) == 0:
        if time.monotonic() > started + LIMIT_S:
            sys.exit(f'slurm_bench: no step within {LIMIT_S} s')
        time.sleep(0.001)
    seconds = time.monotonic() - started
    for process in running:
        output, _ = process.communicate(timeout=LIMIT_S)
        if process.returncode != 0:
            sys.exit(f'slurm_bench: {process.args} ended with {process.returncode}:\n{output.decode()[-3000:]}')
    os.remove(metrics)
    return seconds


def measure(slurm: Slurm, programs: Dict[str, str], runs: int) -> Dict[str, List[float]]:
    with tempfile.TemporaryDirectory(prefix='slurm_bench.') as folder:
        metrics, text = f'{folder}/metrics.jsonl', f'{folder}/text.txt'
        make_text(text)
        program = [programs['convene-train'], '--data', text, '--token-cache-dir', f'{folder}/tokens', '--steps', '2', '--validation-every', '0',
                   '--global-batch-size', '8', '--micro-batch-size', '1', '--sequence-length', '32', '--metrics-file', metrics]
        run = [programs['convene'], 'run', '--nproc-per-node', '2']
        environment = {**os.environ, **slurm.environment, 'OMP_NUM_THREADS': '1'}

        def by_srun() -> List[List[str]]:
            return [['srun', '--nodes=2', '--ntasks-per-node=1', *run, *program]]

        def by_hand() -> List[List[str]]:
            port = free_port()
            return [[*run, '--nnodes', '2', '--node-rank', str(rank), '--rdzv-endpoint', f'127.0.0.1:{port}', '--rdzv-id', 'bench', *program]
                    for rank in range(2)]

        ways: Dict[str, Callable[[], List[List[str]]]] = {'srun': by_srun, 'by hand': by_hand}
        samples: Dict[str, List[float]] = {name: [] for name in ways}
        for number in range(runs + 1):
            for name, commands in ways.items():
                seconds = first_step(metrics, commands(), environment)
                if number > 0:  # the first of each warms the page cache and makes the token file
                    samples[name].append(seconds)
        return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--runs', type=int, default=9)
    parser.add_argument('--bin', help='a folder with convene and convene-train (default: builds them)')
    arguments = parser.parse_args()
    programs = {name: os.path.join(arguments.bin, name) for name in ('convene', 'convene-train')} if arguments.bin else build()
    slurm = Slurm()
    try:
        slurm.start()
    except NoSlurm as reason:
        sys.exit(f'slurm_bench: {reason}')
    try:
        samples = measure(slurm, programs, arguments.runs)
    finally:
        slurm.stop()
    print(f'{platform.node()}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {arguments.runs} runs each, in turns; medians')
    for name, of_name in samples.items():
        print(f'{name:10} {statistics.median(of_name) * 1000:7.0f} ms ({min(of_name) * 1000:.0f}-{max(of_name) * 1000:.0f})')
    srun, by_hand = (statistics.median(of_name) for of_name in samples.values())
    print(f'| 2 nodes × 2 workers to the first step, srun | `tests/bench/slurm_bench.py` | {srun * 1000:.0f} ms | by hand {by_hand * 1000:.0f} ms | '
          f'+{(srun - by_hand) * 1000:.0f} ms | +200 ms |')
    return 0


if __name__ == '__main__':
    sys.exit(main())
