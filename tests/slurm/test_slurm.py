"""A real Slurm for tests: one controller and several nodes on this machine, up in two seconds, and gone without a trace at the end.

Each node is a slurmd in a mount and a host name namespace of its own: `hostname` says the node's name there, /etc/hosts knows the names of all
nodes, and the folder `local` is a disk that no other node sees. With names_resolve=False the hosts are called host-NODE, and only Slurm knows
the names of its nodes. All nodes have this machine's address (not a loopback one: on a real cluster each node would meet itself
there). Slurm's files, ports, munge key and job numbers are this Slurm's own: several may run at the same time, and an installed Slurm is not
touched.

    class MyTest(SlurmTestCase):
        NODES, TRACKER = 3, 'cgroup'
        def test_it(self):
            step = self.srun(['-N2'], CONVENE, 'run', ...)      # as ConveneTestCase.start(); self.finish(step, 60)
            job = self.sbatch(self.write('job.sh', text), '--partition=low')
            self.wait_for_state(job, 'COMPLETED', 60)

The tests skip where there is no root, no Slurm (tools/install_packages check) or no namespaces.
"""

import os
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import unittest

from tests.slurm import slurm_guard
from tests.support.convene_testing import (CONVENE, CONVENE_TRAIN, ConveneTestCase, find_program, free_port, processes_with, read_metrics,
                                           wait_until)

_PATH = os.environ.get('PATH', '') + ':/usr/sbin:/usr/bin:/sbin:/bin'
_PROGRAMS = ('slurmctld', 'slurmd', 'srun', 'sbatch', 'scancel', 'scontrol', 'sinfo', 'squeue', 'sbcast')
# "$4": for cgroup2, with v2 alone where Slurm looks for it.
_NODE = """
if [ -n "$4" ]; then
  export LD_PRELOAD="$4"
  [ ! -d /sys/fs/cgroup/unified ] || mount --bind /sys/fs/cgroup/unified /sys/fs/cgroup
  mkdir -p /sys/fs/cgroup/system.slice
fi
hostname "$3" && mount --bind "$2/hosts" /etc/hosts && mount -t tmpfs tmpfs "$2/local" && readlink /proc/self/ns/mnt >>"$2/namespaces.$1" &&
  exec slurmd -D -N "$1" -f "$2/slurm.conf"
"""
_SECONDS_TO_IDLE = 30
# Higher tiers preempt lower ones that let themselves be preempted. A grace ends up to 15 s late: slurmctld looks every 30 s.
_PARTITIONS = (
    'PartitionName=main Default=YES PriorityTier=5 PreemptMode=OFF',
    'PartitionName=low PriorityTier=1 PreemptMode=REQUEUE GraceTime=4',
    'PartitionName=lowcancel PriorityTier=1 PreemptMode=CANCEL GraceTime=4',
    'PartitionName=nograce PriorityTier=1 PreemptMode=REQUEUE',
    'PartitionName=high PriorityTier=10 PreemptMode=OFF',
)
_TRACKERS = {
    'linuxproc': {'ProctrackType': 'proctrack/linuxproc', 'TaskPlugin': 'task/none'},
    'cgroup': {'ProctrackType': 'proctrack/cgroup', 'TaskPlugin': 'task/affinity,task/cgroup'},
    # Without task/cgroup: where v1 hierarchies exist, they have the controllers.
    'cgroup2': {'ProctrackType': 'proctrack/cgroup', 'TaskPlugin': 'task/affinity'},
}
_CGROUP_CONF = {
    'linuxproc': '',
    'cgroup': 'CgroupPlugin=cgroup/v1\nCgroupAutomount=yes\nConstrainCores=no\n',
    'cgroup2': 'CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n',
}


class NoSlurm(Exception):
    """This machine runs no test Slurm; the text says why, and what would help."""


