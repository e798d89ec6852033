#!/usr/bin/env python3
"""Measures the fate of a worker's leftovers: shared memory that Python's resource_tracker has to unlink, and work in the background.

usage: tests/bench/leftovers_bench.py [--runs N] [--convene PATH] [--without-torch]
One worker a run, of each kind in turns. Prints how many runs left a segment in /dev/shm, or lost the background work, and the median wall
time. PyTorch's torchrun comes from tools/torch_environment.
"""

import argparse
import glob
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Dict, List

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from tests.support import torch_environment  # noqa: E402  (after the line above)
from tests.bench.launch_bench import build_convene  # noqa: E402

# A segment that nobody unlinks, of a name that this bench finds again, then the worker's end.
SEGMENT = '''
import os, signal, sys
from multiprocessing import shared_memory
segment = shared_memory.SharedMemory(create=True, size=4096, name=sys.argv[1])
'''
KINDS = {
    'exits without unlink': SEGMENT,
    'os._exit(0)': SEGMENT + 'os._exit(0)\n',
    'os._exit(1)': SEGMENT + 'os._exit(1)\n',
    'SIGKILL': SEGMENT + 'os.kill(os.getpid(), signal.SIGKILL)\n',
    'upload in the background': '''
import subprocess, sys
subprocess.Popen(['/bin/sh', '-c', 'sleep 0.5; echo done > /dev/shm/$0.done', sys.argv[1]])
''',
}
# Longer than any helper needs when it is left to itself.
PATIENCE_S = 2


class Launcher:
    def __init__(self, name: str, command: List[str], environment: Dict[str, str]):
        self.name = name
        self.command = command
        self.environment = environment


def lost(kind: str, segment: str) -> bool:
    """Whether this run's segment stays, or its upload never ends."""
    path, wanted = (f'/dev/shm/{segment}.done', True) if kind.startswith('upload') else (f'/dev/shm/{segment}', False)
    deadline = time.monotonic() + PATIENCE_S
    while os.path.exists(path) != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    is_lost = os.path.exists(path) != wanted
    for left in glob.glob(f'/dev/shm/{segment}*'):
        os.unlink(left)
    return is_lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--runs', type=int, default=30)
    parser.add_argument('--convene', help='the program to measure (default: builds //launcher:convene)')
    parser.add_argument('--without-torch', action='store_true', help='measure convene alone')
    flags = parser.parse_args()
    launchers = [Launcher('convene run', [flags.convene or build_convene(), 'run'], dict(os.environ))]
    if not flags.without_torch:
        launchers.append(Launcher('torchrun', [torch_environment.TORCHRUN], torch_environment.torch_environment()))
    with tempfile.TemporaryDirectory() as directory:
        for kind, source in KINDS.items():
            script = os.path.join(directory, 'worker.py')
            with open(script, 'w', encoding='ascii') as file:
                file.write(source)
            for launcher in launchers:
                count, seconds = 0, []
                for run in range(flags.runs):
                    segment = f'leftovers_bench_{os.getpid()}_{run}'
                    started = time.monotonic()
                    subprocess.run([*launcher.command, '--standalone', '--nproc-per-node', '1', script, segment], env=launcher.environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
                    seconds.append(time.monotonic() - started)
                    count += lost(kind, segment)
                print(f'{kind}, {launcher.name}: {count} of {flags.runs} lost, {statistics.median(seconds) * 1000:.0f} ms', flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
