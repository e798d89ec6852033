"""Puts Convene into the place of PyTorch's launcher, for tools that call it from Python: accelerate, Lightning's `fabric run`, torchrun itself.

usage: python -m convene.torch_launcher PROGRAM [ARGUMENT...]     PROGRAM: a Python program in PATH, such as accelerate
       python -m convene.torch_launcher -m MODULE [ARGUMENT...]
In Python: convene.torch_launcher.install(), before the tool launches.
"""

import runpy
import shutil
import sys
from typing import Any, Dict, List

from . import elastic, errors


def _launch_agent(config: Any, entrypoint: elastic.Entrypoint, args: List[Any], **_: Any) -> Dict[int, Any]:
    """launch_agent with PyTorch's exceptions, for callers that catch those."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
    try:
        return elastic.launch_agent(config, entrypoint, args)
    except errors.ChildFailedError as error:
        rank, first = error.get_first_failure()
        failure = ProcessFailure(first.local_rank, first.pid, first.exitcode, first.error_file)
        raise ChildFailedError(error.name, {rank: failure}) from error
    except errors.SignalException as error:
        raise SignalException(str(error), error.sigval) from error


def install() -> None:
    """From now on each torch.distributed.launcher.elastic_launch of this process is Convene's."""
    import torch.distributed.launcher
    import torch.distributed.launcher.api
    # PyTorch's elastic_launch looks this function up at each call, so whoever has imported that class already is served too.
    torch.distributed.launcher.api.launch_agent = _launch_agent
    torch.distributed.launcher.launch_agent = _launch_agent


def main() -> int:
    words = sys.argv[1:]
    if words in ([], ['-m'], ['-h'], ['--help']):
        print((__doc__ or '').strip())
        return 0 if words in (['-h'], ['--help']) else 64
    install()
    if words[0] == '-m':
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name='__main__', alter_sys=True)
        return 0
    path = shutil.which(words[0])
    if path is None:
        print(f'convene.torch_launcher: no program {words[0]} in PATH', file=sys.stderr)
        return 64
    sys.argv = [path, *words[1:]]
    runpy.run_path(path, run_name='__main__')
    return 0


if __name__ == '__main__':
    sys.exit(main())