def _own_address():
    """This machine's on its way to others; nothing is sent. Raises OSError where there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far:
        far.connect(('203.0.113.1', 9))
        return far.getsockname()[0]


def _check_machine(tracker):
    if os.geteuid() != 0:
        raise NoSlurm('slurmd starts jobs as root only')
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        raise NoSlurm(f'no {missing[0]} here: tools/install_packages check')
    tried = subprocess.run(['unshare', '--mount', '--uts', 'true'], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise NoSlurm(f'no namespaces here: {tried.stderr.strip()}')
    if tracker == 'cgroup' and not os.access('/sys/fs/cgroup/freezer/tasks', os.W_OK):
        raise NoSlurm('no cgroup v1 with a freezer here: CONVENE_SLURM_TRACKER=cgroup2')
    try:
        _own_address()
    except OSError as error:
        raise NoSlurm(f'no network here, and nodes do not meet at a loopback address: {error}') from error
    if tracker == 'cgroup2' and not any(os.access(f'/sys/fs/cgroup/{where}cgroup.procs', os.W_OK) for where in ('', 'unified/')):
        raise NoSlurm('no cgroup v2 here')


class Slurm:
    """One test Slurm. `settings` are lines of slurm.conf that replace or add to ours, None takes one away."""

    def __init__(self, nodes=2, cpus=4, gpus=0, tracker='linuxproc', settings=None, partitions=_PARTITIONS, names_resolve=True):
        self.directory = None
        # The names are in cgroups' paths, so no two Slurms of this machine may share one.
        self.nodes = [f'cv{os.getpid()}n{i + 1}' for i in range(nodes)]
        self._cpus, self._gpus, self._tracker, self._names_resolve = cpus, gpus, tracker, names_resolve
        self._settings, self._partitions = settings or {}, partitions
        self._daemons = {}
        self._guard = None
        self.environment = {}

    def start(self):
        """Raises NoSlurm."""
        _check_machine(self._tracker)
        # Short: Slurm's sockets stand in it, and a path of a socket has 107 bytes.
        self.directory = tempfile.mkdtemp(prefix='cv-slurm.', dir='/tmp')
        os.chmod(self.directory, 0o755)  # munge insists
        self._guard = subprocess.Popen(
            [sys.executable, '-m', 'tests.slurm.slurm_guard', self.directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True, env={**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, sys.path))})
        self.environment = {'SLURM_CONF': self.path('slurm.conf'), slurm_guard.MARKER: self.directory, 'PATH': _PATH}
        try:
            self._write_files()
            if shutil.which('munged', path=_PATH):
                self._start_munge()
            self._start_daemon('slurmctld', 'slurmctld', '-D', '-c', '-f', self.path('slurm.conf'))
            for node in self.nodes:
                self.start_node(node)
            self.wait_until_idle()
        except BaseException:
            self.stop()
            raise

    def stop(self):
        """Nothing of it is left: AssertionError names what is."""
        left, _ = self._guard.communicate()
        for daemon in self._daemons.values():
            daemon.wait()
        assert self._guard.returncode == 0, f'left of the test Slurm: {left}'

    def path(self, name):
        return os.path.join(self.directory, name)

    def _host_name(self, node):
        return node if self._names_resolve else f'host-{node}'

    def _write(self, name, text):
        with open(self.path(name), 'w', encoding='ascii') as out:
            out.write(text)

    def _write_files(self):
        for folder in ('state', 'spool', 'log', 'local'):
            os.mkdir(self.path(folder))
        with open('/etc/hosts', encoding='utf-8') as hosts:
            self._write('hosts', f'{hosts.read()}\n{_own_address()} {" ".join(map(self._host_name, self.nodes))}\n')
        self._write('cgroup.conf', _CGROUP_CONF[self._tracker])
        gpus = ''
        for index in range(self._gpus):
            os.mknod(self.path(f'gpu{index}'), stat.S_IFCHR | 0o600, os.makedev(240, index))
        if self._gpus:
            files = self.path(f'gpu[0-{self._gpus - 1}]')
            gpus = ''.join(f'NodeName={node} Name=gpu File={files}\n' for node in self.nodes)
        self._write('gres.conf', gpus)
        self._write('slurm.conf', self._configuration())

    def _configuration(self):
        with_munge = shutil.which('munged', path=_PATH) is not None
        host = socket.gethostname().split('.')[0]
        values = {
            'ClusterName': 'test', 'SlurmctldHost': f'{host}(127.0.0.1)', 'SlurmctldPort': free_port(),
            'SlurmUser': 'root', 'SlurmdUser': 'root', 'StateSaveLocation': self.path('state'), 'SlurmdSpoolDir': self.path('spool/%n'),
            'SlurmctldPidFile': self.path('slurmctld.pid'), 'SlurmdPidFile': self.path('%n.pid'),
            'SlurmctldLogFile': self.path('log/slurmctld'), 'SlurmdLogFile': self.path('log/%n'),
            'AuthType': 'auth/munge' if with_munge else 'auth/none', 'CredType': 'cred/munge' if with_munge else 'cred/none',
            # A requeued job may not run again before its last credential has run out.
            'AuthInfo': 'cred_expire=5' + (f',socket={self.path("munge.socket")}' if with_munge else ''),
            'MpiDefault': 'none', 'SwitchType': 'switch/none', 'SelectType': 'select/cons_tres', 'SelectTypeParameters': 'CR_CPU',
            'SchedulerType': 'sched/backfill', 'SchedulerParameters': 'bf_interval=1,sched_interval=2',
            'SlurmdParameters': 'config_overrides',  # as many CPUs as we say
            'GresTypes': 'gpu', 'ReturnToService': 2, 'JobRequeue': 1, 'RequeueExit': 75, 'RequeueExitHold': 76, 'KillWait': 5,
            'SlurmdTimeout': 30, 'PreemptType': 'preempt/partition_prio', 'PreemptMode': 'REQUEUE',
            # Jobs of two Slurms must not meet at the port that follows from the job's number.
            'FirstJobId': random.randrange(1000, 60_000_000),
            **_TRACKERS[self._tracker], **self._settings,
        }
        lines = [f'{key}={value}' for key, value in values.items() if value is not None]
        gres = f' Gres=gpu:{self._gpus}' if self._gpus else ''
        lines += [f'NodeName={node} NodeHostname={self._host_name(node)} NodeAddr={_own_address()} Port={free_port()} CPUs={self._cpus} RealMemory=4000{gres}'
                  for node in self.nodes]
        lines += [f'{partition} Nodes=ALL MaxTime=INFINITE State=UP' for partition in self._partitions]
        return '\n'.join(lines) + '\n'

    def _start_daemon(self, name, *command):
        with open(self.path(f'log/{name}.start'), 'ab') as log:
            self._daemons[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **self.environment})

    def _start_munge(self):
        with open(self.path('munge.key'), 'wb', opener=lambda path, flags: os.open(path, flags, 0o600)) as key:
            key.write(os.urandom(128))
        files = [f'--{option}-file={self.path("munge." + option)}' for option in ('key', 'pid', 'log', 'seed')]
        self._start_daemon('munged', 'munged', '--foreground', '--force', f'--socket={self.path("munge.socket")}', *files)
        wait_until(lambda: os.path.exists(self.path('munge.socket')) or self._daemons['munged'].poll() is not None, 10, 'munged')

    def start_node(self, node):
        """Starts the node's slurmd, for the first time or again."""
        preloaded = os.path.abspath(find_program('tests/slurm/unified_cgroup.so')) if self._tracker == 'cgroup2' else ''
        self._start_daemon(node, 'unshare', '--mount', '--uts', '--propagation', 'private', 'sh', '-c', _NODE, 'sh', node, self.directory,
                           self._host_name(node), preloaded)

    def stop_controller(self):
        """As a restart of its service does: it writes its state first, and the jobs run on."""
        self._daemons['slurmctld'].terminate()
        self._daemons['slurmctld'].wait()

    def start_controller(self):
        """Starts slurmctld again, with the state that it wrote; waits until it answers."""
        self._start_daemon('slurmctld', 'slurmctld', '-D', '-f', self.path('slurm.conf'))
        wait_until(lambda: self.ask('scontrol', 'ping', may_fail=True).rstrip().endswith('UP'), 30, 'slurmctld')

    def kill_slurmd(self, node):
        """SIGKILL for the node's slurmd alone: its jobs compute on, and Slurm gives the node up after SlurmdTimeout."""
        self._daemons[node].kill()
        self._daemons[node].wait()

    def kill_node(self, node):
        """The power fails: SIGKILL for all that runs on the node."""
        self.kill_slurmd(node)
        wait_until(lambda: not self._kill_all(slurm_guard.processes_in(slurm_guard.namespaces_of(self.directory, node))), 10,
                   f'the end of all processes of {node}')

    @staticmethod
    def _kill_all(pids):
        slurm_guard.kill(pids)
        return pids

    def ask(self, *command, timeout_s=30, may_fail=False, **environment):
        """The stdout of one of Slurm's commands."""
        done = subprocess.run([str(word) for word in command], env={**os.environ, **self.environment, **environment}, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False)
        if done.returncode != 0 and not may_fail:
            raise AssertionError(f'{command} ended with {done.returncode}: {done.stderr}{done.stdout}')
        return done.stdout

    def states(self):
        """Node name -> state, such as idle, mixed, down*."""
        return dict(line.split() for line in self.ask('sinfo', '-h', '-N', '-o', '%N %T', may_fail=True).splitlines())

    def repair(self):
        """Starts what was killed or stopped, and takes all nodes back into service."""
        if self._daemons['slurmctld'].poll() is not None:
            self.start_controller()
        for node in self.nodes:
            if self._daemons[node].poll() is not None:
                self.start_node(node)
        for node, state in self.states().items():
            if not state.startswith(('idle', 'alloc', 'mix', 'comp')):
                self.ask('scontrol', 'update', f'NodeName={node}', 'State=RESUME', may_fail=True)

    def wait_until_idle(self, timeout_s=_SECONDS_TO_IDLE):
        try:
            wait_until(lambda: self._all_idle() or self._dead_daemon(), timeout_s, 'all nodes idle')
        except AssertionError as late:
            raise AssertionError(f'{late}: {self.states()}\n{self.logs()}') from None
        if self._dead_daemon():
            raise AssertionError(f'{self._dead_daemon()} has ended\n{self.logs()}')

    def _all_idle(self):
        states = self.states()
        return len(states) == len(self.nodes) and set(states.values()) == {'idle'}

    def _dead_daemon(self):
        return next((name for name, daemon in self._daemons.items() if daemon.poll() is not None), None)

    def logs(self):
        """The ends of the daemons' logs."""
        texts = []
        for name in sorted(os.listdir(self.path('log'))):
            with open(self.path(f'log/{name}'), encoding='utf-8', errors='replace') as log:
                texts.append(f'-- {name}\n{log.read()[-1500:]}')
        return '\n'.join(texts)


