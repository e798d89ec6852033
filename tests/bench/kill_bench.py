#!/usr/bin/env python3
"""Measures how fast eight agents on one machine answer a death: 100 kills of one worker, and of one agent.

usage: tests/bench/kill_bench.py [--kills N] [--agent-kills N] [--agents N] [--workers N] [--programs BAZEL_BIN]
Eight agents of one daemon with one `sleep` each. Per kill: from the SIGKILL of one worker until all workers of all agents have ended, and
until the last worker of the next epoch has become its program; then, with an agent SIGKILLed, until the workers of the seven others have
ended (they were told). Ends are seen by pidfds, so the figures are the kernel's; starts by a line that each worker writes into one pipe.
Prints p50, p99 and the worst, as lines for RESULTS.md.
"""

import argparse
import os
import platform
import select
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import recovery_bench  # noqa: E402  (beside this file)

LIMIT_S = 20
# The worker tells the bench its number and sleeps: the shell starts within a millisecond.
WORKER = 'echo "$CONVENE_EPOCH $RANK $$" >&9; exec sleep 100000'


class Announcements:
    """The lines that workers write when they start, into a pipe that every agent's wrapper opens for them."""

    def __init__(self, directory):
        self.path = os.path.join(directory, 'started')
        os.mkfifo(self.path)
        self.fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self.rest = b''

    def wait_for_epoch(self, after, count):
        """(epoch, rank -> pid, when the last one started) of the first epoch above `after` that is whole."""
        deadline = time.monotonic() + LIMIT_S
        seen = {}
        while True:
            if not select.select([self.fd], [], [], max(0, deadline - time.monotonic()))[0]:
                raise recovery_bench.TooSlow(f'a whole epoch after {after}: not within {LIMIT_S} s; seen {seen}')
            *lines, self.rest = (self.rest + os.read(self.fd, 65536)).split(b'\n')
            now = time.monotonic()
            for line in lines:
                epoch, rank, pid = map(int, line.split())
                if epoch > after:
                    seen.setdefault(epoch, {})[rank] = pid
                    if len(seen[epoch]) == count:
                        return epoch, seen[epoch], now


class Bench:
    def __init__(self, programs, agents, workers):
        self.count, self.workers = agents, workers
        self.job = recovery_bench.Job()
        self.programs = programs
        self.announcements = Announcements(self.job.directory)
        self.job.start([f'{programs}/launcher/convened', '--host', '127.0.0.1', '--port', '0'])
        log = os.path.join(self.job.directory, 'log0')

        def endpoint():
            with open(log, encoding='utf-8') as file:
                words = file.read().replace(',', ' ').split()
            return next((word for word in words if word.startswith('127.0.0.1:')), None)
        self.endpoint = recovery_bench.wait_for(endpoint, 10, 'the daemon')
        self.agents = [self.start_agent(rank) for rank in range(agents)]
        self.epoch, self.pids, _ = self.announcements.wait_for_epoch(0, agents * workers)

    def start_agent(self, rank):
        script = f'exec 9>{self.announcements.path}; {WORKER}'
        return self.job.start([f'{self.programs}/launcher/convene', 'run', '--nnodes', str(self.count), '--nproc-per-node',
                               str(self.workers),
                               '--rdzv-endpoint', self.endpoint, '--rdzv-id', 'bench', '--node-rank', str(rank),
                               '--max-restarts', '100000', '--no-python', '/bin/sh', '-c', script])

    def kill_worker(self, number):
        pidfds = [os.pidfd_open(pid) for pid in self.pids.values()]
        start = time.monotonic()
        os.kill(self.pids[number % len(self.pids)], signal.SIGKILL)
        stopped = recovery_bench.seconds_until_gone(pidfds, start, LIMIT_S)
        self.epoch, self.pids, last = self.announcements.wait_for_epoch(self.epoch, self.count * self.workers)
        for fd in pidfds:
            os.close(fd)
        return stopped, last - start

    def kill_agent(self, number):
        rank = number % self.count
        pidfds = [os.pidfd_open(pid) for pid in self.pids.values()]
        start = time.monotonic()
        self.agents[rank].kill()
        stopped = recovery_bench.seconds_until_gone(pidfds, start, LIMIT_S)
        self.agents[rank].wait()
        self.agents[rank] = self.start_agent(rank)
        self.epoch, self.pids, _ = self.announcements.wait_for_epoch(self.epoch, self.count * self.workers)
        for fd in pidfds:
            os.close(fd)
        return stopped


def report(name, samples, goal_ms):
    values = sorted(sample * 1000 for sample in samples)
    p99 = values[min(len(values) - 1, int(len(values) * 0.99))]
    print(f'| {name} | {values[len(values) // 2]:.1f} ms | {p99:.1f} ms | {values[-1]:.1f} ms | {len(values)} | ≤ {goal_ms} ms |')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--kills', type=int, default=100)
    parser.add_argument('--agent-kills', type=int, default=20)
    parser.add_argument('--agents', type=int, default=8)
    parser.add_argument('--workers', type=int, default=1, help='of each agent')
    parser.add_argument('--programs', help='bazel-bin (default: of this workspace)')
    arguments = parser.parse_args()
    bench = Bench(arguments.programs or recovery_bench.build_programs(), arguments.agents, arguments.workers)
    print(f'{platform.node()}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {arguments.agents} agents of {arguments.workers} workers')
    print('| from → until | p50 | p99 | worst | kills | goal |\n|---|---|---|---|---|---|')
    try:
        both = [bench.kill_worker(number) for number in range(arguments.kills)]
        report('a worker SIGKILLed → all workers of all agents ended', [stopped for stopped, _ in both], 50)
        report('a worker SIGKILLed → all workers of the next epoch started', [started for _, started in both], 100)
        if arguments.agent_kills:
            report('an agent SIGKILLed → its worker and all of the others ended', [bench.kill_agent(n) for n in range(arguments.agent_kills)], 100)
    finally:
        bench.job.close()


if __name__ == '__main__':
    try:
        main()
    except recovery_bench.TooSlow as slow:
        sys.exit(f'kill_bench: {slow}')
