"""The parts `first` and `second`: what to run in which order when a GPU is there for fifteen minutes. No side effects but reading."""

import json
import os
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import layouts
import test_binaries

_KERNELS = '//worker_runtime/ops/cuda:kernels_test'
_ATTENTION = test_binaries.SLOWEST_TEST


class Stage(NamedTuple):
    """Items of one part that follow each other."""
    part: str
    only: Tuple[str, ...]  # their names; empty: all
    seconds: float         # its share of a session's time, beside the other stages' seconds


# Each stage rests on the ones before it: kernels and products, then losses, then speed. PyTorch is first asked for by the second.
FIRST = [
    Stage('ops', (_KERNELS, '//worker_runtime/ops/cuda/matmul:matmul_test', '//worker_runtime/device/cuda:device_test',
                  '//worker_runtime/device/cuda:graph_test'), 60),
    Stage('layouts', ('fp32, one rank', 'bf16, one rank', 'fp32, dp2'), 180),
    Stage('bench', (f'{test_binaries.KERNELS_BENCH}, copy', f'{test_binaries.LONGEST_BENCH}, 8192 x 8192 x 8192'), 40),
    Stage('bench', ('llama-3.2-1b, 8 x 2048',), 210),
]
# For the time that unproven items of `first` leave: memory errors before figures, and two more axes of ranks.
SECOND = [
    Stage('sanitize', (_KERNELS,), 50),
    Stage('ops', (_ATTENTION,), 30),
    Stage('bench', (test_binaries.KERNELS_BENCH,), 20),
    Stage('layouts', ('fp32, tp2', 'fp32, pp2', layouts.DETERMINISTIC), 50),
]
SECONDS = {'first': 500.0, 'second': 150.0}


def read_rows(path: str) -> List[Dict[str, Any]]:
    """The results of an earlier call, of its folder or its gpu_check.json. OSError, ValueError where it is none."""
    with open(os.path.join(path, 'gpu_check.json') if os.path.isdir(path) else path, encoding='utf-8') as file:
        whole = json.load(file)
    if not isinstance(whole, dict) or not isinstance(whole.get('results'), list):
        raise ValueError(f'{path} holds no results of gpu_check')
    return whole['results']


def unproven(calls: Sequence[Sequence[Dict[str, Any]]], planned: Sequence[Stage] = tuple(FIRST)) -> List[Stage]:
    """The planned items that no call came to, and every item of which the last call that came to it failed or skipped a row. In the order of the plan.
    Rows of the part `machine` are no items: each call makes them anew."""
    bad: Dict[Tuple[str, str], bool] = {}
    for rows in calls:
        seen = [(row['part'], row['item']) for row in rows if row['item'] and row['part'] != 'machine']
        failing = {(row['part'], row['item']) for row in rows if row['outcome'] in ('failed', 'skipped')}
        bad.update({key: key in failing for key in seen})
    stages = []
    for stage in planned:
        left = tuple(name for name in stage.only if bad.pop((stage.part, name), True))
        stages += [stage._replace(only=left, seconds=stage.seconds * len(left) / len(stage.only))] if left else []
    for part in dict.fromkeys(part for part, _ in bad):
        names = tuple(name for (owner, name), failed in bad.items() if owner == part and failed)
        stages += [Stage(part, names, 20.0 * len(names))] if names else []
    return stages


def plan(session: str, calls: Sequence[Sequence[Dict[str, Any]]]) -> List[List[Stage]]:
    """Groups of stages. Each group has all the time that the groups before it leave."""
    return [FIRST] if session == 'first' else [unproven(calls) if calls else [], SECOND]
