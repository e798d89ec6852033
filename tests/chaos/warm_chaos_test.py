"""Random SIGKILLs of spares, their parent, agents, guardians and workers of warm jobs, from the first start on: no orphan, no rank twice, nothing left.

CHAOS_SEED=N repeats a run's choices (not its timing), CHAOS_KILLS=N changes their number.
"""

import fcntl
import glob
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import unittest

from tests.support.convene_testing import CONVENE, ConveneTestCase, processes_with, wait_until

KILLS = int(os.environ.get('CHAOS_KILLS', '40'))
WORKERS = 2
PAGES = '/dev/shm/convene-progress.*'

PACKAGES = {
    'torch/__init__.py': 'import time\ntime.sleep(0.2)\nfrom . import distributed\n',
    'torch/distributed/__init__.py': 'from .distributed_c10d import *\n',
    'torch/distributed/distributed_c10d.py': 'def init_process_group(*_):\n    pass\n',
}

# A worker holds its rank by a lock of its file: a rank that is there twice finds it taken.
SCRIPT = '''
import fcntl, os, sys, time
import torch
folder = os.path.dirname(os.path.abspath(__file__))
rank, epoch = os.environ['RANK'], os.environ['CONVENE_EPOCH']
torch.distributed.init_process_group()
held = open(f'{folder}/rank.{rank}', 'a')
try:
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open(f'{folder}/twice', 'a').write(f'rank {rank} in epoch {epoch}\\n')
count = 0
while not os.path.exists(f'{folder}/end'):
    count += 1
    with open(f'{folder}/alive.{rank}.part', 'w') as out:
        out.write(f'{os.getppid()} {epoch} {os.getpid()} {count}')
    os.rename(f'{folder}/alive.{rank}.part', f'{folder}/alive.{rank}')
    time.sleep(0.01)
'''


def parent_of(pid):
    try:
        with open(f'/proc/{pid}/stat', encoding='ascii') as file:
            return int(file.read().rsplit(')', 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


class WarmChaosTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        # The path is short, because a session's socket lies in it.
        self.runtime = tempfile.mkdtemp(prefix='cv', dir='/tmp')
        self.addCleanup(shutil.rmtree, self.runtime, ignore_errors=True)
        seed = int(os.environ.get('CHAOS_SEED', random.SystemRandom().randrange(2**32)))
        print(f'seed {seed}: CHAOS_SEED={seed} chooses the same victims', flush=True)
        self.random = random.Random(seed)
        for name, text in {**PACKAGES, 'script.py': SCRIPT}.items():
            os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
            with open(self.path(name), 'w', encoding='utf-8') as out:
                out.write(text)
        self.kills = {}
        self.jobs = 0

    def start_job(self):
        self.jobs += 1
        self.job = self.start(CONVENE, 'run', '--standalone', '--nproc-per-node', WORKERS, '--max-restarts', 1000000, '--warm-workers', 'auto',
                              '--no-python', sys.executable, self.path('script.py'), PYTHONPATH=self.directory, XDG_RUNTIME_DIR=self.runtime,
                              XDG_CACHE_HOME=self.path('cache'), PYTHONDONTWRITEBYTECODE='1', log=f'job{self.jobs}.log')

    def victims(self):
        """Pids by kind. A spare has its parent's environment, and so has the worker that it becomes."""
        agent = self.job.pid
        workers = sorted(int(words[2]) for words in self.alive() if parent_of(int(words[2])) == agent)
        warm = [pid for pid in processes_with('CONVENE_WARM=parent:') if pid not in workers and parent_of(pid) == agent]
        guardians = [pid for pid in processes_with(self.marker) if parent_of(pid) == agent and self.name_of(pid) == 'convene-guard']
        return {'agent': [agent], 'worker': workers, 'spare or parent': sorted(warm), 'guardian': guardians}

    @staticmethod
    def name_of(pid):
        try:
            with open(f'/proc/{pid}/comm', encoding='ascii') as file:
                return file.read().strip()
        except (FileNotFoundError, ProcessLookupError):
            return ''

    def alive(self):
        """The last words of each rank: agent, epoch, pid, count."""
        found = []
        for rank in range(WORKERS):
            try:
                with open(self.path(f'alive.{rank}'), encoding='ascii') as file:
                    found.append(file.read().split())
            except FileNotFoundError:
                pass
        return found

    def wait_for_all(self):
        """All ranks of this agent, in one epoch, go on."""
        before = self.alive()

        def are_at_it():
            self.assertIsNone(self.job.poll(), f'the agent ended by itself:\n{self.output(self.job)[-4000:]}')
            now = self.alive()
            return (len(now) == WORKERS and len({words[1] for words in now}) == 1 and all(words not in before for words in now) and
                    all(int(words[0]) == self.job.pid for words in now))
        wait_until(are_at_it, 30, lambda: f'all ranks, after {self.kills}\n{self.output(self.job)[-4000:]}')

    def kill_one(self):
        kind = self.random.choices(['spare or parent', 'worker', 'agent', 'guardian', 'guardian and agent'], [45, 25, 15, 10, 5])[0]
        victims = self.victims()
        for one in kind.split(' and '):  # A guardian that dies just before its agent has cleared nothing away.
            if not victims[one]:
                return
            try:
                os.kill(self.random.choice(victims[one]), signal.SIGKILL)
            except ProcessLookupError:
                return
        self.kills[kind] = self.kills.get(kind, 0) + 1
        if kind.endswith('agent'):
            self.job.wait(10)
            self.assert_nothing_left()  # No orphan.
            self.start_job()

    def test_warm_jobs_survive_random_kills(self):
        shared = set(glob.glob(PAGES))
        self.start_job()
        self.wait_for_all()
        began = time.monotonic()
        while sum(self.kills.values()) < KILLS:
            # Some kills hit a first start that waits for its spares, some a hand-over, some a job at rest with all its spares.
            time.sleep(self.random.choice([0, 0.05, 0.3, 2.5]) * self.random.random())
            self.kill_one()
            if self.random.random() < 0.5:
                self.wait_for_all()
        self.wait_for_all()
        with open(self.path('end'), 'w', encoding='ascii'):
            pass
        self.finish(self.job, 60)
        self.assert_nothing_left()
        self.assertFalse(os.path.exists(self.path('twice')), 'a rank ran twice')
        self.assertEqual(os.listdir(self.runtime), [])
        # Other tests run on this machine, too.
        left = [path for path in set(glob.glob(PAGES)) - shared if self.is_left(path)]
        self.assertEqual(left, [])
        warm = sum(self.output_of(number).count('of 2 workers start from spares') for number in range(1, self.jobs + 1))
        first = sum('the first start waits' in self.output_of(number) for number in range(1, self.jobs + 1))
        print(f'{self.kills} in {time.monotonic() - began:.0f} s: {warm} warm starts, {first} jobs whose first start waited for spares', flush=True)
        self.assertGreater(warm, 0)

    def output_of(self, number):
        with open(self.path(f'job{number}.log'), encoding='utf-8') as file:
            return file.read()

    @staticmethod
    def is_left(path):
        """A page whose agent lives is locked."""
        try:
            with open(path, 'rb') as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


if __name__ == '__main__':
    unittest.main()
