"""The stdin of workers: a pipe or a file as under torchrun; on a terminal one worker gets it, and Ctrl-C still stops the job."""

import os
import re
import signal
import subprocess
import termios
import time
import unittest

from tests.support.convene_testing import CONVENE, ConveneTestCase, find_program
from tests.support.terminals import Terminal

BREAKPOINT = '''
import sys
x = 41
breakpoint()
print('after', x, flush=True)
'''
# Each worker says what it reads.
READS = 'IFS= read -r a; [ -t 0 ] && t=terminal || t=none; echo "$LOCAL_RANK got <$a> $t"'


class TerminalTest(ConveneTestCase):

    def on_terminal(self, *arguments):
        return Terminal(self, [find_program(CONVENE), 'run', '--standalone', *arguments])

    def script(self, text):
        path = self.path('script.py')
        with open(path, 'w', encoding='ascii') as file:
            file.write(text)
        return path

    def test_breakpoint_works_for_the_only_worker(self):
        terminal = self.on_terminal(self.script(BREAKPOINT))
        terminal.expect('(Pdb) ')
        terminal.type('p [f.isatty() for f in (sys.stdin, sys.stdout, sys.stderr)]\n')
        terminal.expect('[True, True, True]')
        terminal.expect('(Pdb) ')
        terminal.type('x = 42\n')
        terminal.expect('(Pdb) ')
        terminal.type('c\n')
        terminal.expect('after 42')
        self.assertEqual(terminal.finish(), 0)
        self.assert_nothing_left()

    def test_breakpoint_works_for_the_rank_that_is_named_among_several(self):
        terminal = self.on_terminal('--nproc-per-node', '3', '--debug-rank', '1', self.script(
            'import os\nif os.environ["LOCAL_RANK"] == "1":\n    breakpoint()\n    print("after", flush=True)\n'))
        terminal.expect('(Pdb) ')
        terminal.type('c\n')
        terminal.expect('after')
        self.assertEqual(terminal.finish(), 0)

    def test_of_several_workers_none_reads_the_terminal_unless_it_is_named(self):
        terminal = self.on_terminal('--nproc-per-node', '2', '--no-python', '/bin/sh', '-c', READS)
        self.assertEqual(terminal.finish(), 0)
        self.assertEqual(sorted(re.findall('[01] got.*(?=\r)', terminal.text)), ['0 got <> none', '1 got <> none'])

    def test_a_rank_to_debug_without_a_terminal_is_told_so(self):
        text = self.finish(self.start(CONVENE, 'run', '--standalone', '--debug-rank', '0', '--no-python', '/bin/sh', '-c', READS), 30)
        self.assertIn('--debug-rank 0 gives no worker a terminal', text)
        self.assertIn('0 got <> none', text)

    def test_control_c_at_a_prompt_is_the_jobs(self):
        terminal = self.on_terminal('--no-python', '/bin/sh', '-c', 'trap "echo int; exit 0" INT; echo prompt; read a; read a; echo never')
        terminal.expect('prompt')
        terminal.type('\x03')
        self.assertEqual(terminal.finish(), 128 + signal.SIGINT)
        self.assertEqual(len(re.findall(r'\bint\r', terminal.text)), 1, terminal.text)
        self.assertNotIn('never', terminal.text)
        self.assert_nothing_left()

    def test_a_worker_that_dies_at_its_prompt_leaves_the_terminal_as_it_was(self):
        terminal = self.on_terminal('--no-python', '/bin/sh', '-c', 'stty raw -echo; echo raw; kill -9 $$')
        self.assertEqual(terminal.finish(), 1)
        self.assertIn('raw', terminal.text)
        self.assertEqual(termios.tcgetattr(terminal.slave), terminal.settings)

    def test_so_does_one_that_a_second_control_c_kills(self):
        terminal = self.on_terminal('--no-python', '/bin/sh', '-c', 'trap "" INT TERM; stty -echo; echo ready; while :; do sleep 0.05; done')
        terminal.expect('ready')
        terminal.type('\x03')
        terminal.expect('Ctrl-C once more')
        time.sleep(1.1)
        terminal.type('\x03')
        self.assertEqual(terminal.finish(), 128 + signal.SIGINT)
        self.assertEqual(termios.tcgetattr(terminal.slave), terminal.settings)

    def test_a_command_that_setsid_led_away_leaves_the_terminal_to_its_session(self):
        job = f"{find_program(CONVENE)} run --standalone --no-python /bin/sh -c '{READS}'"
        terminal = Terminal(self, ['/bin/bash', '-c', f'setsid -w {job}; true'])
        self.assertEqual(terminal.finish(), 0)
        self.assertIn('0 got <> none', terminal.text)

    def test_sent_to_the_background_at_a_prompt_it_stops_and_takes_nothing_from_the_shell(self):
        worker = 'echo asks; read a; echo "worker <$a>"'
        job = f"{find_program(CONVENE)} run --standalone --no-python /bin/sh -c '{worker}'"
        terminal = Terminal(self, ['/bin/bash', '-mc', f'{job}; bg; sleep 2; jobs; read b; echo "shell <$b>"; fg'])
        terminal.expect('asks')
        terminal.type('\x1a')
        terminal.expect('all of it rests until')
        terminal.expect('Stopped')
        terminal.type('one\n')
        terminal.expect('shell <one>')
        terminal.type('two\n')
        terminal.expect('worker <two>')
        self.assertEqual(terminal.finish(), 0)

    def test_sent_to_the_background_without_a_question_it_runs_on(self):
        worker = 'echo works; until [ -e $T/go ]; do sleep 0.05; done; echo went on'
        job = f"{find_program(CONVENE)} run --standalone --no-python /bin/sh -c '{worker}'"
        terminal = Terminal(self, ['/bin/bash', '-mc', f'{job}; bg; sleep 1; touch $T/go; wait'])
        terminal.expect('works')
        terminal.type('\x1a')
        terminal.expect('went on')
        self.assertEqual(terminal.finish(), 0)

    def test_a_command_in_the_background_takes_nothing_that_is_typed(self):
        job = f"{find_program(CONVENE)} run --standalone --no-python /bin/sh -c '{READS}'"
        terminal = Terminal(self, ['/bin/bash', '-mc', f'{job} & wait'])
        self.assertEqual(terminal.finish(), 0)
        self.assertIn('0 got <> none', terminal.text)

    def test_a_pipe_and_a_file_are_read_as_under_torchrun(self):
        command = [find_program(CONVENE), 'run', '--standalone', '--no-python', '/bin/sh', '-c', READS]
        name, value = self.marker.split('=', 1)
        environment = {**os.environ, name: value}
        done = subprocess.run(command, input='from a pipe\n', stdout=subprocess.PIPE, text=True, timeout=60, check=True, env=environment)
        self.assertIn('0 got <from a pipe> none', done.stdout)
        with open(self.path('words'), 'w+', encoding='ascii') as file:
            file.write('from a file\n')
            file.seek(0)
            done = subprocess.run(command, stdin=file, stdout=subprocess.PIPE, text=True, timeout=60, check=True, env=environment)
        self.assertIn('0 got <from a file> none', done.stdout)
        done = subprocess.run(['/bin/bash', '-c', 'exec "$@" <&-', 'bash', *command], stdout=subprocess.PIPE, text=True, timeout=60, check=True,
                              env=environment)
        self.assertIn('0 got <> none', done.stdout)


if __name__ == '__main__':
    unittest.main()
