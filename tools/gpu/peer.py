"""PyTorch beside us: tests/bench/torch_gpu_worker.py in a process of its own, and its answer."""

import json
import os
from typing import Any, Dict, List, NamedTuple

import machine
import processes


class Answer(NamedTuple):
    losses: List[float]  # [] when it failed: the log says why
    step_seconds: List[float]
    facts: Dict[str, Any]  # the rest of what it said
    log: str
    seconds: float


def parse(output: str) -> Dict[str, Any]:
    """The last line that is a JSON object; {} when there is none."""
    for line in reversed(output.splitlines()):
        if line.startswith('{'):
            try:
                return json.loads(line)
            except ValueError:
                return {}
    return {}


def run(case: Dict[str, Any], bundle: str, torch: Dict[str, Any], environment: Dict[str, str], limit_s: float) -> Answer:
    command = [torch['python'], os.path.join(bundle, 'tests/bench/torch_gpu_worker.py'), json.dumps(case)]
    done = processes.run(command, machine.torch_environment(environment), limit_s)
    facts = parse(done.output) if done.code == 0 else {}
    log = done.output if done.code is not None else f'{done.output}\nstopped after {limit_s:.0f} s'
    return Answer(facts.pop('losses', []), facts.pop('step_seconds', []), facts, log, done.seconds)
