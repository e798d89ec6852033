"""200 random SIGKILLs of workers, agents, guardians and the daemon while a job counts: it ends with the right count and leaves nothing.

CHAOS_SEED=N repeats a run's choices (not its timing), CHAOS_KILLS=N changes their number.
"""

import glob
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from tests.support.convene_testing import (CONVENE, CONVENED, ConveneTestCase, environment_of,
                                           find_program, processes_with, wait_until)

WORKER = 'tests/chaos/count_worker'
AGENTS = 4
WORKERS_PER_AGENT = 2
KILLS = int(os.environ.get('CHAOS_KILLS', '200'))
# From any kill to the next step of the job.
RECOVERY_S = 30
# Exit codes after which a scheduler starts the command again.
STARTED_AGAIN = {-signal.SIGKILL}


def read_number(path):
    try:
        with open(path, encoding='ascii') as file:
            return int(file.read())
    except (FileNotFoundError, ValueError):
        return 0


class ChaosTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        # The path is short, because a session's socket lies in it.
        self.runtime = tempfile.mkdtemp(prefix='cv', dir='/tmp')
        self.addCleanup(shutil.rmtree, self.runtime, ignore_errors=True)
        seed = int(os.environ.get('CHAOS_SEED', random.SystemRandom().randrange(2**32)))
        print(f'seed {seed}: CHAOS_SEED={seed} chooses the same victims', flush=True)
        self.random = random.Random(seed)
        helptext = subprocess.run([find_program(CONVENED), '--help'], stdout=subprocess.PIPE, check=True, timeout=10, text=True).stdout
        self.has_journal = '--state-dir' in helptext
        self.port = 0
        self.agents = {}
        self.agent_pids = set()
        self.kills = {}

    def start_daemon(self):
        journal = ('--state-dir', self.path('state')) if self.has_journal else ()
        log = f'daemon{len(glob.glob(self.path("daemon*.log")))}.log'
        self.daemon = self.start(CONVENED, '--host', '127.0.0.1', '--port', self.port, *journal, log=log)
        match = wait_until(lambda: re.search(r'127\.0\.0\.1:(\d+)', self.output(self.daemon)), 10, "the daemon's address in its log")
        self.port = int(match.group(1))

    def start_agent(self, rank):
        self.agents[rank] = self.start(
            CONVENE, 'run', '--nnodes', f'1:{AGENTS}', '--nproc-per-node', WORKERS_PER_AGENT, '--rdzv-endpoint', f'127.0.0.1:{self.port}',
            '--rdzv-id', 'chaos', '--node-rank', rank, '--max-restarts', 1000000, '--leftover-grace', 0, '--no-python', find_program(WORKER), self.directory,
            log=f'agent{rank}.log', XDG_RUNTIME_DIR=self.runtime)
        self.agent_pids.add(self.agents[rank].pid)

    def tend_agents(self):
        """Acts as a scheduler: starts killed programs again; a program that ended by itself is a failure."""
        for rank, agent in list(self.agents.items()):
            code = agent.poll()
            if code is None:
                continue
            self.assertIn(code, STARTED_AGAIN, f'agent {rank} ended by itself:\n{self.output(agent)[-4000:]}')
            self.start_agent(rank)

    def victims(self):
        """(kind, pid) of everything that may be killed now."""
        agents = {agent.pid for agent in self.agents.values()}
        found = {'worker': [], 'guardian': [], 'agent': sorted(agents), 'daemon': [self.daemon.pid] if self.has_journal else []}
        for pid in processes_with(self.marker):
            try:
                with open(f'/proc/{pid}/comm', encoding='ascii') as file:
                    name = file.read().strip()
                if name == 'convene-guard':
                    found['guardian'].append(pid)
                elif 'RANK' in environment_of(pid):
                    found['worker'].append(pid)  # Or its helper.
            except OSError:
                continue
        return found

    def kill_one(self):
        kind = self.random.choices(['worker', 'agent', 'guardian', 'daemon'], [60, 30, 5, 5])[0]
        pids = self.victims()[kind]
        if not pids:
            return
        pid = self.random.choice(pids)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.kills[kind] = self.kills.get(kind, 0) + 1
        if kind == 'daemon':
            self.daemon.wait(10)
            self.start_daemon()
        if kind == 'agent':
            next(agent for agent in self.agents.values() if agent.pid == pid).wait(10)

    def wait_for_progress(self):
        before = read_number(self.path('count'))

        def progressed():
            self.tend_agents()
            return read_number(self.path('count')) > before + 1
        try:
            wait_until(progressed, RECOVERY_S, 'progress of the job')
        except AssertionError:
            logs = '\n'.join(f'agent {rank}:\n{self.output(agent)[-1500:]}' for rank, agent in self.agents.items())
            self.fail(f'after {self.kills}: no progress within {RECOVERY_S} s from {before}\n{logs}\n{self.output(self.daemon)[-3000:]}')

    def check_history(self, target):
        with open(self.path('history'), encoding='ascii') as file:
            history = [tuple(map(int, line.split())) for line in file]
        epoch, count = 0, 0
        for line, (next_epoch, next_count) in enumerate(history):
            self.assertGreaterEqual(next_epoch, epoch, f'line {line}: two epochs counted at the same time')
            # A step that was killed between its two files is done again by the next epoch.
            allowed = (count + 1,) if next_epoch == epoch else (count, count + 1)
            self.assertIn(next_count, allowed, f'line {line}: epoch {next_epoch} counted {next_count} after epoch {epoch} counted {count}')
            epoch, count = next_epoch, next_count
        self.assertEqual(count, target)
        self.assertEqual(read_number(self.path('count')), target)
        return epoch

    def test_a_job_survives_random_kills(self):
        self.start_daemon()
        for rank in range(AGENTS):
            self.start_agent(rank)
        self.wait_for_progress()
        started = time.monotonic()
        while sum(self.kills.values()) < KILLS:
            self.kill_one()
            self.tend_agents()
            # Half of the kills hit a job that has just recovered, the others one that is at it.
            if self.random.random() < 0.5:
                self.wait_for_progress()
            else:
                time.sleep(self.random.random() * 0.05)
        self.wait_for_progress()
        took = time.monotonic() - started
        target = read_number(self.path('count')) + 100
        with open(self.path('target.new'), 'w', encoding='ascii') as file:
            file.write(f'{target}\n')
        os.rename(self.path('target.new'), self.path('target'))
        for rank, agent in self.agents.items():
            self.finish(agent, RECOVERY_S)
        epochs = self.check_history(target)
        print(f'kills {self.kills} in {took:.1f} s; {epochs} epochs; counted to {target}', flush=True)
        self.daemon.terminate()
        self.daemon.wait(10)
        self.assert_nothing_left()
        self.assertEqual(os.listdir(self.runtime), [], 'session directories')
        cgroups = [path for path, _, _ in os.walk('/sys/fs/cgroup') if any(f'/convene.{pid}.' in path for pid in self.agent_pids)]
        self.assertEqual(cgroups, [], 'cgroups')


if __name__ == '__main__':
    unittest.main()
