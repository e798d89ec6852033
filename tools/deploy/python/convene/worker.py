"""One worker of elastic_launch: calls the function and leaves what it returned in a file. Run as a script: worker.py FOLDER.

Only the standard library is imported here; sys.path becomes the launching process's before anything else is.
"""

import json
import multiprocessing.spawn
import os
import pickle
import sys
import time
import traceback

# Set while the launching process's main module is imported here: elastic_launch refuses then, else each worker would launch workers.
IMPORTING = 'CONVENE_WORKER_IMPORTS_MAIN'


def record(error: BaseException) -> None:
    """Writes the error to $TORCHELASTIC_ERROR_FILE in the form of torch.distributed.elastic, unless a @record has done so."""
    path = os.environ.get('TORCHELASTIC_ERROR_FILE')
    if not path or (os.path.exists(path) and os.path.getsize(path) > 0):
        return
    text = ''.join(traceback.format_exception(type(error), error, error.__traceback__))
    data = {'message': {'message': f'{type(error).__name__}: {error}', 'extraInfo': {'py_callstack': text, 'timestamp': str(int(time.time()))}}}
    with open(path, 'w', encoding='utf-8') as file:
        json.dump(data, file)


def call(folder: str) -> object:
    with open(os.path.join(folder, 'function'), 'rb') as file:
        preparation = pickle.load(file)
        os.environ[IMPORTING] = '1'
        try:
            multiprocessing.spawn.prepare(preparation)
        finally:
            del os.environ[IMPORTING]
        function, arguments = pickle.load(file)
    try:
        return function(*arguments)
    except SystemExit as end:
        if end.code in (None, 0):
            return None
        raise


def leave_result(folder: str, result: object) -> None:
    try:
        data = pickle.dumps(result)
    except Exception as error:
        raise TypeError(f'the function returned a {type(result).__name__} that cannot be sent back: {error}. Return plain values') from error
    path = os.path.join(folder, f'{os.environ["CONVENE_EPOCH"]}.{os.environ["RANK"]}.result')
    with open(f'{path}.part', 'wb') as file:
        file.write(data)
    os.rename(f'{path}.part', path)


def main() -> None:
    folder = sys.argv[1]
    try:
        leave_result(folder, call(folder))
    except BaseException as error:
        record(error)
        raise


if __name__ == '__main__':
    main()
