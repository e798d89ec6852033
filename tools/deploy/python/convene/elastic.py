"""elastic_launch: a job's part on this node, from Python. The launcher is the program `convene`; this waits for it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

from . import config as configuration
from . import errors, folders, functions, programs, worker

Entrypoint = Union[Callable[..., Any], str]


class elastic_launch:
    """`elastic_launch(config, entrypoint)(*args)` runs entrypoint(*args) in nproc_per_node workers on this node, as part of a job.

    Drop-in for torch.distributed.launcher.api.elastic_launch. `config`: a LaunchConfig. `entrypoint`: a function, of which the call returns
    {global rank: result} for this node's workers; or a program, of which `args` are the words (${local_rank} in them is the worker's): {}.

    Raises ChildFailedError with the job's first failed worker when no restart is left; LaunchError when the job ends without a failed worker
    (too few nodes, bad settings); ValueError for a function or an argument that cannot be sent; KeyboardInterrupt after Ctrl-C and
    SignalException after another of config.signals_to_handle, once the workers have ended in order.
    """

    def __init__(self, config: Any, entrypoint: Entrypoint) -> None:
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> Dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args))


def launch_agent(config: Any, entrypoint: Entrypoint, args: List[Any]) -> Dict[int, Any]:
    """The same as elastic_launch(config, entrypoint)(*args)."""
    if worker.IMPORTING in os.environ:
        raise RuntimeError('elastic_launch was called while a worker imported the main module, so each worker would launch workers. '
                           "Put the call under `if __name__ == '__main__':` in the script")
    with folders.launch_folder() as (folder, locks):
        if isinstance(entrypoint, str):
            command = [entrypoint, *map(str, args)]
        else:
            functions.write_function(folder, entrypoint, tuple(args))
            command = [sys.executable, *subprocess._args_from_interpreter_flags(), '-u', worker.__file__, folder]
        outcome_file = os.path.join(folder, 'outcome')
        flags = configuration.flags_of(config)
        if not config.run_id:
            flags += ['--rdzv-id', uuid.uuid4().hex]
        launcher = programs.launcher()
        # Named torchrun it asks no scheduler: the config says all, as it does to PyTorch's launcher. The '--' before the command keeps one that the
        # command's own arguments begin with.
        words = [sys.executable, '-I', '-S', os.path.join(os.path.dirname(worker.__file__), 'leash.py'), str(os.getpid()),
                 launcher, 'torchrun', *flags, '--outcome-file', outcome_file, '--no-python', '--', *command]
        # A worker with a function reads nothing, as under multiprocessing.
        stdin = None if isinstance(entrypoint, str) else subprocess.DEVNULL
        signals = getattr(config, 'signals_to_handle', 'SIGTERM,SIGINT,SIGHUP,SIGQUIT')
        exit_code = _run_to_the_end(words, stdin, locks, [getattr(signal, name.strip()) for name in signals.split(',') if name.strip()])
        _raise_unless_good(exit_code, outcome_file, _name_of(entrypoint, args))
        return functions.read_results(folder)


def _name_of(entrypoint: Entrypoint, args: List[Any]) -> str:
    if not isinstance(entrypoint, str):
        return getattr(entrypoint, '__qualname__', repr(entrypoint))
    if entrypoint == sys.executable:
        return next((str(arg) for arg in args if not str(arg).startswith('-')), entrypoint)
    return entrypoint


@contextlib.contextmanager
def _passed_on(process: subprocess.Popen, signals: List[signal.Signals]) -> Iterator[List[signal.Signals]]:
    """While it lasts, this process's signals go to `process`; yields those that came. Python takes signals in its main thread only."""
    came: List[signal.Signals] = []

    def pass_on(number: int, _: Any) -> None:
        came.append(signal.Signals(number))
        process.send_signal(number)

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {number: signal.signal(number, pass_on) for number in signals if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_to_the_end(words: List[str], stdin: Optional[int], inherited: Tuple[int, ...], signals: List[signal.Signals]) -> int:
    """The exit code. Raises KeyboardInterrupt or SignalException after a signal, when the process has ended."""
    with subprocess.Popen(words, stdin=stdin, pass_fds=inherited) as process:
        with _passed_on(process, signals) as came:
            exit_code = process.wait()
    if not came:
        return exit_code
    if came[0] == signal.SIGINT:
        raise KeyboardInterrupt
    raise errors.SignalException(f'process {os.getpid()} got {came[0].name}; its workers have ended', came[0])


def _read_outcome(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path, encoding='utf-8') as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def _raise_unless_good(exit_code: int, outcome_file: str, name: str) -> None:
    if exit_code == 0:
        return
    outcome = _read_outcome(outcome_file)
    if outcome is None:
        raise errors.LaunchError(f'`convene run` ended with {exit_code} before the job began; its words on stderr say why', exit_code)
    failure: Optional[Tuple[int, errors.ProcessFailure]] = errors.failure_of(outcome)
    if failure is None:
        raise errors.LaunchError(outcome['explanation'] or f'the job ended with {outcome["exit_code"]}', outcome['exit_code'])
    raise errors.ChildFailedError(name, dict([failure]))
