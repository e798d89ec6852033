#!/usr/bin/python3
"""Prices of a state that survives: copies in memory and sums that no layout changes, by step; and a lost node, until the next step.

usage: tests/bench/state_bench.py [--rounds 5] [--steps 8] [--samples 8] [--ranks 1 2] [--kills 10]
The steps of llama-15m (--samples of 128 tokens) on one rank with one thread, so that a core is free, and on two ranks: without flags, with
--replicate-every 1, and with --reproducible, in turns. Then one of two nodes (1:2, --replicas 1 --replicate-every 1, llama-tiny) is killed with
SIGKILL: the time until the other node has made a step alone, without a checkpoint. Prints medians, and ratios within a round.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Dict, List

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import launch_bench  # noqa: E402  (the line above keeps __pycache__ out of the tree)
import plan_bench  # noqa: E402
import train_bench  # noqa: E402

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'RESULTS.md')
VARIANTS = {'plain': [], '--replicate-every 1': ['--replicate-every', '1'], '--reproducible': ['--reproducible']}
WAIT_S = 60


def trainer(bazel_bin: str, folder: str, *flags: str) -> List[str]:
    return [f'{bazel_bin}/worker_runtime/trainer/convene-train', '--data', DATA, '--token-cache-dir', folder, '--validation-every', '0',
            '--validation-samples', '1', '--metrics-file', f'{folder}/metrics.jsonl', '--device', 'cpu', *flags]


def metrics(folder: str) -> List[Dict]:
    try:
        with open(f'{folder}/metrics.jsonl', encoding='utf-8') as file:
            return [json.loads(line) for line in file if line.endswith('\n')]
    except FileNotFoundError:
        return []


def step_seconds(bazel_bin: str, ranks: int, batch: List[str], flags: List[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        # Two ranks for the threads: one rank leaves a core free.
        plan_bench.output_of([f'{bazel_bin}/launcher/convene', 'run', '--standalone', '--nproc-per-node', str(ranks),
                              *trainer(bazel_bin, folder, '--model', 'llama-15m', '--sequence-length', '128', '--micro-batch-size', '4', *batch,
                                       *flags)], 2)
        return statistics.median(train_bench.counted([line['step_seconds'] for line in metrics(folder) if 'step_seconds' in line]))


def wait_until(condition, what: str):
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.002)
    sys.exit(f'state_bench: {what}: not within {WAIT_S} s')


def seconds_of_a_lost_node(bazel_bin: str) -> float:
    with tempfile.TemporaryDirectory() as folder, open(f'{folder}/log', 'w+b') as log:
        started = [subprocess.Popen([f'{bazel_bin}/launcher/convened', '--host', '127.0.0.1', '--port', '0'], stdout=log, stderr=log)]
        try:
            def address():
                with open(f'{folder}/log', encoding='utf-8', errors='replace') as text:
                    return re.search(r'serving.*(127\.0\.0\.1:\d+)', text.read())
            endpoint = wait_until(address, 'the daemon').group(1)
            train = trainer(bazel_bin, folder, '--model', 'llama-tiny', '--sequence-length', '32', '--global-batch-size', '8', '--micro-batch-size', '4',
                            '--steps', '100000', '--replicas', '1', '--replicate-every', '1')
            for node in range(2):
                started.append(subprocess.Popen(
                    [f'{bazel_bin}/launcher/convene', 'run', '--nnodes', '1:2', '--nproc-per-node', '1', '--rdzv-endpoint', endpoint, '--rdzv-id', 'job',
                     '--node-rank', str(node), *train], stdout=log, stderr=log, env=plan_bench.environment(2)))
            wait_until(lambda: [line for line in metrics(folder) if line['world_size'] == 2 and line['step'] >= 15], 'steps on two nodes')
            epoch = metrics(folder)[-1]['epoch']
            killed = time.monotonic()
            started[2].send_signal(signal.SIGKILL)
            wait_until(lambda: any(line['epoch'] > epoch for line in metrics(folder)[-3:]), 'a step on the node that is left')
            return time.monotonic() - killed
        finally:
            for process in reversed(started):
                process.terminate()
            for process in started:
                process.wait(timeout=WAIT_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--steps', type=int, default=8)
    parser.add_argument('--samples', type=int, default=8, help='of a step')
    parser.add_argument('--ranks', type=int, nargs='+', default=[1, 2])
    parser.add_argument('--kills', type=int, default=10)
    arguments = parser.parse_args()
    bazel_bin = launch_bench.build('//launcher:convene', '//launcher:convened', '//worker_runtime/trainer:convene-train')
    print('| ranks | flags | a step, s | beside plain |\n|---|---|---|---|')
    for ranks in arguments.ranks:
        batch = ['--global-batch-size', str(arguments.samples), '--steps', str(arguments.steps)]
        rounds = [{name: step_seconds(bazel_bin, ranks, batch, flags) for name, flags in VARIANTS.items()} for _ in range(arguments.rounds)]
        for name in VARIANTS:
            seconds = statistics.median(each[name] for each in rounds)
            ratio = statistics.median(each[name] / each['plain'] for each in rounds)
            print(f'| {ranks} | {name} | {seconds:.3f} | {ratio:.3f} |', flush=True)
    if arguments.kills == 0:
        return 0
    kills = sorted(seconds_of_a_lost_node(bazel_bin) for _ in range(arguments.kills))
    print(f'\nA node killed, until the next step: median {statistics.median(kills):.2f} s, {kills[0]:.2f} to {kills[-1]:.2f} ({len(kills)} kills).')
    return 0


if __name__ == '__main__':
    sys.exit(main())
