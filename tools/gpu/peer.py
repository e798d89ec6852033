"""PyTorch beside us: tests/bench/torch_train_worker.py in a process of its own, and its answers."""

import json
import os
from typing import Any, Dict, List, NamedTuple

import machine
import processes


class Answer(NamedTuple):
    """The answer for one case."""
    losses: List[float]
    step_seconds: List[float]
    facts: Dict[str, Any]  # the rest of what it said


def parse(output: str) -> List[Answer]:
    """One for each line that is an answer; warnings stand between them."""
    answers = []
    for line in output.splitlines():
        try:
            record = json.loads(line) if line.startswith('{') else {}
        except ValueError:
            continue
        if 'losses' in record and 'step_seconds' in record:
            answers.append(Answer(record.pop('losses'), record.pop('step_seconds'), record))
    return answers


def run(cases: List[Dict[str, Any]], place: machine.Place, limit_s: float) -> processes.Done:
    """parse() tells the answers: fewer than the cases where it failed or ran out of time."""
    command = [place.torch['python'], os.path.join(place.bundle, 'tests/bench/torch_train_worker.py'), json.dumps(cases)]
    return processes.run(command, machine.torch_environment(place.environment), limit_s)
