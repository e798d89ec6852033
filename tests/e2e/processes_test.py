"""Nothing that a worker starts outlives its epoch, nor the agent, however the agent ends; signals reach workers once."""

import os
import re
import signal
import subprocess
import time
import unittest

from tests.support.convene_testing import CONVENE, ConveneTestCase, find_program, wait_until
from tests.support.terminals import Terminal

# A worker with a family: each writes its number, then sleeps. `hidden` has left the session and cleared its environment: only the tree
# of processes and cgroups know where it came from.
FAMILY = r'''
say() { echo $(sh -c 'echo $PPID') > "$T/$1.$RANK.new"; mv "$T/$1.$RANK.new" "$T/$1.$RANK"; }
rest() { say $1; exec sleep 1000; }
(rest child) &
( (rest grandchild) & rest middle) &
( ( (rest orphan) & ) & ) &
export T RANK
setsid sh -c 'echo $$ > $T/session.$RANK; exec sleep 1000' > /dev/null 2>&1 &
(setsid sh -c '(trap "" HUP TERM; sh -c "echo \$PPID" > $T/daemon.$RANK; sleep 1000; :) &' > /dev/null 2>&1 &)
[ -z "$HIDDEN" ] || (env -i setsid sh -c "echo \$\$ > $T/hidden.$RANK; exec sleep 1000" > /dev/null 2>&1 &)
timeout 1000 sh -c 'echo $PPID > $T/timeout.$RANK; exec sleep 1000' &
say worker
'''
NAMES = ('worker', 'child', 'grandchild', 'middle', 'orphan', 'session', 'daemon', 'timeout')


def state_of(pid):
    """As in ps; '' when there is no such process."""
    try:
        with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as file:
            return file.read().rsplit(')', 1)[1].split()[0]
    except OSError:
        return ''


def is_dead(pid):
    return state_of(pid) in ('', 'Z', 'X')


def find_guardian_of(agent):
    for name in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{name}/stat', encoding='ascii', errors='replace') as file:
                text = file.read()
        except OSError:
            continue
        if '(convene-guard)' in text and int(text.rsplit(')', 1)[1].split()[1]) == agent:
            return int(name)
    return None


def guardian_of(agent):
    return wait_until(lambda: find_guardian_of(agent), 10, 'the guardian under its name')


def cgroups_writable():
    for root in ('/sys/fs/cgroup', '/sys/fs/cgroup/unified'):
        if os.path.exists(f'{root}/cgroup.procs') and os.access(f'{root}/cgroup.procs', os.W_OK):
            with open('/proc/self/cgroup', encoding='ascii') as file:
                own = next((line[3:].strip() for line in file if line.startswith('0::/')), None)
            return own is not None and os.access(f'{root}{own}', os.W_OK)
    return False


def cgroups_of(agent):
    return [path for path, _, _ in os.walk('/sys/fs/cgroup') if f'/convene.{agent}.' in path]


