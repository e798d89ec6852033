#!/usr/bin/env python3
"""Measures the time that a killed worker costs: from its `kill -9` until all workers of all agents have stopped, and until the next step is done.

usage: tests/bench/recovery_bench.py [--runs N] [--without-torch]
Prints medians, beside torchrun's for an equal PyTorch program, in turns, in one run. The peer needs the environment that
tools/torch_environment makes.
"""

import argparse
import json
import os
import platform
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import launch_bench  # noqa: E402  (beside this file)
from tests.support import torch_environment  # noqa: E402  (launch_bench found the way)

ROOT = launch_bench.ROOT
STOP_AGENTS = 4
STOP_WORKERS_PER_AGENT = 2
RECOVERY_WORKERS = 4
RECOVERY_LIMIT_S = 60
MARK = 'CONVENE_BENCH_MARK'
# By default all attempts share the store of torchrun's agent, with the same keys: Gloo then finds the addresses of dead workers there (PyTorch 2.15).
TORCHRUN_VARIABLES = {'TORCH_DISABLE_SHARE_RDZV_TCP_STORE': '1'}


def build_programs():
    return launch_bench.build('//launcher:convene', '//launcher:convened', '//worker_runtime/trainer:convene-train')


def environment_of(pid):
    try:
        with open(f'/proc/{pid}/environ', 'rb') as file:
            return dict(entry.split('=', 1) for entry in file.read().decode('utf-8', 'replace').split('\0') if '=' in entry)
    except (OSError, ValueError):
        return {}


def workers(mark):
    """Pids of all workers (processes with a RANK) of this measurement, by rank."""
    found = {}
    for name in filter(str.isdigit, os.listdir('/proc')):
        environment = environment_of(int(name))
        if environment.get(MARK) == mark and 'RANK' in environment:
            found[int(environment['RANK'])] = int(name)
    return found


class TooSlow(Exception):
    """An awaited event did not come."""


def wait_for(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.001)
    raise TooSlow(f'{what}: not within {seconds} s')


def seconds_until_gone(pidfds, start, limit_s):
    """Each descriptor becomes readable when its process ends: no polling, so the figure is the kernel's."""
    poll = select.poll()
    left = set(pidfds)
    for fd in pidfds:
        poll.register(fd, select.POLLIN)
    while left:
        ready = poll.poll(max(0, limit_s - (time.monotonic() - start)) * 1000)
        if not ready:
            raise TooSlow(f'{len(left)} workers still run {limit_s} s after the kill')
        for fd, _ in ready:
            poll.unregister(fd)
            left.discard(fd)
    return time.monotonic() - start


class Job:
    """Programs started with a mark in their environment; all of them are gone afterwards."""

    def __init__(self):
        self.directory = tempfile.mkdtemp(prefix='recovery.')
        self.mark = os.path.basename(self.directory)
        self.processes = []

    def start(self, command, environment=None):
        with open(os.path.join(self.directory, f'log{len(self.processes)}'), 'wb') as log:
            self.processes.append(subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.directory,
                env={**(environment or os.environ), MARK: self.mark, 'OMP_NUM_THREADS': '1'}))
        return self.processes[-1]

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
        for pid in workers(self.mark).values():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory)


def kill_one(job, count):
    """Kills the worker of the highest rank once all are there; returns the start time and descriptors of all."""
    wait_for(lambda: len(workers(job.mark)) == count, 120, f'{count} workers')
    pids = workers(job.mark)
    pidfds = [os.pidfd_open(pid) for pid in pids.values()]
    start = time.monotonic()
    os.kill(pids[max(pids)], signal.SIGKILL)
    return start, pidfds


def measure_stop(programs):
    """Four agents of two workers each that would sleep for ever."""
    job = Job()
    try:
        daemon = job.start([f'{programs}/launcher/convened', '--host', '127.0.0.1', '--port', '0'])
        log = os.path.join(job.directory, 'log0')

        def endpoint():
            with open(log, encoding='utf-8') as file:
                words = file.read().replace(',', ' ').split()
            return next((word for word in words if word.startswith('127.0.0.1:')), None)
        address = wait_for(endpoint, 10, f'the address of pid {daemon.pid}')
        for node in range(STOP_AGENTS):
            job.start([f'{programs}/launcher/convene', 'run', '--nnodes', str(STOP_AGENTS), '--nproc-per-node', str(STOP_WORKERS_PER_AGENT),
                       '--rdzv-endpoint', address, '--rdzv-id', 'bench', '--node-rank', str(node), '--max-restarts', '1',
                       '/bin/sleep', '1000'])
        start, pidfds = kill_one(job, STOP_AGENTS * STOP_WORKERS_PER_AGENT)
        return seconds_until_gone(pidfds, start, 60)
    finally:
        job.close()


