"""With --reproducible one curve, bit for bit, whatever dies and comes back: random SIGKILLs of workers and of whole nodes, which return, so
that the job shrinks and grows, against one process that nothing disturbs.

CHAOS_SEED=N repeats a run's choices (not its timing), CHAOS_KILLS=N changes their number, with twenty steps for each kill.
"""

import json
import os
import random
import re
import signal
import unittest

from tests.support.convene_testing import (CONVENE, CONVENED, CONVENE_TRAIN, ConveneTestCase, find_program, read_metrics, wait_until)

NODES = 3
KILLS = int(os.environ.get('CHAOS_KILLS', '12'))
STEPS = 20 * KILLS
# From a kill to steps that are new.
RECOVERY_S = 60
BATCH = {'reproducible': 'true', 'global_batch_size': 10, 'micro_batch_size': 2, 'steps': STEPS, 'validation_every': STEPS // 4}


def read_curve(path):
    """The losses and gradient norms of all steps, and the validations between them, in order. Metrics have every bit."""
    with open(path, encoding='utf-8') as lines:
        metrics = [json.loads(line) for line in lines]
    curve = [{key: m[key] for key in ('step', 'loss', 'grad_norm', 'validation_loss') if key in m} for m in metrics]
    return [m for m in curve if len(m) > 1]


class ReproducibleTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        seed = int(os.environ.get('CHAOS_SEED', random.SystemRandom().randrange(2**32)))
        print(f'seed {seed}: CHAOS_SEED={seed} chooses the same victims', flush=True)
        self.random = random.Random(seed)
        self.zero_stage = self.random.choice([1, 2, 3])
        self.agents = {}
        self.kills = {'worker': 0, 'node': 0}

    def start_daemon(self):
        self.daemon = self.start(CONVENED, '--host', '127.0.0.1', '--port', 0, log='daemon.log')
        match = wait_until(lambda: re.search(r'127\.0\.0\.1:(\d+)', self.output(self.daemon)), 10, "the daemon's address in its log")
        self.endpoint = f'127.0.0.1:{match.group(1)}'

    def start_node(self, rank):
        self.agents[rank] = self.start(
            CONVENE, 'run', '--nnodes', f'1:{NODES}', '--nproc-per-node', 1, '--rdzv-endpoint', self.endpoint, '--rdzv-id', 'reproducible',
            '--node-rank', rank, '--max-restarts', 1000000, find_program(CONVENE_TRAIN),
            *self.train_arguments(zero_stage=self.zero_stage, **BATCH), log=f'agent{rank}.log')

    def step(self):
        metrics = read_metrics(self.path('metrics.jsonl'))
        return metrics[-1]['step'] if metrics else 0

    def wait_past(self, step):
        try:
            wait_until(lambda: self.step() >= step or all(agent.poll() is not None for agent in self.agents.values()), RECOVERY_S, f'step {step}')
        except AssertionError:
            logs = '\n'.join(f'node {rank}:\n{self.output(agent)[-2500:]}' for rank, agent in self.agents.items())
            self.fail(f'after {self.kills}: no step {step} within {RECOVERY_S} s from {self.step()}\n{logs}')

    def kill_one(self):
        absent = [rank for rank in range(NODES) if rank not in self.agents]
        # Nodes that are away come back, in half of the cases before the next kill.
        for rank in absent:
            if self.random.random() < 0.5:
                self.start_node(rank)
        if len(self.agents) > 1 and self.random.random() < 0.5:
            rank = self.random.choice(sorted(self.agents))
            agent = self.agents.pop(rank)
            agent.send_signal(signal.SIGKILL)
            agent.wait(10)
            self.kills['node'] += 1
            return
        workers = self.workers()
        if not workers:
            return
        try:
            os.kill(workers[self.random.choice(sorted(workers))], signal.SIGKILL)
        except ProcessLookupError:
            return
        self.kills['worker'] += 1

    def test_one_curve_whatever_dies(self):
        path = self.path('one.jsonl')
        one = self.start(CONVENE_TRAIN, *self.train_arguments(**{**BATCH, 'metrics_file': path, 'checkpoint_dir': None, 'checkpoint_every': None}),
                         log='one.log')
        text = self.finish(one, 600 + STEPS)
        self.assertIn('sums         reproducible: same bits on any dp', text)
        expected = read_curve(path)

        self.start_daemon()
        for rank in range(NODES):
            self.start_node(rank)
        for kill in range(KILLS):
            self.wait_past(min(STEPS - 1, 20 * kill + self.random.randrange(20)))
            self.kill_one()
        for agent in self.agents.values():
            self.finish(agent, RECOVERY_S + STEPS)
        metrics = read_metrics(self.path('metrics.jsonl'))
        layouts = {m['layout'] for m in metrics if 'layout' in m}
        print(f'kills {self.kills}, ZeRO-{self.zero_stage}, {metrics[-1]["epoch"]} epochs, {sorted(layouts)}', flush=True)
        self.assertGreater(len(layouts), 1, 'the job neither shrank nor grew')
        got = read_curve(self.path('metrics.jsonl'))
        for ours, wanted in zip(got, expected):
            self.assertEqual(ours, wanted)
        self.assertEqual(len(got), len(expected))

    def test_a_checkpoint_goes_on_with_the_same_sums_alone(self):
        values = {**BATCH, 'steps': 5, 'validation_every': None}
        self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(**values), log='first.log'), 60)
        values['steps'] = 10
        for changes in ({'micro_batch_size': 1}, {'reproducible': None}):
            text = self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(**{**values, **changes}), log='other.log'), 60, expected_code=64)
            self.assertIn('was trained on', text)
            self.assertIn('--reproducible in micro batches of 2', text)
        self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(**values), log='same.log'), 60)


if __name__ == '__main__':
    unittest.main()
