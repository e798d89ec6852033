"""A request to stop is one request, whoever sends it and how often: the checkpoint of the current step is saved."""

import json
import os
import re
import signal
import time
import unittest

from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase, find_program, read_metrics, wait_until
from tests.support.terminals import Terminal


class StopSignalsTest(ConveneTestCase):

    def train(self, nproc=2, **changes):
        # A checkpoint only at the stop: nothing else can stand in for it.
        arguments = self.train_arguments(**{'steps': 100000, 'checkpoint_every': 100000, **changes})
        return ['run', '--standalone', '--nproc-per-node', str(nproc), '--no-python', find_program(CONVENE_TRAIN), *arguments]

    def assert_saved_at_the_last_step(self):
        """The checkpoint is whole, of the last step that was reported, and another run goes on from it."""
        last = read_metrics(self.path('metrics.jsonl'))[-1]['step']
        self.assertTrue(os.path.exists(self.path(f'checkpoints/step_{last:08d}/manifest')), f'no checkpoint of step {last}')
        agent = self.start(CONVENE, *self.train(), log='resumed.log')
        self.wait_for_step(last + 3)
        agent.send_signal(signal.SIGTERM)
        text = self.finish(agent, 60, 128 + signal.SIGTERM)
        steps = [m['step'] for m in read_metrics(self.path('metrics.jsonl'))]
        self.assertEqual(steps, list(range(1, len(steps) + 1)), text[-3000:])
        self.assert_nothing_left()

    def test_term_from_several_senders_until_the_end_loses_no_step(self):
        agent = self.start(CONVENE, *self.train())
        self.wait_for_step(5)
        targets = [agent.pid, *self.workers().values()]
        self.assertEqual(len(targets), 3)
        # As Slurm's linuxproc does at a time limit: TERM to every process, a few milliseconds apart, again and again while they save.
        number = 0
        while agent.poll() is None:
            for pid in targets:
                try:
                    os.kill(pid, signal.SIGTERM if number % 3 else signal.SIGINT)
                except ProcessLookupError:
                    pass
            number += 1
            time.sleep((0.001, 0.002, 0.015)[number % 3])
        self.assertGreater(number, 1)
        text = self.output(agent)
        self.assertIn(agent.returncode, (128 + signal.SIGTERM, 128 + signal.SIGINT), text[-3000:])
        self.assertNotIn('killing', text)
        self.assert_saved_at_the_last_step()

    def test_the_same_command_goes_on_with_a_run_that_began_with_another_runs_checkpoint(self):
        self.finish(self.start(CONVENE_TRAIN, *self.train_arguments(steps=4, checkpoint_dir=self.path('main'), metrics_file=None)), 60)
        branch = self.train(nproc=1, resume=self.path('main/step_00000004'))
        agent = self.start(CONVENE, *branch)
        self.wait_for_step(6)
        agent.send_signal(signal.SIGTERM)
        text = self.finish(agent, 60, 128 + signal.SIGTERM)
        self.assertIn('resumed after step 4,', text)
        # So does a scheduler that puts the job back into its queue, and a person who believes the last line.
        stopped = int(re.search(r'to go on +the same command goes on from step (\d+) to', text).group(1))
        self.assertGreaterEqual(stopped, 6)
        again = self.start(CONVENE, *branch, log='again.log')
        self.wait_for_step(stopped + 2)
        again.send_signal(signal.SIGTERM)
        text = self.finish(again, 60, 128 + signal.SIGTERM)
        self.assertIn(f'resumed after step {stopped},', text)
        self.assertIn('of a run that began with --resume ', text)
        steps = [m['step'] for m in read_metrics(self.path('metrics.jsonl'))]
        self.assertEqual(steps, list(range(5, len(steps) + 5)))

    def test_a_stop_beside_a_checkpoint_waits_for_it_and_saves_its_own_step_too(self):
        agent = self.start(CONVENE, *self.train(checkpoint_every=20), **self.slow_disk('/step_00000020/'))
        self.wait_for_step(21)
        agent.send_signal(signal.SIGTERM)
        wait_until(lambda: 'the checkpoint after step 20 is still being written' in self.output(agent), 20, 'a wait')
        os.remove(self.path('hold'))
        self.finish(agent, 60, 128 + signal.SIGTERM)
        self.assertTrue(os.path.exists(self.path('checkpoints/step_00000020/manifest')))
        self.assert_saved_at_the_last_step()

    def validations(self):
        with open(self.path('metrics.jsonl'), encoding='utf-8') as file:
            return [(line['step'], line.get('validation_set')) for line in map(json.loads, file) if 'validation_loss' in line]

    def test_a_validation_that_a_stop_cuts_short_is_made_up(self):
        letters = self.path('letters.txt')
        with open(letters, 'w', encoding='ascii') as file:
            file.write('abcdefgh' * 100)
        # The first set is quick, and told before the stop; the second one takes seconds.
        changes = {'checkpoint_every': 5, 'validation_every': 5, 'validation_fraction': 0.001}
        flags = ['--validation-data', f'all={self.data}', f'letters={letters}']
        agent = self.start(CONVENE, *self.train(validation_samples=100000, **changes), *flags)
        wait_until(lambda: os.path.exists(self.path('metrics.jsonl')) and self.validations(), 60, 'the first set')
        agent.send_signal(signal.SIGTERM)
        self.finish(agent, 60, 128 + signal.SIGTERM)
        self.assertEqual(self.validations(), [(5, None)])
        everything = [(step, name) for step in (5, 7) for name in (None, 'all', 'letters')]
        # The end of a run that is whole is not told twice either.
        for log in ('resumed.log', 'again.log'):
            self.finish(self.start(CONVENE, *self.train(steps=7, validation_samples=8, **changes), *flags, log=log), 60)
            self.assertEqual(self.validations(), everything)
        steps = [m['step'] for m in read_metrics(self.path('metrics.jsonl'))]
        self.assertEqual(steps, list(range(1, 8)))

    def test_workers_that_hear_the_scheduler_before_their_agent_does(self):
        agent = self.start(CONVENE, *self.train())
        self.wait_for_step(5)
        workers = list(self.workers().values())
        # The two of a time limit, and the agent's own in between.
        for pause in (0, 0.005):
            time.sleep(pause)
            for pid in (*workers, agent.pid):
                try:
                    os.kill(pid, signal.SIGTERM)
                except ProcessLookupError:
                    pass
        self.finish(agent, 60, 128 + signal.SIGTERM)
        self.assert_saved_at_the_last_step()

    def test_the_signals_of_a_scheduler_that_ask_for_nothing(self):
        agent = self.start(CONVENE, *self.train())
        self.wait_for_step(5)
        # scancel --signal=USR1, to the agent alone (proctrack/cgroup) or to every process (linuxproc); CONT comes with each TERM of Slurm.
        for number in (signal.SIGUSR1, signal.SIGCONT):
            for pid in (agent.pid, *self.workers().values()):
                os.kill(pid, number)
        os.kill(agent.pid, signal.SIGUSR2)
        self.wait_for_step(read_metrics(self.path('metrics.jsonl'))[-1]['step'] + 5)
        self.assertEqual(len(self.workers()), 2)
        agent.send_signal(signal.SIGTERM)
        self.assertNotIn('failed', self.finish(agent, 60, 128 + signal.SIGTERM))

    def run_on_terminal(self, *arguments):
        terminal = Terminal(self, [find_program(CONVENE), *arguments], log='terminal.log')
        return terminal, terminal.process

    def test_control_c_that_is_held_down_for_a_moment_saves(self):
        terminal, agent = self.run_on_terminal(*self.train())
        self.wait_for_step(5)
        # As long as a key is held down, on a loaded machine too: there thirty pauses of 10 ms may take the second that means "at once".
        first = time.monotonic()
        while time.monotonic() - first < 0.3:
            terminal.type('\x03')
            time.sleep(0.01)
        self.finish(agent, 60, 128 + signal.SIGINT)
        self.assert_saved_at_the_last_step()

    def test_a_second_control_c_clearly_later_means_at_once(self):
        terminal, agent = self.run_on_terminal(
            'run', '--standalone', '--no-python', '/bin/sh', '-c', 'trap "" INT TERM; echo $$ > $T/worker; while :; do sleep 1; done')
        wait_until(lambda: os.path.exists(self.path('worker')), 20, 'the worker')
        terminal.type('\x03')
        wait_until(lambda: 'stopping the workers' in self.output(agent), 20, 'the first is heard')
        self.assertIn('Ctrl-C once more', self.output(agent))
        time.sleep(1.1)
        self.assertIsNone(agent.poll())
        terminal.type('\x03')
        text = self.finish(agent, 20, 128 + signal.SIGINT)
        self.assertTrue(re.search('killing the workers.*a second time', text), text)
        self.assert_nothing_left()


if __name__ == '__main__':
    unittest.main()
