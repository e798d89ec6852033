"""Shared by tests of warm workers: a script that tells what it sees, packages that it imports, and the job that runs it."""

import glob
import json
import os
import re
import signal
import sys

from tests.support.convene_testing import CONVENE, ConveneTestCase, environment_of, processes_with, wait_until

WORKERS = 2

# Beside init_process_group: a variable that an import sets, output of an import, and a module for each thing that must not be shared.
PACKAGES = {
    'torch/__init__.py': 'import os, sys\nfrom . import distributed\nos.environ["SET_BY_TORCH"] = "1"\nprint("torch is imported", flush=True)\n'
                         'print("torch warns", file=sys.stderr, flush=True)\n',
    'torch/distributed/__init__.py': 'from .distributed_c10d import *\n',
    'torch/distributed/distributed_c10d.py': 'def init_process_group(*_):\n    return "joined"\n',
    'threaded.py': 'import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n',
    'timed.py': 'import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nsignal.setitimer(signal.ITIMER_REAL, 1000)\n',
    'alarmed.py': 'import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nsignal.alarm(1000)\n',
    'opener.py': 'import socket\nheld = socket.socket()\n',
    'asks.py': 'import os\nrank = os.environ.get("RANK")\n',
    'whole.py': 'import os\nknown = {name.lower(): value for name, value in os.environ.items()}\nrank = int(known.get("rank", 0))\n',
    'keeps.py': 'import os\nknown = os.environ.copy()\n',
    'looks.py': 'import os\nown = {name: value for name, value in os.environ.items() if name.startswith("LOOKS_")}\nfor name in os.environ:\n    pass\n'
                'for value in os.environ.values():\n    pass\n',
    'reads.py': 'import sys\nline = sys.stdin.readline()\n',
    'settled.py': 'import os\nvalue = os.environ.get("CHOICE")\n',
    'plain.py': 'value = 1\n',
    'locked.py': 'import multiprocessing\nlock = multiprocessing.Lock()\n',
    'mapped.py': 'import mmap\nshared = mmap.mmap(-1, 4096)\n',
    'impatient.py': 'import socket\nsocket.setdefaulttimeout(0.001)\n',
    'lib.py': 'import shared\nvalue = shared.value\n',
    'shared.py': 'value = "of the packages"\n',
    'numpy/__init__.py': '',
    'numpy/random/__init__.py': 'import random\nown = random.Random()\nseed, draw = own.seed, own.random\n',
    'seeds.py': 'import random\nrandom.seed(7)\nimport numpy.random\nnumpy.random.seed(7)\ndrawn = lambda: (random.random(), numpy.random.draw())\n',
    'torch/optim/__init__.py': '',
    'torch/optim/optimizer.py': 'import collections\nhooks = collections.OrderedDict()\nclass Handle:\n    def remove(self):\n        hooks.pop(self)\n'
                                'def register_optimizer_step_post_hook(hook):\n    handle = Handle()\n    hooks[handle] = hook\n    return handle\n'
                                'def step():\n    for hook in hooks.values():\n        hook()\n',
    'dies.py': 'import os\nif "RANK" not in os.environ:\n    os._exit(1)\n',
    'slow.py': 'import os, time\nwhile os.path.exists(os.environ["HOLD"]):\n    time.sleep(0.01)\n',
    'held.py': 'import os, time\nwith open("/proc/self/environ", "rb") as file:\n    is_parent = b"CONVENE_WARM=parent:" in file.read()\n'
               'while is_parent and os.path.exists(os.environ["HOLD"]):\n    time.sleep(0.01)\n',
    'sitecustomize.py': 'import os\nos.environ["SET_BY_SITE"] = "1"\nprint("site is imported")\n',
}

