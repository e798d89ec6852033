"""Convene's launcher for Python: elastic_launch in place of torch.distributed.launcher's, and `python -m convene.run`.

Nothing here imports PyTorch, but for torch_launcher, which puts this launcher into PyTorch's place, and checkpoint, which keeps a script's state.
"""

from typing import Any

__all__ = ['ChildFailedError', 'DefaultLogsSpecs', 'LaunchConfig', 'LaunchError', 'ProcessFailure', 'SignalException', 'Std', 'elastic_launch',
           'launch_agent']

_MODULE_OF = {'ChildFailedError': 'errors', 'LaunchError': 'errors', 'ProcessFailure': 'errors', 'SignalException': 'errors',
              'DefaultLogsSpecs': 'config', 'LaunchConfig': 'config', 'Std': 'config', 'elastic_launch': 'elastic', 'launch_agent': 'elastic'}


def __getattr__(name: str) -> Any:
    """Loads what is asked for, so that `python -m convene.run` loads nothing else."""
    if name == '__version__':
        from importlib.metadata import version
        return version('convene')
    if name not in _MODULE_OF:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from importlib import import_module
    return getattr(import_module(f'{__name__}.{_MODULE_OF[name]}'), name)
