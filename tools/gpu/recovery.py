"""How long a job takes from the kill of a worker to its next step: with a spare process that has the GPU open already, and without."""

import os
import signal
import statistics
import time
from typing import Dict, List, NamedTuple, Optional

import curves
import processes

KILL_AFTER_STEP = 5
SPARES_ARE_READY = 'spares that are ready to become workers'  # agent/warm/warm_pool.cc
TURNS = 3
_POLL_SECONDS = 0.02


class Recovered(NamedTuple):
    seconds: Optional[float]  # None: `why`
    why: str
    cut: bool = False  # only its time was up
    output: str = ''


def recover(command: List[str], environment: Dict[str, str], metrics: str, with_spares: bool, limit_s: float) -> Recovered:
    """Runs a job, kills rank 0 of its first epoch when it makes steps (and its spares are ready), and stops it at its next step."""
    deadline = time.monotonic() + limit_s
    killed_at = seconds = None
    with processes.Program(command, environment) as program:
        while not program.ended() and time.monotonic() < deadline and seconds is None:
            curve = curves.read(metrics)
            if killed_at is None and max(curve, default=0) >= KILL_AFTER_STEP and (not with_spares or SPARES_ARE_READY in program.output()):
                pid = processes.worker_of_rank(0, 'convene-train')
                if pid is not None:
                    epoch = max(step.epoch for step in curve.values())
                    killed_at = time.monotonic()
                    os.kill(pid, signal.SIGKILL)
            elif killed_at is not None and any(step.epoch > epoch for step in curve.values()):
                seconds = time.monotonic() - killed_at
            time.sleep(_POLL_SECONDS)
        done = program.wait(0)
    if seconds is not None:
        return Recovered(seconds, '', output=done.output)
    what = 'the next step after the kill' if killed_at is not None else 'a worker was killed' if not with_spares else 'a worker was killed, with spares ready'
    if done.code is None:
        return Recovered(None, f'stopped after {limit_s:.0f} s, before {what}', True, done.output)
    return Recovered(None, f'ended with {done.code} before {what}: {processes.last_line(done.output)}', output=done.output)


def summary(seconds: Dict[str, List[float]]) -> str:
    """`seconds`: of each turn, by kind of start."""
    return ', '.join(f'{kind}: next step {statistics.median(turns):.2f} s after the kill (median of {len(turns)})' for kind, turns in seconds.items())
