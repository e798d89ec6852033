"""How a launch ends when it does not end well. The names and fields are those of torch.distributed.elastic."""

import dataclasses
import json
import os
import signal
from typing import Any, Dict, Optional, Tuple


class LaunchError(RuntimeError):
    """The job ended without a failed worker of its own: bad settings, too few nodes, a lost rendezvous."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code  # `convene run --help-exit-codes` explains it


class SignalException(Exception):
    """This process got a signal that ends the job; the workers have ended in order."""

    def __init__(self, text: str, sigval: signal.Signals) -> None:
        super().__init__(text)
        self.sigval = sigval


@dataclasses.dataclass
class ProcessFailure:
    """One failed worker, maybe of another node."""
    local_rank: int
    pid: int
    exitcode: int     # minus the signal where one killed it
    error_file: str   # on `host`; '<N/A>': the worker wrote none
    host: str
    why: str          # such as 'killed by SIGKILL'
    message: str      # the worker's traceback, else the first lines of its record, else `why`
    timestamp: int    # seconds since 1970 by the worker's record; 0: it wrote none
    error_file_data: Dict[str, Any]  # {} where the file is not on this machine


class ChildFailedError(Exception):
    """A worker failed and no restart was left. `failures`: the job's first failed worker by its global rank."""

    def __init__(self, name: str, failures: Dict[int, ProcessFailure]) -> None:
        self.name = name
        self.failures = failures
        rank, failure = self.get_first_failure()
        text = (f'{name} failed: rank {rank} (local rank {failure.local_rank}, pid {failure.pid}) on {failure.host}: {failure.why}')
        super().__init__(text if failure.message == failure.why else f'{text}\n{failure.message}')

    def get_first_failure(self) -> Tuple[int, ProcessFailure]:
        return min(self.failures.items(), key=lambda item: item[1].timestamp)


def _read_record(path: str) -> Dict[str, Any]:
    """A worker's error file; {}: there is none here."""
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            record = json.load(file)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _told(record: Dict[str, Any]) -> Tuple[str, int]:
    """The traceback or message of a record, and its time; ('', 0) for what it lacks. Any program may write one, in either form of PyTorch's."""
    message = record.get('message', '')
    details = message.get('extraInfo') if isinstance(message, dict) else record
    details = details if isinstance(details, dict) else {}
    text = details.get('py_callstack') or message.get('message', '') if isinstance(message, dict) else message
    time = str(details.get('timestamp', ''))
    return str(text).rstrip(), int(time) if time.isdigit() else 0


def failure_of(outcome: Dict[str, Any]) -> Optional[Tuple[int, ProcessFailure]]:
    """The first failed worker and its rank, from the object that `convene run --outcome-file` writes; None: no worker failed."""
    first = outcome['first_failure']
    if first is None:
        return None
    record = _read_record(first['error_file']) if os.path.isfile(first['error_file']) else {}
    text, seconds = _told(record)
    return first['rank'], ProcessFailure(
        local_rank=first['local_rank'], pid=first['pid'], exitcode=-first['signal'] if first['signal'] else first['exit_code'],
        error_file=first['error_file'] or '<N/A>', host=first['host'], why=first['why'],
        message=text or first['error'] or first['why'], timestamp=seconds, error_file_data=record)