class ProcessesTest(ConveneTestCase):

    def run_job(self, script, nproc=2, log='agent.log', arguments=(), **environment):
        return self.start(CONVENE, 'run', '--standalone', '--nproc-per-node', nproc, *arguments, '--no-python', '/bin/sh', '-c', script,
                          log=log, T=self.directory, **environment)

    def pid(self, name, rank=0):
        def read():
            path = self.path(f'{name}.{rank}')
            if not os.path.exists(path):
                return None
            with open(path, encoding='ascii') as file:
                text = file.read()
            return int(text) if text.endswith('\n') else None
        return wait_until(read, 20, f'the number of {name} of rank {rank}')

    def family(self, names=NAMES, nproc=2):
        return {f'{name} of rank {rank}': self.pid(name, rank) for rank in range(nproc) for name in names}

    def assert_dies(self, pids, timeout_s=5):
        try:
            wait_until(lambda: all(map(is_dead, pids.values())), timeout_s, 'processes of the job')
        except AssertionError:
            self.fail('still there: ' + ', '.join(name for name, pid in pids.items() if not is_dead(pid)))

    def check_killed_agent_leaves_nothing(self, names=NAMES, **environment):
        agent = self.run_job(FAMILY + 'exec sleep 1000', **environment)
        family = self.family(names)
        self.assertEqual([name for name, pid in family.items() if is_dead(pid)], [])
        guardian = guardian_of(agent.pid)
        agent.kill()
        agent.wait(10)
        self.assert_dies(family)
        self.assert_dies({'the guardian': guardian})
        self.assertEqual(cgroups_of(agent.pid), [])
        self.assert_nothing_left()

    def test_a_killed_agent_leaves_nothing(self):
        self.check_killed_agent_leaves_nothing()

    def test_a_killed_agent_leaves_nothing_without_cgroups_either(self):
        self.check_killed_agent_leaves_nothing(CONVENE_CGROUPS='off')

    def test_a_cgroup_holds_even_what_cannot_be_told_by_its_looks(self):
        if not cgroups_writable():
            self.skipTest('cgroups (v2) are not writable here')
        self.check_killed_agent_leaves_nothing(names=NAMES + ('hidden',), HIDDEN='1')

    def test_an_agent_that_crashes_leaves_nothing(self):
        agent = self.run_job(FAMILY + 'exec sleep 1000')
        family = self.family()
        agent.send_signal(signal.SIGSEGV)
        agent.wait(10)
        self.assert_dies(family)
        self.assert_nothing_left()

    def test_what_workers_leave_behind_ends_with_their_epoch(self):
        for cgroups in ('', 'off'):
            with self.subTest(cgroups=cgroups):
                # Also when the worker ended well, and its daemon has nothing left in common with it.
                agent = self.run_job(
                    FAMILY + f'for n in {" ".join(NAMES)} hidden; do while ! [ -e $T/$n.$RANK ]; do :; done; done', HIDDEN='1', CONVENE_CGROUPS=cgroups,
                    arguments=('--leftover-grace', '0'))
                guardian = guardian_of(agent.pid)
                self.finish(agent, 30)
                # At once: the command has ended.
                left = {name: pid for name, pid in self.family(NAMES + ('hidden',)).items() if not is_dead(pid)}
                self.assertEqual(left, {})
                self.assert_dies({'the guardian': guardian})
                self.assertEqual(cgroups_of(agent.pid), [])
                for name in os.listdir(self.directory):
                    if name.rsplit('.', 1)[-1] in ('0', '1'):
                        os.unlink(self.path(name))

    def test_an_upload_that_a_successful_worker_left_running_finishes(self):
        text = self.finish(self.run_job('(sleep 1.5; echo uploaded > $T/upload.$RANK) > /dev/null 2>&1 &'), 30)
        self.assertIn('(--leftover-grace): sh (pid ', text)
        for rank in (0, 1):
            self.assertTrue(os.path.exists(self.path(f'upload.{rank}')))
        self.assert_nothing_left()

    def test_a_signal_while_an_upload_goes_on_ends_it_and_leaves_the_success(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number):
                agent = self.run_job('(trap "" HUP INT; sleep 1000) > /dev/null 2>&1 &', log=f'{number}.log')
                wait_until(lambda: '(--leftover-grace): ' in self.output(agent), 20, 'the upload')
                agent.send_signal(number)
                self.assertIn('ending processes that the workers left behind', self.finish(agent, 10))
                self.assert_nothing_left()

    def test_what_goes_on_beyond_the_grace_is_named_and_ended(self):
        text = self.finish(self.run_job('setsid sh -c "trap \\"\\" TERM; while :; do sleep 0.1; done" & exit 0', nproc=1,
                                        arguments=('--leftover-grace', '0.2')), 30)
        self.assertIn('--leftover-grace is over', text)
        self.assertTrue(re.search(r'killing processes that the workers left behind.*: sh \(pid \d+\)', text), text)
        self.assert_nothing_left()

    def test_shared_memory_is_unlinked_however_its_worker_ends(self):
        source = ('import os, signal\nfrom multiprocessing import shared_memory\n'
                  'shared_memory.SharedMemory(create=True, size=4096, name=os.environ["SEGMENT"])\n')
        for number, (end, code) in enumerate((('', 0), ('os._exit(0)', 0), ('os._exit(1)', 1), ('os.kill(os.getpid(), signal.SIGKILL)', 1))):
            with self.subTest(end=end):
                script, segment = self.path('segment.py'), f'convene_test_{os.getpid()}_{number}'
                with open(script, 'w', encoding='ascii') as file:
                    file.write(source + end)
                self.finish(self.start(CONVENE, 'run', '--standalone', script, log=f'segment.{number}.log', SEGMENT=segment), 30, code)
                self.assertFalse(os.path.exists(f'/dev/shm/{segment}'))

    def test_services_that_were_there_before_the_command_are_left_alone(self):
        # A container's entrypoint: what it started, and whatever loses its parent, becomes the command's child.
        with open(self.path('job.sh'), 'w', encoding='ascii') as file:
            file.write(FAMILY + f'for n in {" ".join(NAMES)}; do while ! [ -e $T/$n.$RANK ]; do :; done; done\n')
        with open(self.path('entrypoint.sh'), 'w', encoding='ascii') as file:
            file.write("setsid sh -c 'echo $$ > $T/service.0; exec sleep 1000' > /dev/null 2>&1 &\n"
                       'while ! [ -s $T/service.0 ]; do :; done\n'
                       f'exec {find_program(CONVENE)} run --standalone --nproc-per-node 2 --leftover-grace 0 --no-python /bin/sh $T/job.sh\n')
        name, value = self.marker.split('=', 1)
        ended = subprocess.run(['/bin/sh', self.path('entrypoint.sh')], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, timeout=60, check=False, env={**os.environ, name: value, 'T': self.directory})
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertEqual([name for name, pid in self.family().items() if not is_dead(pid)], [])
        self.assertFalse(is_dead(self.pid('service')))

    def test_the_next_epoch_finds_the_place_clean(self):
        script = ('if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then '
                  'for f in $T/*.[01]; do p=$(cat $f); [ -e /proc/$p ] && [ "$(cut -d" " -f3 /proc/$p/stat)" != Z ] && echo LEFT $f; done; exit 0; fi\n'
                  + FAMILY + 'exec sleep 1000')
        agent = self.run_job(script, HIDDEN='1', arguments=('--max-restarts', '1'))
        self.family(NAMES + ('hidden',))
        os.kill(self.pid('worker'), signal.SIGKILL)
        self.assertNotIn('LEFT', self.finish(agent, 30))

    def test_beside_strangers_the_place_is_cleared_also_of_what_has_no_environment(self):
        script = ('if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then ! kill -0 $(cat $T/left); exit; fi\n'
                  'env -i sh -c "trap \'\' TERM; echo \\$\\$ > $T/left; sleep 999; :" & until [ -s $T/left ]; do sleep 0.01; done; exit 1')
        shell_with_a_child = ('sh', '-c', 'sleep 1000 > /dev/null 2>&1 & exec "$@"', 'sh')  # As pid 1 of a container has them.
        run = self.start(CONVENE, 'run', '--standalone', '--max-restarts', 1, '--no-python', 'sh', '-c', script, prefix=shell_with_a_child,
                         T=self.directory, CONVENE_CGROUPS='off')
        self.finish(run, 30)

    def test_guardian_and_agent_killed_together_leave_no_worker(self):
        agent = self.run_job('echo $$ > $T/worker.$RANK; exec sleep 1000')
        workers = self.family(('worker',))
        os.kill(guardian_of(agent.pid), signal.SIGKILL)
        agent.kill()
        self.assert_dies(workers)

    def test_what_survived_both_is_ended_by_the_next_agent_where_cgroups_are_writable(self):
        if not cgroups_writable():
            self.skipTest('cgroups (v2) are not writable here')
        agent = self.run_job(FAMILY + 'exec sleep 1000', HIDDEN='1')
        hidden = self.family(('hidden',))
        guardian = guardian_of(agent.pid)
        agent.send_signal(signal.SIGSTOP)  # It is not to start another.
        os.kill(guardian, signal.SIGKILL)
        agent.kill()
        agent.wait(10)
        self.assertEqual([name for name, pid in hidden.items() if is_dead(pid)], [])
        self.finish(self.run_job('true', log='next.log'), 30)
        self.assert_dies(hidden)
        self.finish(self.run_job('true', log='third.log'), 30)
        self.assertEqual(cgroups_of(agent.pid), [])

    def test_a_second_guardian_does_the_same(self):
        agent = self.run_job(FAMILY + 'exec sleep 1000')
        family = self.family()
        first = guardian_of(agent.pid)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: find_guardian_of(agent.pid) not in (None, first), 10, 'another guardian')
        agent.kill()
        self.assert_dies(family)
        self.assert_nothing_left()

    def test_a_pipe_ends_with_the_agent(self):
        for kill in (False, True):
            with self.subTest(kill=kill):
                command = [find_program(CONVENE), 'run', '--standalone', '--no-python', '/bin/sh', '-c',
                           f'echo here; exec {"sleep 1000" if kill else "true"}']
                with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as agent:
                    wait_until(lambda: b'here' in agent.stdout.readline(), 10, 'the first line')
                    if kill:
                        agent.kill()
                    started = time.monotonic()
                    agent.stdout.read()
                    self.assertLess(time.monotonic() - started, 4)

    def test_each_signal_is_passed_on_as_itself(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            with self.subTest(signal=number):
                name = number.name[3:]
                agent = self.run_job(
                    'for s in TERM INT HUP QUIT; do trap "echo got $s; exit 0" $s; done; '
                    'echo $$ > $T/worker.$RANK; while :; do sleep 0.02; done', log=f'{name}.log')
                self.family(('worker',))
                agent.send_signal(number)
                text = self.finish(agent, 20, 128 + number)
                self.assertEqual(re.findall('got (.*)', text), [name, name])
                for rank in (0, 1):
                    os.unlink(self.path(f'worker.{rank}'))

    def test_control_c_reaches_workers_once_and_control_z_stops_them(self):
        script = ('n=0; trap "n=\\$((n+1)); echo int \\$n" INT; echo $$ > $T/worker.$RANK; '
                  'i=0; while [ $n = 0 ] || [ $i -lt 20 ]; do sleep 0.02; [ $n = 0 ] || i=$((i+1)); done; echo end $n')
        command = [find_program(CONVENE), 'run', '--standalone', '--nproc-per-node', '2', '--no-python', '/bin/sh', '-c', script]
        terminal = Terminal(self, command, log='terminal.log')
        agent = terminal.process
        workers = self.family(('worker',))
        terminal.type('\x1a')
        wait_until(lambda: state_of(agent.pid) == 'T', 10, 'the agent is stopped')
        # D: a shell whose child (vfork) was stopped before it became its program.
        wait_until(lambda: all(state_of(pid) in ('T', 'D') for pid in workers.values()), 10, 'the workers are stopped')
        agent.send_signal(signal.SIGCONT)
        wait_until(lambda: all(state_of(pid) in ('R', 'S') for pid in workers.values()), 10, 'the workers go on')
        terminal.type('\x03')
        text = self.finish(agent, 20, 128 + signal.SIGINT)
        self.assertEqual(len(re.findall('int 1', text)), 2, text)
        self.assertEqual(len(re.findall('end 1', text)), 2, text)
        self.assert_nothing_left()


if __name__ == '__main__':
    unittest.main()
