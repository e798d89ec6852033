#!/usr/bin/python3
"""Training throughput and peak memory of one process on this machine's CPU, beside PyTorch eager and compiled.

usage: tests/bench/train_bench.py [--models llama-15m,llama-125m,gpt2-124m,qwen3-125m,qwen3-moe-130m]
    [--precisions fp32,bf16] [--rounds 3] [--steps 8] [--threads N]
The rivals run in turns, with the same shape, batch, sequence and threads; the first quarter of each run's steps is warm-up and
not counted. Prints medians over all counted steps, and ratios; also of the optimizer's part of a step alone: gradient norm, clipping, AdamW, and
with bf16 the rounded copy.
"""

import argparse
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from typing import Dict, List, NamedTuple

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import launch_bench  # noqa: E402  (the line above keeps __pycache__ out of the tree)
from tests.support import torch_environment  # noqa: E402  (launch_bench found the way)

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPE_KEYS = ('layers', 'hidden_size', 'ffn_size', 'heads', 'kv_heads', 'head_size', 'vocabulary_size', 'tied_embeddings')


class Model(NamedTuple):
    shape: Dict[str, int]
    micro_batch_size: int
    sequence_length: int
    named: str = 'llama-15m'  # the model whose shape is changed
    family: str = ''  # the rival is a model of transformers
    experts: Dict[str, int] = {}


MODELS = {
    'gpt2-124m': Model(dict(zip(SHAPE_KEYS, (12, 768, 3072, 12, 12, 64, 50257, 1))), 2, 512, 'gpt2-124m', 'gpt2'),
    'qwen3-125m': Model(dict(zip(SHAPE_KEYS, (12, 768, 2048, 12, 6, 64, 50304, 1))), 2, 512, 'qwen3-tiny', 'qwen3'),
    'qwen3-moe-130m': Model(dict(zip(SHAPE_KEYS, (8, 512, 1024, 8, 4, 64, 50304, 1))), 2, 512, 'qwen3-moe-tiny', 'qwen3_moe',
                            {'experts': 16, 'experts_per_token': 2, 'expert_ffn_size': 512}),
    'llama-15m': Model(dict(zip(SHAPE_KEYS, (8, 384, 1024, 8, 8, 48, 256, 0))), 8, 256),
    'llama-125m': Model(dict(zip(SHAPE_KEYS, (12, 768, 2048, 12, 12, 64, 50304, 1))), 2, 512),
}


class Result(NamedTuple):
    step_seconds: List[float]
    peak_bytes: int
    optimizer_seconds: List[float]


