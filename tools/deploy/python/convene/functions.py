"""How a function reaches the workers, and how its results come back: as files in a folder that only this user can read.

FOLDER/function             pickle: how to prepare the worker; then pickle: (function, arguments)
FOLDER/EPOCH.RANK.result    pickle: what the function returned in that worker
"""

import multiprocessing  # it names the main module __mp_main__ too, as the workers' results do
import os
import pickle
import re
import sys
from typing import Any, Callable, Dict, Tuple

FUNCTION = 'function'
_RESULT = re.compile(r'(\d+)\.(\d+)\.result')


def _preparation() -> Dict[str, Any]:
    """The argument of multiprocessing.spawn.prepare for the worker, which becomes like a process that multiprocessing spawns: it has this
    process's sys.path and sys.argv, and imports the main module once more as __mp_main__. So a script needs `if __name__ == '__main__':` around
    the code for this process alone. Without `init_main...` there is no main module to import, as in a notebook.
    """
    main = sys.modules['__main__']
    told: Dict[str, Any] = {'sys_path': [path or os.getcwd() for path in sys.path], 'sys_argv': sys.argv}
    name = getattr(getattr(main, '__spec__', None), 'name', None)
    path = getattr(main, '__file__', None)
    if name is not None:
        told['init_main_from_name'] = name
    elif path is not None and os.path.isfile(path):
        told['init_main_from_path'] = os.path.abspath(path)
    return told


def _pickled(call: Tuple[Callable[..., Any], Tuple[Any, ...]], has_main: bool) -> bytes:
    """By reference, as multiprocessing does; with cloudpickle what no reference can name: functions of notebooks, lambdas, closures."""
    name = getattr(call[0], '__qualname__', repr(call[0]))
    try:
        data = pickle.dumps(call)
        if has_main or b'__main__' not in data:
            return data
        why = 'it belongs to a session (a notebook, python -c) that the workers cannot import'
    except Exception as error:  # whatever the objects' own pickling raises
        why = str(error)
    try:
        import cloudpickle
    except ImportError:
        raise ValueError(f'elastic_launch cannot send {name} or its arguments to the workers: {why}. Put the function into a module that '
                         'the workers can import, or `pip install cloudpickle`') from None
    try:
        return cloudpickle.dumps(call)
    except Exception as error:
        raise ValueError(f'elastic_launch cannot send {name} or its arguments to the workers: {error}. Create what cannot be pickled '
                         '(locks, open files, connections) inside the function') from error


def write_function(folder: str, function: Callable[..., Any], arguments: Tuple[Any, ...]) -> None:
    """ValueError: the function or an argument cannot be sent."""
    preparation = _preparation()
    data = _pickled((function, arguments), any(key.startswith('init_main') for key in preparation))
    with open(os.path.join(folder, FUNCTION), 'wb') as file:
        pickle.dump(preparation, file)
        file.write(data)


def read_results(folder: str) -> Dict[int, Any]:
    """Of this node's workers, by their global rank. An earlier epoch's results do not count."""
    found = [(int(match.group(1)), int(match.group(2)), name) for name in os.listdir(folder) if (match := _RESULT.fullmatch(name))]
    last = max((epoch for epoch, _, _ in found), default=0)
    results = {}
    for epoch, rank, name in sorted(found):
        if epoch != last:
            continue
        with open(os.path.join(folder, name), 'rb') as file:
            try:
                results[rank] = pickle.load(file)
            except Exception as error:
                raise ValueError(f'the result of rank {rank} was pickled there but cannot be read here: {error}. Return plain values, or '
                                 f'objects of a module that this process can import ({sys.executable})') from error
    return results
