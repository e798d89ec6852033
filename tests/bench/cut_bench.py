#!/usr/bin/env python3
"""Measures how long survivors run on after a node is silently cut off: its cable is pulled, without FIN, RST or loss of carrier.

usage: tests/bench/cut_bench.py [--cuts N] [--lease SECONDS] [--programs BAZEL_BIN]
A daemon and three agents, each on a host of its own (tests/support/network_namespaces.py), one `sleep` each. Per cut, at a random moment:
until the workers of both survivors have ended, by the daemon's word; and until the worker of the node that was cut off has ended, by its
own agent (the fence). Then the cable is mended and the three form the next epoch. Ends are seen by pidfds. Prints median and worst of both;
the goal is the lease and one second. Needs root.
"""

import argparse
import os
import platform
import random
import select
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kill_bench  # noqa: E402  (beside this file)
import recovery_bench  # noqa: E402
from tests.support.network_namespaces import Network, NoNamespaces  # noqa: E402  (recovery_bench found the way)

NODES = 3


class Bench:
    def __init__(self, programs, lease_s):
        self.lease_s = lease_s
        self.network = Network()
        self.job = recovery_bench.Job()
        self.random = random.Random(1)
        self.announcements = kill_bench.Announcements(self.job.directory)
        daemon_host = self.network.host('d')
        self.hosts = [self.network.host(f'n{number}') for number in range(NODES)]
        self.job.start([*daemon_host.prefix, f'{programs}/launcher/convened', '--port', '29400'])
        for number, host in enumerate(self.hosts):
            self.job.start([
                *host.prefix, f'{programs}/launcher/convene', 'run', '--nnodes', str(NODES), '--rdzv-endpoint',
                f'{daemon_host.address}:29400', '--rdzv-id', 'bench', '--node-rank', str(number), '--rdzv-conf',
                f'keep_alive_interval={lease_s / 3},keep_alive_max_attempt=3', '--no-python', '/bin/sh', '-c',
                f'exec 9>{self.announcements.path}; {kill_bench.WORKER}'])
        self.epoch, self.pids, _ = self.announcements.wait_for_epoch(0, NODES)

    def cut(self, number):
        """Seconds until the survivors' workers had ended, and until the worker of the node `number` had."""
        time.sleep(self.random.uniform(0, self.lease_s / 3))
        pidfds = {rank: os.pidfd_open(pid) for rank, pid in self.pids.items()}
        limit_s = self.lease_s + kill_bench.LIMIT_S
        start = time.monotonic()
        self.network.cut(self.hosts[number])  # Ranks are in the order of node ranks.
        ended = ends(pidfds, start, limit_s)
        self.network.mend(self.hosts[number])
        self.epoch, self.pids, _ = self.announcements.wait_for_epoch(self.epoch, NODES)
        for fd in pidfds.values():
            os.close(fd)
        fenced = ended.pop(number)
        return max(ended.values()), fenced

    def close(self):
        self.job.close()
        self.network.close()


def ends(pidfds, start, limit_s):
    """When each process ended, in seconds since `start`."""
    poll = select.poll()
    ranks = {fd: rank for rank, fd in pidfds.items()}
    for fd in ranks:
        poll.register(fd, select.POLLIN)
    ended = {}
    while len(ended) < len(ranks):
        ready = poll.poll(max(0, limit_s - (time.monotonic() - start)) * 1000)
        if not ready:
            raise recovery_bench.TooSlow(f'workers still run {limit_s} s after the cut')
        for fd, _ in ready:
            poll.unregister(fd)
            ended[ranks[fd]] = time.monotonic() - start
    return ended


def report(name, samples, goal):
    print(f'{name:62} median {statistics.median(samples):6.3f}  worst {max(samples):6.3f} s   ({goal}; of {len(samples)})')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--cuts', type=int, default=20)
    parser.add_argument('--lease', type=float, default=5.0)
    parser.add_argument('--programs', help='bazel-bin (default: of this workspace)')
    arguments = parser.parse_args()
    try:
        bench = Bench(arguments.programs or recovery_bench.build_programs(), arguments.lease)
    except NoNamespaces as reason:
        sys.exit(f'cut_bench: no network namespaces: {reason}')
    print(f'{platform.node()}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {NODES} nodes, a lease of {arguments.lease:g} s')
    try:
        both = [bench.cut(number % NODES) for number in range(arguments.cuts)]
    finally:
        bench.close()
    report('silently cut off -> the workers of all survivors ended', [told for told, _ in both], f'goal {arguments.lease + 1:g}')
    report('silently cut off -> its own worker ended, by the fence', [fenced for _, fenced in both], f'at most {arguments.lease:g}')


if __name__ == '__main__':
    try:
        main()
    except recovery_bench.TooSlow as slow:
        sys.exit(f'cut_bench: {slow}')
