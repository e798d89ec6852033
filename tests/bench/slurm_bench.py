#!/usr/bin/env python3
"""Two nodes of two workers under `srun`, to the first training step, and from SIGTERM in the middle of a step to the command's end with the checkpoint
saved; against the same command by hand on both nodes, in turns, in one run.

usage: tests/bench/slurm_bench.py [--runs N] [--bin FOLDER]
It brings up a Slurm of its own (tests/slurm/test_slurm.py; root only). Prints the medians, and a line for RESULTS.md.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Callable, Dict, List, NamedTuple, Tuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from tests.slurm.test_slurm import NoSlurm, Slurm  # noqa: E402  (after the line above)
from tests.support.convene_testing import free_port, make_text  # noqa: E402

LIMIT_S = 60
STEPS_BEFORE_TERM = 10


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


def lines_of(metrics: str) -> List[str]:
    if not os.path.exists(metrics):
        return []
    with open(metrics, encoding='utf-8') as file:
        return file.read().splitlines()


def stop(metrics: str, checkpoints: str, commands: List[List[str]], send_term: Callable[[List[subprocess.Popen]], None],
         environment: Dict[str, str]) -> Tuple[float, float]:
    """Seconds from SIGTERM after some steps until all commands have ended, and of the median step. The last step that was made must be saved."""
    running = [subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
               for command in commands]
    started = time.monotonic()
    while len(lines_of(metrics)) < STEPS_BEFORE_TERM:
        if time.monotonic() > started + LIMIT_S:
            sys.exit(f'slurm_bench: not {STEPS_BEFORE_TERM} steps within {LIMIT_S} s')
        time.sleep(0.005)
    told = time.monotonic()
    send_term(running)
    outputs = [process.communicate(timeout=LIMIT_S)[0].decode() for process in running]
    seconds = time.monotonic() - told
    steps = [step for step in map(json.loads, lines_of(metrics)) if 'loss' in step]
    saved = sorted(name for name in os.listdir(checkpoints) if name.startswith('step_'))
    if not saved or int(saved[-1].split('_')[1]) != steps[-1]['step']:
        sys.exit(f'slurm_bench: step {steps[-1]["step"]} was made, but saved are {saved}:\n{outputs[0][-3000:]}')
    os.remove(metrics)
    shutil.rmtree(checkpoints)
    return seconds, statistics.median(step['step_seconds'] for step in steps)


class Samples(NamedTuple):
    first_step: List[float]
    stop: List[float]
    step: List[float]  # the median step of each run that was stopped


def measure(slurm: Slurm, programs: Dict[str, str], runs: int) -> Dict[str, Samples]:
    with tempfile.TemporaryDirectory(prefix='slurm_bench.') as folder:
        metrics, checkpoints, text = f'{folder}/metrics.jsonl', f'{folder}/checkpoints', f'{folder}/text.txt'
        make_text(text)
        program = [programs['convene-train'], '--data', text, '--token-cache-dir', f'{folder}/tokens', '--validation-every', '0',
                   '--global-batch-size', '8', '--micro-batch-size', '1', '--sequence-length', '32', '--metrics-file', metrics]
        short = [*program, '--steps', '2']
        endless = [*program, '--steps', '100000', '--checkpoint-dir', checkpoints]
        run = [programs['convene'], 'run', '--nproc-per-node', '2']
        environment = {**os.environ, **slurm.environment, 'OMP_NUM_THREADS': '1'}

        def by_srun(trainer: List[str]) -> List[List[str]]:
            return [['srun', '--job-name=bench', '--nodes=2', '--ntasks-per-node=1', *run, *trainer]]

        def by_hand(trainer: List[str]) -> List[List[str]]:
            port = free_port()
            return [[*run, '--nnodes', '2', '--node-rank', str(rank), '--rdzv-endpoint', f'127.0.0.1:{port}', '--rdzv-id', 'bench', *trainer]
                    for rank in range(2)]

        def cancel(_running: List[subprocess.Popen]) -> None:
            slurm.ask('scancel', '--signal=TERM', '--name=bench')

        def signal_each(running: List[subprocess.Popen]) -> None:
            for process in running:
                process.send_signal(signal.SIGTERM)

        ways = {'srun': (by_srun, cancel), 'by hand': (by_hand, signal_each)}
        samples = {name: Samples([], [], []) for name in ways}
        for number in range(runs + 1):
            for name, (commands, send_term) in ways.items():
                first = first_step(metrics, commands(short), environment)
                stopped, step = stop(metrics, checkpoints, commands(endless), send_term, environment)
                if number > 0:  # the first of each warms the page cache and makes the token file
                    samples[name].first_step.append(first)
                    samples[name].stop.append(stopped)
                    samples[name].step.append(step)
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

    def milliseconds(seconds: List[float]) -> str:
        return f'{statistics.median(seconds) * 1000:.0f} ms ({min(seconds) * 1000:.0f}-{max(seconds) * 1000:.0f})'

    for name, of_name in samples.items():
        print(f'{name:8} first step {milliseconds(of_name.first_step)}, SIGTERM to the end {milliseconds(of_name.stop)}, '
              f'a step {milliseconds(of_name.step)}')
    srun, by_hand = (statistics.median(of_name.first_step) * 1000 for of_name in samples.values())
    print(f'| 2 nodes × 2 workers to the first step, srun | `tests/bench/slurm_bench.py` | {srun:.0f} ms | by hand {by_hand:.0f} ms | '
          f'+{srun - by_hand:.0f} ms | +200 ms |')
    return 0


if __name__ == '__main__':
    sys.exit(main())