class SlurmTestCase(ConveneTestCase):
    """A Slurm for the tests of a class. Each test finds all nodes idle, and convene, torchrun and convene-train in its PATH."""

    NODES, CPUS, GPUS, SETTINGS, PARTITIONS, NAMES_RESOLVE = 2, 4, 0, {}, _PARTITIONS, True
    TRACKER = os.environ.get('CONVENE_SLURM_TRACKER', 'linuxproc')  # tools/nightly runs all of it by cgroup, too
    METRICS = 'metrics.jsonl'
    slurm = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.slurm = Slurm(cls.NODES, cls.CPUS, cls.GPUS, cls.TRACKER, cls.SETTINGS, cls.PARTITIONS, cls.NAMES_RESOLVE)
        try:
            cls.slurm.start()
        except NoSlurm as reason:
            raise unittest.SkipTest(f'no Slurm: {reason}') from None
        cls.addClassCleanup(cls.slurm.stop)

    def setUp(self):
        super().setUp()
        os.mkdir(self.path('bin'))
        for name, program in (('convene', CONVENE), ('torchrun', CONVENE), ('convene-train', CONVENE_TRAIN)):
            os.symlink(os.path.abspath(find_program(program)), self.path(f'bin/{name}'))
        name, value = self.marker.split('=', 1)
        # The environment of Slurm's commands, and so of the jobs.
        self.job_environment = {**self.slurm.environment, name: value, 'PATH': f'{self.path("bin")}:{_PATH}', 'CONVENE_LOG_LEVEL': 'info'}
        self.slurm.repair()
        self.slurm.wait_until_idle()
        self.addCleanup(self._end_jobs)

    def _end_jobs(self):
        self.ask('scancel', '--user=root', may_fail=True)

        def ended():
            slurm_guard.kill(processes_with(self.marker))
            return not self.ask('squeue', '-h', may_fail=True).strip()
        wait_until(ended, 30, 'the end of all jobs')

    def ask(self, *command, **options):
        return self.slurm.ask(*command, **{**self.job_environment, **options})

    def write(self, name, text):
        with open(self.path(name), 'w', encoding='utf-8') as out:
            out.write(text)
        return self.path(name)

    def srun(self, options, program, *arguments, **environment):
        """Starts a program of ours under srun with these options; the process is srun."""
        return self.start(program, *arguments, prefix=('srun', *map(str, options)), **{**self.job_environment, **environment})

    def sbatch(self, script, *options, **environment):
        """Submits a file; returns the job's number, as text. The job runs in the test's folder."""
        return self.ask('sbatch', '--parsable', f'--chdir={self.directory}', *options, script, **environment).strip().split(';')[0]

    def job(self, number):
        """The job's facts by `scontrol show job`: JobState, Restarts, ExitCode, NodeList, ..."""
        return dict(re.findall(r'(\w+)=(\S*)', self.ask('scontrol', '-o', 'show', 'job', number)))

    def wait_for_state(self, number, states, timeout_s=60):
        """Waits until the job is in one of `states` ("COMPLETED FAILED"); returns its facts."""
        try:
            wait_until(lambda: self.job(number)['JobState'] in states.split(), timeout_s, f'job {number}: {states}')
        except AssertionError as late:
            raise AssertionError(f'{late}; it is {self.job(number)["JobState"]}\n{self.job_output(number)[-6000:]}') from None
        return self.job(number)

    def finish_job(self, number, timeout_s, state='COMPLETED'):
        """Waits for the end of a job, checks its state, returns its output."""
        ends = 'COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL PREEMPTED'
        facts = self.wait_for_state(number, ends, timeout_s)
        text = self.job_output(number)
        self.assertEqual(facts['JobState'], state, f'{facts["ExitCode"]}\n{text[-6000:]}')
        return text

    def job_output(self, number):
        path = self.job(number).get('StdOut', '')
        if not os.path.exists(path):
            return ''
        with open(path, encoding='utf-8', errors='replace') as text:
            return text.read()

    def metrics(self, name=None):
        """The steps that were made."""
        return read_metrics(self.path(name or self.METRICS))

    def wait_for_metrics(self, job, condition, what, timeout_s=150):
        """Waits until `condition` holds for the metrics of the last step."""
        try:
            wait_until(lambda: self.metrics() and condition(self.metrics()[-1]), timeout_s, what)
        except AssertionError as late:
            raise AssertionError(f'{late}\n{self.job_output(job)[-6000:]}') from None

    def processes_on(self, node):
        """Pids of all processes on the node, Slurm's own among them."""
        return set(slurm_guard.processes_in(slurm_guard.namespaces_of(self.slurm.directory, node)))

    def workers_on(self, node):
        """RANK -> pid of the node's trainers."""
        here = self.processes_on(node)
        return {rank: pid for rank, pid in self.workers().items() if pid in here}

    def agent_on(self, node):
        """The pid of the node's launcher."""
        worker = next(iter(self.workers_on(node).values()))
        with open(f'/proc/{worker}/stat', encoding='ascii') as stat:
            return int(stat.read().rsplit(')', 1)[1].split()[1])