# Writes what it sees; ends when the file `end` is there. A line for each start in `starts`, so that no rank can run twice unseen.
SCRIPT = '''
import atexit, faulthandler, json, multiprocessing, os, resource, signal, sys, threading, time, warnings
IMPORTS
import torch
sys.stdout.reconfigure(encoding='utf-8')
FOLDER = os.path.dirname(os.path.abspath(__file__))
VOLATILE = {'CONVENE_EPOCH', 'CONVENE_ATTEMPT', 'CONVENE_PROGRESS', 'MASTER_PORT', 'TORCHELASTIC_RESTART_COUNT', 'TORCHELASTIC_ERROR_FILE'}

def child(connection):
    connection.send([sys.argv, sys.path, os.environ.get('PYTHONPATH'), 'torch' in sys.modules])

def by(method):
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    process = context.Process(target=child, args=(there,))
    process.start()
    answer = here.recv()
    process.join()
    return answer, process.exitcode

def frames():
    frame, found = sys._getframe(1), []
    while frame:
        found.append(frame.f_code.co_filename)
        frame = frame.f_back
    return found

def facts():
    drawn = getattr(sys.modules.get('seeds'), 'drawn', lambda: None)()
    status = dict(line.split(':', 1) for line in open('/proc/self/status') if ':' in line)
    return {
        'argv': sys.argv, 'orig_argv': sys.orig_argv, 'path': sys.path, 'file': __file__, 'name': __name__,
        'spec': getattr(__spec__, 'name', None), 'globals': sorted(globals()),
        'flags': str(sys.flags), 'warnings': str(warnings.filters), 'frames': frames(), 'joined': torch.distributed.init_process_group(),
        'environment': {name: value for name, value in os.environ.items() if name not in VOLATILE},
        'signals': {name: status[name] for name in ('SigBlk', 'SigIgn', 'SigCgt')}, 'threads': threading.active_count(), 'cwd': os.getcwd(),
        'limits': [resource.getrlimit(limit) for limit in range(16)], 'cpus': sorted(os.sched_getaffinity(0)),
        'leads': [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()], 'agent': os.getppid(),
        'files': [os.readlink(f'/proc/self/fd/{fd}').split(':')[0] for fd in range(3)], 'fds': len(os.listdir('/proc/self/fd')),
        'streams': [str((s.encoding, s.errors, s.line_buffering, s.write_through, s.seekable())) for s in (sys.stdin, sys.stdout, sys.stderr)],
        'modules': sorted(name for name in sys.modules if name.split('.')[0] in ('torch', 'plain', 'sitecustomize', 'usercustomize')),
        'finders': [type(finder).__name__ for finder in sys.meta_path][:1] if RANK else [], 'faulthandler': faulthandler.is_enabled(),
        'spawn': by('spawn'), 'fork': by('fork'), 'settled': getattr(sys.modules.get('settled'), 'value', None),
        'drawn': drawn, 'version': getattr(sys.modules.get('lib'), 'value', None), 'thread': threading.main_thread().native_id == os.getpid(),
        'group': open('/proc/self/cgroup').read().count('convene.'),
    }

if __name__ == '__main__':
    RANK, EPOCH = int(os.environ['RANK']), int(os.environ['CONVENE_EPOCH'])
    with open(f'{FOLDER}/starts', 'a') as starts:
        starts.write(f'{EPOCH} {RANK} {os.getpid()}\\n')
    atexit.register(print, 'the end of', RANK)
    with open(f'{FOLDER}/facts.{EPOCH}.{RANK}.part', 'w') as out:
        json.dump(facts(), out)
    print('rank', RANK, 'runs in', EPOCH)
    os.rename(f'{FOLDER}/facts.{EPOCH}.{RANK}.part', f'{FOLDER}/facts.{EPOCH}.{RANK}')
    while not os.path.exists(f'{FOLDER}/end'):
        time.sleep(0.01)
'''