def counted(step_seconds: List[float]) -> List[float]:
    return step_seconds[max(1, len(step_seconds) // 4):]


def shape_flags(model: Model) -> List[str]:
    return [f'--{key.replace("_", "-")}={str(bool(value)).lower() if key == "tied_embeddings" else value}'
            for key, value in {**model.shape, **model.experts}.items()]


def profiled_optimizer_seconds(output: str) -> float:
    """Of a step, by the table that --profile prints."""
    line = re.search(r'^optimizer +([0-9.]+) ', output, re.MULTILINE)
    if line is None:
        sys.exit(f'train_bench: no line "optimizer" in the profile:\n{output[-3000:]}')
    return float(line.group(1)) / 1000


def run_convene(binary: str, data: str, model: Model, precision: str, steps: int, threads: int, profile: bool) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, 'metrics.jsonl')
        command = [binary, '--model', model.named, *shape_flags(model), '--data', data, '--steps', str(steps), '--token-cache-dir', folder,
                   '--global-batch-size', str(model.micro_batch_size), '--micro-batch-size', str(model.micro_batch_size),
                   '--sequence-length', str(model.sequence_length), '--validation-every', '0', '--validation-samples', '1',
                   '--metrics-file', metrics, '--device', 'cpu', '--precision', precision, *(['--profile'] if profile else [])]
        child = subprocess.Popen(command, env={**os.environ, 'OMP_NUM_THREADS': str(threads)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 text=True)
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        if status != 0:
            sys.exit(f'train_bench: {" ".join(command)} ended with {os.waitstatus_to_exitcode(status)}:\n{output[-3000:]}')
        with open(metrics, encoding='utf-8') as file:
            lines = [json.loads(line) for line in file]
        return Result(counted([line['step_seconds'] for line in lines if 'step_seconds' in line]), usage.ru_maxrss * 1024,
                      [profiled_optimizer_seconds(output)] if profile else [])


def run_torch(model: Model, data: str, precision: str, steps: int, threads: int, compiled: bool) -> Result:
    case = {**model.shape, **model.experts, 'micro_batch_size': model.micro_batch_size, 'sequence_length': model.sequence_length, 'steps': steps,
            'compile': compiled, 'device': 'cpu', 'precision': precision, 'data': data, 'seed': 1, 'learning_rate': 1e-3,
            **({'family': model.family} if model.family else {})}
    command = [torch_environment.PYTHON, os.path.join(HERE, 'torch_train_worker.py'), json.dumps([case])]
    done = subprocess.run(command, env={**torch_environment.torch_environment(), 'OMP_NUM_THREADS': str(threads)}, check=False,
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f'train_bench: torch_train_worker.py ended with {done.returncode}:\n{done.stderr[-3000:]}')
    answer = json.loads(done.stdout.splitlines()[-1])
    return Result(counted(answer['step_seconds']), answer['peak_bytes'], counted(answer['optimizer_seconds']))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--models', default='llama-15m,llama-125m')
    parser.add_argument('--precisions', default='fp32,bf16')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--steps', type=int, default=8)
    parser.add_argument('--threads', type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    try:
        torch_version = torch_environment.install_torch()
        if any(MODELS[name].family for name in arguments.models.split(',')):
            torch_version += f', transformers {torch_environment.install_transformers()}'
    except torch_environment.NoTorch as error:
        sys.exit(f'train_bench: {error}')
    binary = os.path.join(launch_bench.build('//worker_runtime/trainer:convene-train'), 'worker_runtime/trainer/convene-train')
    data = glob.glob('/usr/share/perl/*/pod/perldiag.pod')[0]
    print(f'PyTorch {torch_version}, {arguments.threads} threads, {arguments.rounds} rounds of {arguments.steps} steps')
    for name in arguments.models.split(','):
        for precision in arguments.precisions.split(','):
            model = MODELS[name]
            results: Dict[str, List[Result]] = {'convene': [], 'eager': [], 'compile': []}
            profiled: List[Result] = []
            for _ in range(arguments.rounds):
                results['convene'].append(run_convene(binary, data, model, precision, arguments.steps, arguments.threads, False))
                profiled.append(run_convene(binary, data, model, precision, arguments.steps, arguments.threads, True))
                results['eager'].append(run_torch(model, data, precision, arguments.steps, arguments.threads, False))
                results['compile'].append(run_torch(model, data, precision, arguments.steps, arguments.threads, True))
            report(f'{name} {precision}, {model.micro_batch_size} x {model.sequence_length} tokens a step', model, results)
            report_optimizer({**results, 'convene': profiled})
    return 0


def report(title: str, model: Model, results: Dict[str, List[Result]]) -> None:
    tokens = model.micro_batch_size * model.sequence_length
    print(title)
    speeds = {name: tokens / statistics.median(s for run in runs for s in run.step_seconds) for name, runs in results.items()}
    peaks = {name: statistics.median(run.peak_bytes for run in runs) for name, runs in results.items()}
    for name in results:
        print(f'  {name:8} {speeds[name]:10.0f} tokens/s  {peaks[name] / 2**20:8.0f} MiB'
              f'   ours: {speeds["convene"] / speeds[name]:.2f} x the speed, {peaks["convene"] / peaks[name]:.2f} x the memory')


def report_optimizer(results: Dict[str, List[Result]]) -> None:
    medians = {name: statistics.median(s for run in runs for s in run.optimizer_seconds) for name, runs in results.items()}
    print('  the optimizer alone: ' + ', '.join(f'{name} {seconds * 1000:.1f} ms ({seconds / medians["convene"]:.2f})'
                                                for name, seconds in medians.items()))


if __name__ == '__main__':
    sys.exit(main())
