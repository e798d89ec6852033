#!/usr/bin/python3
"""`convene plan --measure` beside our own trainer: the step time on this machine's CPU, layout by layout.

usage: tests/bench/plan_bench.py [--rounds 3] [--steps 8] [--only WORD]
Before and after each training the machine is measured as it is then (`convene bench --save FILE all_reduce compute`, with as many ranks and threads as the
training has), and the plan is the mean of the plans by these two. A machine whose speed changes so changes both. Prints for each layout the medians of the
planned and the measured step and of their ratio, and how many ratios are within 15 %.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Dict, List, NamedTuple, Tuple

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import launch_bench  # noqa: E402  (the line above keeps __pycache__ out of the tree)
import train_bench  # noqa: E402

SEQUENCE = 128


class Case(NamedTuple):
    model: str
    ranks: int
    samples: int  # of a step
    micro_batch: int
    flags: Tuple[str, ...] = ()  # that the plan and the trainer share
    precision: str = 'fp32'

    def name(self) -> str:
        words = ' '.join(self.flags).replace('--', '')
        return f'{self.model} {self.precision}, {self.ranks} ranks, {self.samples} samples by {self.micro_batch}, {words}'.rstrip(', ')


ONE, TP2, PP2 = ('--tp-size', '1', '--pp-size', '1'), ('--tp-size', '2', '--pp-size', '1'), ('--tp-size', '1', '--pp-size', '2')
CASES = [
    Case('llama-15m', 1, 4, 1, ONE), Case('llama-15m', 1, 4, 4, ONE), Case('llama-15m', 1, 4, 2, (*ONE, '--recompute', 'full')),
    Case('llama-15m', 1, 4, 4, ONE, 'bf16'), Case('llama-tiny', 1, 32, 8, ONE),
    Case('llama-15m', 2, 4, 1, (*ONE, '--zero-stage', '1')), Case('llama-15m', 2, 4, 2, (*ONE, '--zero-stage', '2')),
    Case('llama-15m', 2, 4, 2, (*ONE, '--zero-stage', '3')), Case('llama-15m', 2, 4, 2, TP2), Case('llama-15m', 2, 4, 1, PP2),
    Case('llama-15m', 2, 4, 1, (*PP2, '--pp-virtual-stages', '2')), Case('llama-15m', 2, 4, 2, (*ONE, '--zero-stage', '1'), 'bf16'),
    Case('llama-tiny', 2, 32, 8, (*ONE, '--zero-stage', '1')),
    Case('llama-15m', 4, 4, 1, (*ONE, '--zero-stage', '1')), Case('llama-15m', 4, 4, 2, (*TP2, '--zero-stage', '1')),
    Case('llama-15m', 4, 4, 1, (*PP2, '--zero-stage', '1')), Case('llama-15m', 4, 4, 1, ('--tp-size', '2', '--pp-size', '2')),
]


def environment(ranks: int) -> Dict[str, str]:
    return {**os.environ, 'OMP_NUM_THREADS': str(max(1, len(os.sched_getaffinity(0)) // ranks))}


def output_of(command: List[str], ranks: int) -> str:
    done = subprocess.run(command, env=environment(ranks), capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f'plan_bench: {" ".join(command)} ended with {done.returncode}:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}')
    return done.stdout


def batch_flags(case: Case) -> List[str]:
    return ['--model', case.model, '--precision', case.precision, '--sequence-length', str(SEQUENCE), '--global-batch-size', str(case.samples),
            '--micro-batch-size', str(case.micro_batch), *case.flags]


def measure(convene: str, ranks: int) -> str:
    """The text of a file for --measure."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'measured.json')
        output_of([convene, 'bench', '--device', 'cpu', '--nproc-per-node', str(ranks), '--save', path, '-b', '1K', '-e', '4M', '-f', '16', '-c', '0',
                   'all_reduce', 'compute'], ranks)
        with open(path, encoding='utf-8') as file:
            return file.read()


def planned_seconds(convene: str, case: Case, measured: str) -> float:
    command = [convene, 'plan', '--gpu', 'cpu', '--gpus', str(case.ranks), '--nodes-of', str(case.ranks), '--json', '--layouts', '1', '--cp-size', '1',
               *batch_flags(case)]
    for flag, value in (('--recompute', 'none'), ('--pp-virtual-stages', '1')):
        if flag not in case.flags:
            command += [flag, value]
    with tempfile.NamedTemporaryFile('w', suffix='.json') as file:
        file.write(measured)
        file.flush()
        answer = output_of([*command, '--measure', file.name], case.ranks)
    return float(json.loads(answer)['layouts'][0]['step_seconds'])


def trained_seconds(bazel_bin: str, case: Case, data: str, steps: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, 'metrics.jsonl')
        schedule = ['--pp-schedule', 'interleaved'] if '--pp-virtual-stages' in case.flags else []
        output_of([f'{bazel_bin}/launcher/convene', 'run', '--standalone', '--nproc-per-node', str(case.ranks),
                   f'{bazel_bin}/worker_runtime/trainer/convene-train', *batch_flags(case), *schedule, '--data', data, '--steps', str(steps),
                   '--token-cache-dir', folder, '--validation-every', '0', '--validation-samples', '1', '--metrics-file', metrics, '--device', 'cpu'],
                  case.ranks)
        with open(metrics, encoding='utf-8') as file:
            lines = [json.loads(line) for line in file]
    return statistics.median(train_bench.counted([line['step_seconds'] for line in lines if 'step_seconds' in line]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--steps', type=int, default=8)
    parser.add_argument('--only', default='', help='cases whose name has this word')
    arguments = parser.parse_args()
    bazel_bin = launch_bench.build('//launcher:convene', '//worker_runtime/trainer:convene-train')
    convene = f'{bazel_bin}/launcher/convene'
    data = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'RESULTS.md')
    cases = [case for case in CASES if arguments.only in case.name()]
    pairs: Dict[Case, List[Tuple[float, float]]] = {case: [] for case in cases}
    for number in range(arguments.rounds):
        for ranks in sorted({case.ranks for case in cases}):
            before = measure(convene, ranks)
            for case in [case for case in cases if case.ranks == ranks]:
                trained = trained_seconds(bazel_bin, case, data, arguments.steps)
                after = measure(convene, ranks)
                plan = (planned_seconds(convene, case, before) + planned_seconds(convene, case, after)) / 2
                before = after
                pairs[case].append((plan, trained))
                print(f'round {number}: {case.name()}: plan {plan:.3f}, trained {trained:.3f}', file=sys.stderr)
    within = 0
    print('| layout | plan, s | trained, s | plan / trained |\n|---|---|---|---|')
    for case in cases:
        plan, trained = (statistics.median(values) for values in zip(*pairs[case]))
        ratio = statistics.median(plan / trained for plan, trained in pairs[case])
        within += abs(ratio - 1) <= 0.15
        print(f'| {case.name()} | {plan:.3f} | {trained:.3f} | {ratio:.2f} |')
    print(f'\n{within} of {len(cases)} layouts are within 15 %.')
    return 0


if __name__ == '__main__':
    sys.exit(main())
