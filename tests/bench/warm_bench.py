#!/usr/bin/env python3
"""Measures what warm workers save: from `kill -9` of a worker of a DDP script (4 workers, gloo) until its next step, cold, warm, under torchrun, and
under NVRx's ft_launcher where that is installed.

usage: tests/bench/warm_bench.py [--runs N] [--without-torchrun]
All run in turns. Medians of the time are printed, and of the processor time that the launcher's children take in it, which other load on the
machine changes less; and the memory of a spare. It needs the environment that tools/torch_environment makes; with --libraries it brings NVRx.
"""

import argparse
import os
import platform
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import recovery_bench as recovery  # noqa: E402  (beside this file)
from tests.support import torch_environment  # noqa: E402  (recovery_bench found the way)

WORKERS = recovery.RECOVERY_WORKERS
SCRIPT = os.path.join(recovery.ROOT, 'tests/bench/torch_recovery_worker.py')
FT_LAUNCHER = os.path.join(torch_environment.NVRX, 'bin/ft_launcher')
IMPORTED = 'the parent of warm workers has imported'
READY = 'spares that are ready to become workers'
RECORDS = 2  # of the script: at init_process_group, and after the second step


def spares(mark):
    """Pids of parent and spares: processes of this measurement without a rank."""
    found = []
    for name in filter(str.isdigit, os.listdir('/proc')):
        environment = recovery.environment_of(int(name))
        if environment.get(recovery.MARK) == mark and environment.get('CONVENE_WARM', '').startswith('parent'):
            found.append(int(name))
    return found


def own_mib(pid):
    """Memory that this process shares with no other, and its share of the rest."""
    with open(f'/proc/{pid}/smaps_rollup', encoding='ascii') as file:
        kib = {line.split(':')[0]: int(line.split()[1]) for line in file if line.endswith('kB\n')}
    return (kib['Private_Clean'] + kib['Private_Dirty']) / 1024, kib['Pss'] / 1024


def processor_seconds(launcher):
    """Of each child of this process, by pid."""
    seconds = {}
    for name in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{name}/stat', encoding='utf-8') as file:
                fields = file.read().rsplit(')', 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == launcher:
            seconds[int(name)] = (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')
    return seconds


def kill_to_step(command, ready=lambda job: True, **variables):
    """From the kill until the first step of the next epoch: (seconds, processor seconds)."""
    job = recovery.Job()
    try:
        metrics = os.path.join(job.directory, 'metrics.jsonl')
        launcher = job.start(command + [SCRIPT, os.path.join(job.directory, 'checkpoint.pt'), metrics], {**torch_environment.torch_environment(), **variables})
        recovery.wait_for(lambda: (recovery.last_line(metrics) or {'step': 0})['step'] >= 12, 180, 'step 12')
        recovery.wait_for(lambda: ready(job), 180, 'the spares')
        epoch = recovery.last_line(metrics)['epoch']
        before = processor_seconds(launcher.pid)
        start, pidfds = recovery.kill_one(job, WORKERS)
        recovery.wait_for(lambda: recovery.last_line(metrics)['epoch'] > epoch, recovery.RECOVERY_LIMIT_S, 'a step of the next epoch')
        seconds = time.monotonic() - start
        after = processor_seconds(launcher.pid)
        for fd in pidfds:
            os.close(fd)
        return seconds, sum(spent - before.get(pid, 0) for pid, spent in after.items())
    finally:
        job.close()


class Warm:
    """Whether all spares are there; what they use."""

    def __init__(self):
        self.memory = []

    def __call__(self, job):
        with open(os.path.join(job.directory, 'log0'), encoding='utf-8') as file:
            parts = file.read().split(IMPORTED)
        is_warm = len(parts) > RECORDS and READY in parts[-1]
        pids = sorted(spares(job.mark)) if is_warm else []
        time.sleep(1)  # A fork in between is gone by then.
        if len(pids) != WORKERS + 1 or pids != sorted(spares(job.mark)):
            return False
        self.memory.append((own_mib(pids[-1])[0], sum(own_mib(pid)[1] for pid in pids)))
        return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--runs', type=int, default=10)
    parser.add_argument('--without-torchrun', action='store_true')
    arguments = parser.parse_args()
    programs = recovery.build_programs()
    print(f'{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; '
          f'PyTorch {torch_environment.torch_version() or "is not here"}', flush=True)
    # As a person calls it: the Python of the virtual environment runs the script.
    cold_command = [f'{programs}/launcher/convene', 'run', '--standalone', '--nproc-per-node', str(WORKERS), '--max-restarts', '3', '--no-python',
                    torch_environment.PYTHON, '-u']
    warm_command = cold_command[:-3] + ['--warm-workers', 'auto'] + cold_command[-3:]
    torchrun_command = [torch_environment.TORCHRUN, '--standalone', '--nproc-per-node', str(WORKERS), '--max-restarts', '3']
    peers = {} if arguments.without_torchrun else {'torchrun': (torchrun_command, recovery.TORCHRUN_VARIABLES)}
    if os.path.exists(FT_LAUNCHER):
        peers['NVRx'] = ([torch_environment.PYTHON, FT_LAUNCHER, '--nnodes', '1', '--nproc-per-node', str(WORKERS), '--max-restarts', '3', '--rdzv-backend',
                          'c10d', '--rdzv-endpoint', 'localhost:0'], {'PYTHONPATH': torch_environment.NVRX})
    warm_ready = Warm()
    samples = {'cold': [], 'warm': [], **{name: [] for name in peers}}
    for _ in range(arguments.runs):
        samples['cold'].append(kill_to_step(cold_command))
        samples['warm'].append(kill_to_step(warm_command, warm_ready))
        for name, (command, variables) in peers.items():
            try:
                samples[name].append(kill_to_step(command, **variables))
            except recovery.TooSlow as slow:
                print(f'{name} did not recover: {slow}', flush=True)
    for name, values in samples.items():
        if values:
            for what, column in zip(('time', 'processor time'), zip(*values)):
                recovery.report(f'worker killed -> next step, DDP script, {WORKERS} workers: {name}, {what}', column)
    own, whole = (statistics.median(values) for values in zip(*warm_ready.memory))
    print(f'memory of a spare of its own {own:.1f} MiB; of the parent and {WORKERS} spares together {whole:.0f} MiB')


if __name__ == '__main__':
    try:
        main()
    except recovery.TooSlow as slow:
        sys.exit(f'warm_bench: {slow}')
