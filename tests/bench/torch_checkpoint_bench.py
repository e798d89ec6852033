#!/usr/bin/env python3
"""Measures how long `convene.checkpoint` holds a PyTorch script for a save of 1 GB, beside a memcpy of 1 GB and torch.distributed.checkpoint.async_save.

usage: tests/bench/torch_checkpoint_bench.py [--rounds N] [--mib N] [--threads N]
The three run in turns, in one worker of `convene run`. Each save waits until the disk has the save before it; that time does not count. The first round
is told alone: there memory is taken for the first time. It needs the environment that tools/torch_environment makes.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [ROOT, os.path.join(ROOT, 'tests/bench')]
TENSORS = 100
FIRST = 2  # rounds that take memory: one for each half


def worker(arguments):
    """In the environment with PyTorch."""
    import ctypes
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from convene.checkpoint import Checkpoint

    torch.set_num_threads(arguments.threads)
    dist.init_process_group('gloo')
    size = arguments.mib * (1 << 20) // TENSORS // 4
    state = {f'weight{i}': torch.full((size,), float(i)) for i in range(TENSORS)}
    one = torch.ones(size * TENSORS)
    other = torch.zeros(size * TENSORS)
    checkpoint = Checkpoint(os.path.join(arguments.folder, 'ours'))
    checkpoint.load()
    writer = dcp.FileSystemWriter(os.path.join(arguments.folder, 'theirs'), overwrite=True)

    def timed(call):
        start = time.monotonic()
        result = call()
        return time.monotonic() - start, result

    samples = {'memcpy': [], 'save': [], 'async_save': []}
    for step in range(arguments.rounds + FIRST):
        samples['memcpy'].append(timed(lambda: ctypes.memmove(other.data_ptr(), one.data_ptr(), one.numel() * 4))[0])
        seconds, stands = timed(lambda: checkpoint.save(state, step))
        assert stands
        samples['save'].append(seconds)
        checkpoint.wait()
        seconds, written = timed(lambda: dcp.async_save(state, storage_writer=writer))
        samples['async_save'].append(seconds)
        written.result()
    _, (step, back) = timed(Checkpoint(os.path.join(arguments.folder, 'ours')).load)
    assert step == arguments.rounds + FIRST - 1 and torch.equal(back['weight7'], state['weight7'])
    memcpy = statistics.median(samples['memcpy'][FIRST:])
    for name, values in samples.items():
        rest = values[FIRST:]
        print(f'{name} of {arguments.mib} MiB holds the script {1e3 * statistics.median(rest):.0f} ms ({1e3 * min(rest):.0f} to {1e3 * max(rest):.0f}), '
              f'{statistics.median(rest) / memcpy:.2f} x memcpy; '
              f'the first {FIRST}: {", ".join(f"{1e3 * value:.0f}" for value in values[:FIRST])} ms', flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--mib', type=int, default=1000)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--folder', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        worker(arguments)
        return
    import recovery_bench as recovery
    from tests.support import torch_environment
    programs = recovery.build_programs()
    print(f'{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; '
          f'PyTorch {torch_environment.torch_version() or "is not here"}', flush=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([f'{programs}/launcher/convene', 'run', '--standalone', '--no-python', torch_environment.PYTHON, os.path.abspath(__file__),
                        *sys.argv[1:], '--folder', folder], check=True,
                       env={**torch_environment.torch_environment(), 'PYTHONPATH': os.path.join(ROOT, 'tools/deploy/python')})


if __name__ == '__main__':
    main()
