"""A scheduler that stops processes and continues them later: a job that was stopped as a whole goes on where it was, and a node that was
stopped alone is fenced. The tests stop the processes that `scontrol suspend` stops: agents, workers and, on one of the nodes, the daemon."""

import os
import signal
import time
import unittest

from tests.support.convene_testing import (CONVENE, CONVENE_TRAIN, CONVENED, ConveneTestCase, environment_of, find_program, free_port,
                                           processes_with, read_metrics, wait_until)

LEASE = 'keep_alive_interval=1,keep_alive_max_attempt=3'  # 3 s
PAUSE_S = 6


class SuspendTest(ConveneTestCase):

    def train(self, **changes):
        arguments = self.train_arguments(steps=100000, checkpoint_every=100000, checkpoint_dir=self.path('checkpoints'), **changes)
        return ['--no-python', find_program(CONVENE_TRAIN), *arguments]

    def node(self, name, port, *arguments, nodes='2'):
        """An agent on a host of its own name, with one worker."""
        return self.start(
            CONVENE, 'run', '--nnodes', nodes, '--nproc-per-node', '1', '--rdzv-endpoint', f'localhost:{port}', '--rdzv-id', 'job',
            '--rdzv-conf', f'{LEASE},is_host=0', '--local-addr', '127.0.0.1', '--max-restarts', '0', *arguments, *self.train(),
            log=f'{name}.log', NODE=name)

    def daemon(self, port):
        return self.start(CONVENED, '--port', port, '--state-dir', self.path('state'), log='daemon.log')

    def pids_of(self, name):
        """The processes of one node: the agent, its guardian, its workers."""
        return [pid for pid in processes_with(self.marker) if environment_of(pid).get('NODE') == name]

    def suspend(self, pids, seconds=PAUSE_S):
        self.assertTrue(pids)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(seconds)

    def assert_goes_on(self, *agents):
        """More steps are made, by the workers of the first epoch; each step once."""
        before = read_metrics(self.path('metrics.jsonl'))[-1]['step']
        self.wait_for_step(before + 5)
        steps = [m['step'] for m in read_metrics(self.path('metrics.jsonl'))]
        text = '\n'.join(self.output(agent) for agent in agents)
        self.assertEqual(steps, list(range(1, len(steps) + 1)), text[-4000:])
        self.assertNotIn('epoch 2', text)
        self.assertNotIn('stopping the workers', text)

    def end(self, *agents):
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        for agent in agents:
            self.assertIn(agent.wait(60), (128 + signal.SIGTERM,), self.output(agent)[-4000:])

    def test_a_job_with_its_daemon_is_suspended_for_longer_than_every_limit(self):
        agent = self.start(CONVENE, 'run', '--standalone', '--nproc-per-node', '2', '--hang-timeout', 'step=3', *self.train(
            collective_timeout_seconds=4))
        self.wait_for_step(5)
        self.suspend(processes_with(self.marker))
        self.assert_goes_on(agent)
        self.end(agent)

    def test_two_nodes_and_their_daemon_are_suspended(self):
        port = free_port()
        daemon = self.daemon(port)
        agents = [self.node('a', port), self.node('b', port)]
        self.wait_for_step(5)
        self.suspend(processes_with(self.marker))
        self.assert_goes_on(*agents)
        self.assertIn('stood still', self.output(daemon))
        self.end(*agents)

    def test_two_nodes_are_suspended_and_their_daemon_runs_on(self):
        port = free_port()
        daemon = self.daemon(port)
        agents = [self.node('a', port), self.node('b', port)]
        self.wait_for_step(5)
        self.suspend(self.pids_of('a') + self.pids_of('b'))
        self.assert_goes_on(*agents)
        self.assertNotIn('is lost', self.output(daemon))
        self.end(*agents)

    def test_a_node_that_is_suspended_alone_is_fenced(self):
        port = free_port()
        self.daemon(port)
        a = self.node('a', port, nodes='1:2')
        b = self.node('b', port, nodes='1:2')
        self.wait_for_step(5)
        stopped = self.pids_of('b')
        worker = next(pid for rank, pid in self.workers().items() if pid in stopped)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        # The other node goes on without it, and nobody is blamed: --max-restarts is 0.
        wait_until(lambda: 'epoch 2: node 0 of 1' in self.output(a), 30, 'the epoch without it')
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        woken = time.monotonic()
        wait_until(lambda: not os.path.exists(f'/proc/{worker}'), 5, 'the old worker is dead')
        self.assertLess(time.monotonic() - woken, 2)
        # It joins again as a late node.
        wait_until(lambda: 'of 2, ranks' in self.output(b).rsplit('stopping the workers', 1)[-1], 40, 'the node is back')
        self.end(a, b)


if __name__ == '__main__':
    unittest.main()