def last_line(path):
    if not os.path.exists(path):
        return None
    with open(path, encoding='utf-8') as file:
        lines = [line for line in file if line.endswith('\n') and '"epoch"' in line]
    return json.loads(lines[-1]) if lines else None


def measure_recovery(command, environment, metrics):
    """From the kill to the first step of the next epoch."""
    job = Job()
    try:
        path = os.path.join(job.directory, metrics)
        job.start(command(job.directory, path), environment)
        wait_for(lambda: (last_line(path) or {'step': 0})['step'] >= 12, 120, 'step 12')
        epoch = last_line(path)['epoch']
        start, pidfds = kill_one(job, RECOVERY_WORKERS)
        wait_for(lambda: last_line(path)['epoch'] > epoch, RECOVERY_LIMIT_S, 'a step of the next epoch')
        seconds = time.monotonic() - start
        for fd in pidfds:
            os.close(fd)
        return seconds
    finally:
        job.close()


def convene_recovery(programs):
    text = os.path.join(ROOT, 'README.md')

    def command(directory, metrics):
        return [f'{programs}/launcher/convene', 'run', '--standalone', '--nproc-per-node', str(RECOVERY_WORKERS), '--max-restarts', '1',
                f'{programs}/worker_runtime/trainer/convene-train', '--model', 'llama-tiny', '--data', text, '--steps', '100000',
                '--global-batch-size', str(8 * RECOVERY_WORKERS), '--micro-batch-size', '8', '--sequence-length', '32',
                '--checkpoint-dir', f'{directory}/checkpoints', '--checkpoint-every', '5', '--metrics-file', metrics,
                '--token-cache-dir', f'{directory}/tokens']
    return measure_recovery(command, None, 'metrics.jsonl')


def torchrun_recovery():
    worker = os.path.join(ROOT, 'tests/bench/torch_recovery_worker.py')

    def command(directory, metrics):
        return [torch_environment.TORCHRUN, '--standalone', '--nproc-per-node', str(RECOVERY_WORKERS), '--max-restarts', '3',
                worker, f'{directory}/checkpoint.pt', metrics]
    return measure_recovery(command, {**torch_environment.torch_environment(), **TORCHRUN_VARIABLES}, 'metrics.jsonl')


def report(name, samples, unit_s=1e-3, unit='ms'):
    values = sorted(sample / unit_s for sample in samples)
    print(f'{name:58} median {statistics.median(values):8.1f} {unit}   (of {len(values)}: {values[0]:.1f} to {values[-1]:.1f})')
    return statistics.median(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--runs', type=int, default=5)
    parser.add_argument('--without-torch', action='store_true')
    arguments = parser.parse_args()
    programs = build_programs()
    version = '' if arguments.without_torch else torch_environment.torch_version()
    print(f'{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; '
          f'PyTorch {version or "not measured"}')
    stops, ours, theirs = [], [], []
    for _ in range(arguments.runs):
        stops.append(measure_stop(programs))
        ours.append(convene_recovery(programs))
        try:
            if version:
                theirs.append(torchrun_recovery())
        except TooSlow as slow:
            # Seen with PyTorch 2.15: after the restart its Gloo connects to an old address, where no process listens any more.
            print(f'torchrun did not recover: {slow}')
    report(f'worker killed -> all workers of {STOP_AGENTS} agents stopped', stops)
    mine = report(f'worker killed -> next finished step, {RECOVERY_WORKERS} workers, convene', ours)
    if theirs:
        peer = report('the same, torchrun and a PyTorch program', theirs)
        print(f'ratio torchrun / convene: {peer / mine:.1f}')


if __name__ == '__main__':
    try:
        main()
    except TooSlow as slow:
        sys.exit(f'recovery_bench: {slow}')