def parent_and_age(pid):
    """(the parent's pid, the start in ticks); (0, 0) for a process that is gone."""
    try:
        with open(f'/proc/{pid}/stat', encoding='ascii') as file:
            fields = file.read().rsplit(')', 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    return int(fields[1]), int(fields[19])


def session_of(pid):
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


class WarmTestCase(ConveneTestCase):

    def setUp(self):
        super().setUp()
        os.mkdir(self.path('run'))
        for name, text in PACKAGES.items():
            os.makedirs(os.path.dirname(self.path(f'packages/{name}')), exist_ok=True)
            self.write(f'packages/{name}', text)

    def write(self, name, text):
        """A file that has this text stays as it is, with its time."""
        if os.path.exists(self.path(name)):
            with open(self.path(name), encoding='utf-8') as file:
                if file.read() == text:
                    return
        with open(self.path(name), 'w', encoding='utf-8') as out:
            out.write(text)

    def train(self, *command, imports='import plain', spares='auto', rendezvous=('--standalone',), **environment):
        self.write('script.py', SCRIPT.replace('IMPORTS', imports))
        command = command or (sys.executable, '-u', '-X', 'faulthandler', '-W', 'error', self.path('script.py'), 'one', '--two')
        return self.start(CONVENE, 'run', *rendezvous, '--nproc-per-node', WORKERS, '--max-restarts', 9, '--warm-workers', spares, '--no-python', *command,
                          **{'PYTHONPATH': self.path('packages'), 'XDG_RUNTIME_DIR': self.path('run'), 'XDG_CACHE_HOME': self.path('cache'),
                             'HOLD': self.path('hold'), 'PYTHONDONTWRITEBYTECODE': '1', **environment})

    def said(self, job, text, times=1):
        wait_until(lambda: self.output(job).count(text) >= times, 30, lambda: f'"{text}" in\n{self.output(job)}')

    def facts(self, epoch):
        names = [self.path(f'facts.{epoch}.{rank}') for rank in range(WORKERS)]
        wait_until(lambda: all(map(os.path.exists, names)), 30, f'the facts of epoch {epoch}')
        found = []
        for name in names:
            with open(name, encoding='utf-8') as file:
                found.append(json.load(file))
        return found

    def starts(self):
        """(epoch, rank): pid; fails where a rank of an epoch has started twice."""
        found = {}
        with open(self.path('starts'), encoding='ascii') as lines:
            for line in lines:
                epoch, rank, pid = map(int, line.split())
                self.assertNotIn((epoch, rank), found, 'a rank runs twice')
                found[epoch, rank] = pid
        return found

    def spares(self, job):
        """(the parent's pid, the spares' pids): children of the agent with the parent's environment that are no workers. The parent is the oldest."""
        workers = set(self.starts().values())
        ages = {}
        for pid in set(processes_with(self.marker)) - workers:
            above, age = parent_and_age(pid)
            if above == job.pid and environment_of(pid).get('CONVENE_WARM', '').startswith('parent:'):
                ages[pid] = age
        first = min(ages, key=ages.get, default=None)
        return first, [pid for pid in ages if pid != first]

    def wait_for_spares(self, job, count=WORKERS):
        self.said(job, 'spares that are ready to become workers: 2')
        wait_until(lambda: len(self.ready_spares(job)) == count, 30, lambda: f'{count} spares in\n{self.output(job)}')

    def ready_spares(self, job):
        """A spare that is ready leads a session."""
        return {pid for pid in self.spares(job)[1] if session_of(pid) == pid}

    def kill_worker(self, epoch, rank=1):
        os.kill(self.starts()[epoch, rank], signal.SIGKILL)

    def end(self, job):
        self.write('end', '')
        text = self.finish(job, 60)
        self.assert_nothing_left()
        self.starts()
        self.assertEqual(os.listdir(self.path('run')), [], 'the folder of the agent is gone')
        return text

    def same(self, cold, warm):
        self.assertEqual(set(cold), set(warm))
        for name in cold:
            self.assertEqual(cold[name], warm[name], name)

    def check_cold_is_warm(self, job):
        cold = self.facts(1)
        self.wait_for_spares(job)
        self.kill_worker(1)
        self.said(job, '2 of 2 workers start from spares')
        for before, after in zip(cold, self.facts(2)):
            self.same(before, after)
        self.assertEqual(self.facts(2)[1]['leads'], [True, True])
        self.assertEqual(self.facts(2)[1]['agent'], job.pid)
        text = self.end(job)
        # An import prints in each worker, and in the process that multiprocessing spawns; Python's start also in the tracker of its resources.
        for line, times in (('torch is imported', 4), ('torch warns', 4), ('site is imported', 6), ('rank 1 runs in', 2), ('the end of 1', 1)):
            self.assertEqual(len(re.findall(rf'\[1\] {line}', text)), times, f'{line} in\n{text}')
        return text

    def start(self, program, *arguments, **environment):  # pylint: disable=arguments-differ
        # -m looks in the current directory.
        return super().start(program, *arguments, prefix=('env', '-C', self.directory), **environment)

    def clear(self):
        for path in [self.path('end'), self.path('starts'), *glob.glob(self.path('facts.*'))]:
            os.remove(path)
