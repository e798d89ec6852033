#!/usr/bin/python3
"""Training with sharded parameters over several processes of this machine, on the CPU: ZeRO-3 and ZeRO-1 beside PyTorch's FSDP2 on gloo.

usage: tests/bench/fsdp_bench.py [--ranks 4] [--models llama-15m] [--rounds 3] [--steps 8]
The rivals run in turns, with the same shape, batch, sequence and one thread a process; the first quarter of each run's steps is warm-up and not
counted. Prints medians over all counted steps, the largest process's peak memory, and ratios.
"""

import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Dict, List, Tuple

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import launch_bench  # noqa: E402  (the line above keeps __pycache__ out of the tree)
import train_bench  # noqa: E402
from tests.support import torch_environment  # noqa: E402  (launch_bench found the way)

MICRO_BATCH_SIZE = 2  # a rank's share of a step


def run(command: List[str], environment: Dict[str, str]) -> Tuple[str, int]:
    """Its output, and the peak memory of its largest process."""
    with tempfile.TemporaryFile('w+') as output, tempfile.TemporaryFile('w+') as errors:
        child = subprocess.Popen(command, env={**environment, 'OMP_NUM_THREADS': '1'}, stdout=output, stderr=errors)
        _, status, usage = os.wait4(child.pid, 0)
        output.seek(0)
        errors.seek(0)
        if status != 0:
            sys.exit(f'fsdp_bench: {" ".join(command)} ended with {os.waitstatus_to_exitcode(status)}:\n{errors.read()[-3000:]}')
        return output.read(), usage.ru_maxrss * 1024


def run_convene(bazel_bin: str, data: str, model: train_bench.Model, ranks: int, steps: int, stage: int) -> train_bench.Result:
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, 'metrics.jsonl')
        command = [f'{bazel_bin}/launcher/convene', 'run', '--standalone', '--nproc-per-node', str(ranks),
                   f'{bazel_bin}/worker_runtime/trainer/convene-train', '--model', 'llama-15m', *train_bench.shape_flags(model), '--data', data,
                   '--steps', str(steps), '--token-cache-dir', folder, '--global-batch-size', str(MICRO_BATCH_SIZE * ranks), '--micro-batch-size',
                   str(MICRO_BATCH_SIZE), '--sequence-length', str(model.sequence_length), '--validation-every', '0', '--validation-samples', '1',
                   '--metrics-file', metrics, '--device', 'cpu', '--precision', 'fp32', '--zero-stage', str(stage)]
        _, peak = run(command, dict(os.environ))
        with open(metrics, encoding='utf-8') as file:
            lines = [json.loads(line) for line in file]
        return train_bench.Result(train_bench.counted([line['step_seconds'] for line in lines if 'step_seconds' in line]), peak)


def run_torch(data: str, model: train_bench.Model, ranks: int, steps: int) -> train_bench.Result:
    case = {**model.shape, 'micro_batch_size': MICRO_BATCH_SIZE, 'sequence_length': model.sequence_length, 'steps': steps, 'data': data, 'seed': 1,
            'learning_rate': 1e-3}
    command = [torch_environment.PYTHON, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', str(ranks),
               os.path.join(train_bench.HERE, 'torch_fsdp_worker.py'), json.dumps(case)]
    output, peak = run(command, torch_environment.torch_environment())
    answer = json.loads(next(line for line in output.splitlines() if line.startswith('{')))
    return train_bench.Result(train_bench.counted(answer['step_seconds']), peak)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--ranks', type=int, default=4)
    parser.add_argument('--models', default='llama-15m')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--steps', type=int, default=8)
    arguments = parser.parse_args()
    try:
        torch_version = torch_environment.install_torch()
    except torch_environment.NoTorch as error:
        sys.exit(f'fsdp_bench: {error}')
    bazel_bin = launch_bench.build('//launcher:convene', '//worker_runtime/trainer:convene-train')
    data = glob.glob('/usr/share/perl/*/pod/perldiag.pod')[0]
    print(f'PyTorch {torch_version}, {arguments.ranks} processes of one thread, {arguments.rounds} rounds of {arguments.steps} steps')
    for name in arguments.models.split(','):
        model = train_bench.MODELS[name]
        results: Dict[str, List[train_bench.Result]] = {'zero-3': [], 'zero-1': [], 'FSDP2': []}
        for _ in range(arguments.rounds):
            results['zero-3'].append(run_convene(bazel_bin, data, model, arguments.ranks, arguments.steps, 3))
            results['zero-1'].append(run_convene(bazel_bin, data, model, arguments.ranks, arguments.steps, 1))
            results['FSDP2'].append(run_torch(data, model, arguments.ranks, arguments.steps))
        report(f'{name} fp32, {arguments.ranks} ranks of {MICRO_BATCH_SIZE} x {model.sequence_length} tokens a step',
               MICRO_BATCH_SIZE * arguments.ranks * model.sequence_length, results)
    return 0


def report(title: str, tokens: int, results: Dict[str, List[train_bench.Result]]) -> None:
    print(title)
    speeds = {name: tokens / statistics.median(s for run in runs for s in run.step_seconds) for name, runs in results.items()}
    peaks = {name: statistics.median(run.peak_bytes for run in runs) for name, runs in results.items()}
    for name in results:
        print(f'  {name:8} {speeds[name]:10.0f} tokens/s  {peaks[name] / 2**20:8.0f} MiB'
              f'   zero-3: {speeds["zero-3"] / speeds[name]:.2f} x the speed, {peaks["zero-3"] / peaks[name]:.2f} x the memory')


if __name__ == '__main__':
    sys.exit(main())
