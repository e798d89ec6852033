"""Clears a test Slurm away when the test that started it ends, in whatever way: run by test_slurm.py as a process of its own.

usage: python3 -m tests.slurm.slurm_guard DIRECTORY
It waits until its stdin ends, which happens also when the test is killed. Then it kills every process of that Slurm, and removes the
cgroups of its nodes and DIRECTORY. Exit status: 0 nothing is left; 1 something is, and stdout says what.
"""

import glob
import os
import shutil
import signal
import sys
import time
from typing import Iterable, List, Set

from tests.support.convene_testing import processes_with

MARKER = 'CONVENE_TEST_SLURM'  # a variable of every process that the test or a daemon starts; its value is the directory
_PATIENCE_S = 20


def namespaces_of(directory: str, node: str = '*') -> Set[str]:
    """The mount namespaces that a node had, one for each time that its slurmd was started."""
    found: Set[str] = set()
    for path in glob.glob(f'{directory}/namespaces.{node}'):
        with open(path, encoding='ascii') as lines:
            found |= set(lines.read().split())
    return found


def processes_in(namespaces: Iterable[str]) -> List[int]:
    """Pids by mount namespace: slurmstepd writes its title over its environment, and a worker may clear its own."""
    wanted, found = set(namespaces), []
    for link in glob.glob('/proc/[0-9]*/ns/mnt'):
        try:
            if os.readlink(link) in wanted:
                found.append(int(link.split('/')[2]))
        except OSError:
            continue
    return found


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _cgroups(nodes: List[str]) -> List[str]:
    patterns = ('/sys/fs/cgroup/*/slurm_{}', '/sys/fs/cgroup/system.slice/{}_*', '/sys/fs/cgroup/unified/system.slice/{}_*')
    return [path for node in nodes for pattern in patterns for path in glob.glob(pattern.format(node))]


def _thaw(nodes: List[str]) -> None:
    """A frozen process does not even die of SIGKILL."""
    for root in _cgroups(nodes):
        for where, _, files in os.walk(root):
            if 'freezer.state' in files:
                with open(f'{where}/freezer.state', 'w', encoding='ascii') as state:
                    state.write('THAWED')


def _remove_cgroups(nodes: List[str]) -> None:
    for root in _cgroups(nodes):
        for where, _, _ in os.walk(root, topdown=False):
            try:
                os.rmdir(where)
            except OSError:
                pass
    try:
        os.rmdir('/sys/fs/cgroup/unified/system.slice')  # made for cgroup2, and for no other test's Slurm
    except OSError:
        pass


def clear(directory: str) -> List[str]:
    """Returns what could not be removed."""
    nodes = [path.rsplit('.', 1)[1] for path in glob.glob(f'{directory}/namespaces.*')]
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        _thaw(nodes)
        living = processes_with(f'{MARKER}={directory}') + processes_in(namespaces_of(directory))
        kill(living)
        _remove_cgroups(nodes)
        if not living and not _cgroups(nodes):
            shutil.rmtree(directory, ignore_errors=True)
            return []
        if time.monotonic() > deadline:
            return [f'process {pid}' for pid in living] + _cgroups(nodes)
        time.sleep(0.01)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these are for the test
    sys.stdin.buffer.read()
    left = clear(sys.argv[1])
    for what in left:
        print(what)
    return 1 if left else 0


if __name__ == '__main__':
    sys.exit(main())
