"""The part of warm workers that runs in the workers' Python (README.md). The agent puts it as sitecustomize.py at the front of PYTHONPATH.

Python's own start imports it, before the script. It takes itself out of the environment and of sys.path, lets the real sitecustomize run, and then
    record   (a cold worker) writes down what the script imports until its training runs, and tells the agent;
    parent   imports these modules, and forks spares of itself when the agent asks. A spare that gets its place returns from here, so that Python goes
             on to the script exactly as in a cold start: no frame, argument or path is of this file's making.
This file imports built-in modules only, so that sys.modules of a script stays as it would be.
"""

import sys

import _signal
import _socket
import marshal
import os

VARIABLE = 'CONVENE_WARM'  # agent/warm/warm_plan.h
RECORD_BYTES_MAX = 16 << 20
MEMORY_KIB_MAX = 2 << 20  # of the parent of spares: further modules are left out
BIRTH_LIMIT_S = 10
# An import may open these. Forks would share everything else.
HARMLESS = ('/dev/null', '/dev/zero', '/dev/random', '/dev/urandom')
RECORDED_AT = 'torch.distributed.distributed_c10d'


def stamp(path):
    """Time, size and number of a file, which change with it; of a module in a zip, those of the zip. None: there is no such file."""
    try:
        info = os.stat(path)
    except NotADirectoryError:
        return stamp(os.path.dirname(path))
    except OSError:
        return None
    return info.st_mtime_ns, info.st_size, info.st_ino


def origin(module):
    """The file that the module was loaded from; None: it is built in, a namespace, or made by hand."""
    spec = getattr(module, '__spec__', None)
    return spec.origin if spec is not None and getattr(spec, 'has_location', False) else None


MARKS = {None: None}  # value: its mark


def mark(value):
    """A hash (FNV-1a) of a variable's value: records lie on a disk, and values may be secrets."""
    if value not in MARKS:
        found = 0xcbf29ce484222325
        for byte in os.fsencode(value):
            found = (found ^ byte) * 0x100000001b3 & 0xffffffffffffffff
        MARKS[value] = found.to_bytes(8, 'big')  # marshal writes it as it is
    return MARKS[value]


def connect(path):
    socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    socket.settimeout(None)  # whatever default an import has set
    socket.connect(path)
    return socket


def watched_spec(watcher, then, *asked):
    """The spec that the finders but `watcher` have for a module; `then` is called with the module as soon as it has been executed."""
    for finder in sys.meta_path:
        spec = finder.find_spec(*asked) if finder is not watcher else None
        if spec is not None:
            break
    else:
        return None
    execute = spec.loader.exec_module

    def execute_and_watch(module):
        del spec.loader.exec_module
        execute(module)
        then(module)
    spec.loader.exec_module = execute_and_watch
    return spec


class Recorder:
    """Stands first in sys.meta_path, finds nothing, and sees what is looked for."""

    def __init__(self, place):
        self.place = place
        self.environment = dict(os.environ._data)  # pylint: disable=protected-access
        self.changes = []  # of the environment: {name: mark}, in their order
        self.before = {}  # module, in the order of imports: how many changes came before it
        self.steps = 0

    def find_spec(self, name, path=None, target=None):
        now = os.environ._data  # pylint: disable=protected-access
        if now != self.environment:
            names = [key for key in set(now) | set(self.environment) if now.get(key) != self.environment.get(key)]
            self.changes.append({os.fsdecode(key): mark(os.environ.get(os.fsdecode(key))) for key in names})
            self.environment = dict(now)
        self.before.setdefault(name, len(self.changes))
        return watched_spec(self, self.watch, name, path, target) if name == RECORDED_AT else None

    def watch(self, module):
        import functools
        original = module.init_process_group

        @functools.wraps(original)
        def init_process_group(*arguments, **named):
            for holder in (module, sys.modules.get('torch.distributed')):
                if getattr(holder, 'init_process_group', None) is init_process_group:
                    holder.init_process_group = original
            self.tell()
            result = original(*arguments, **named)
            self.watch_steps()
            return result
        module.init_process_group = init_process_group

    def watch_steps(self):
        """The first steps import more (an optimizer imports PyTorch's compiler), which the second step has done."""
        optimizer = sys.modules.get('torch.optim.optimizer')
        if not hasattr(optimizer, 'register_optimizer_step_post_hook'):
            return self.finish()

        def after_step(*_):
            # The hook stays: the optimizer goes through its hooks just now, and one that is taken away would end that with an error.
            self.steps += 1
            if self.steps == 2:
                self.tell()
                self.finish()
        optimizer.register_optimizer_step_post_hook(after_step)

    def finish(self):
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def tell(self):
        """Writes the record; training goes on whatever happens to it."""
        try:
            # In the order in which they were looked for; sys.modules has the order in which they were done.
            names = [name for name in sys.modules if name not in self.before] + [name for name in self.before if name in sys.modules]
            modules = [(name, origin(sys.modules[name])) for name in names if name != '__main__']
            script = getattr(sys.modules['__main__'], '__file__', None)
            record = {
                'modules': [(name, path, stamp(path), self.before.get(name, 0)) for name, path in modules if path is not None],
                'changes': self.changes,
                'programs': [(path, stamp(path)) for path in (sys.executable, script and os.path.abspath(script)) if path],
            }
            folder = os.path.dirname(self.place)
            with open(f'{folder}/record.part', 'wb') as file:
                file.write(marshal.dumps(record))
            os.rename(f'{folder}/record.part', f'{folder}/record')
            socket = connect(self.place)
            socket.send(b'recorded')
            socket.close()
        except Exception:  # pylint: disable=broad-except
            self.finish()


class Cold(Exception):
    """Why a module, or a spare, is not used."""


class Seeds:
    """Stands in sys.meta_path, and sees whether an import gives the generators of these modules a seed, which all workers then have."""
    MODULES = ('random', 'numpy.random')

    def __init__(self):
        self.given = set()
        self.watched = []  # (module, what stands for its function, its function)
        for name in self.MODULES:
            if name in sys.modules:
                self.watch(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        return watched_spec(self, self.watch, name, path, target) if name in self.MODULES else None

    def watch(self, module):
        original = module.seed

        def seed(*arguments, **named):
            is_given = any(value is not None for value in (*arguments[:1], *named.values()))
            (self.given.add if is_given else self.given.discard)(module.__name__)
            return original(*arguments, **named)
        module.seed = seed
        self.watched.append((module, seed, original))

    def end(self):
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for module, seed, original in self.watched:
            if module.seed is seed:
                module.seed = original


def can_be_found(name):
    """Whether an import looks for a file of this name. A package may put a module into sys.modules under a name that has none (`_cyutility`, of all that
    Cython built): the order of imports alone says whose file that is.
    """
    path = getattr(sys.modules.get(name.rpartition('.')[0]), '__path__', None)
    return any(finder.find_spec(name, path) is not None for finder in sys.meta_path if hasattr(finder, 'find_spec'))


class Parent:
    """Imports what was recorded, then forks spares. Lives until the agent closes the socket."""

    def __init__(self, place):
        self.place = place
        self.agent_pid = os.getppid()
        self.base = own_environment()  # what Python's own start and imports set is in os.environ, and no change
        self.files = []  # (path, stamp) of all that was recorded: a change makes spares run cold
        self.changed = {}  # what imports did to the environment
        self.drawn = None  # the state of Python's random, where an import has given a seed
        self.places = frozenset()
        self.program = ''  # as the agent starts a worker: perhaps a script that starts Python
        self.compared = set()  # modules that are the script's own
        self.output = Output()
        self.seeds = Seeds()
        self.socket = connect(place)
        hold_stdin()
        os.environ.__class__ = watched_environment()
        self.before = shared_state()
        self.error = import_real()
        self.output.flush()

    def serve(self):
        """Returns in a process that is to become a worker, with the error of the real sitecustomize."""
        self.socket.send(b'parent')
        while True:
            message, fds = receive(self.socket, 1)
            word, *rest = message.decode().split('\n')
            if word == 'import':
                self.places = type(os.environ).places = frozenset(rest[0].split(','))
                why = self.trace() if not self.files else None
                if why:
                    self.socket.send(f'never\nwhat Python itself imports at its start (sitecustomize): {why}'.encode())
                    os._exit(0)
                self.program = rest[2]
                self.take_in([name for name in rest[1].split(',') if name])
            elif word == 'fork':
                socket = _socket.socket(fileno=fds[0])
                socket.settimeout(None)
                if self.fork(socket):
                    return self.error
                socket.close()
            else:
                os._exit(0)

    def take_in(self, left_out):
        try:
            with open(f'{os.path.dirname(self.place)}/record', 'rb') as file:
                record = marshal.loads(file.read(RECORD_BYTES_MAX))
            self.check_files()  # This process has imported what an earlier record of the same start named.
            self.files = [(path, known) for _, path, known, _ in record['modules']] + record['programs']
            self.check_files()
            why = self.import_all(record, left_out)
            self.output.flush()
            self.drawn = sys.modules['random'].getstate() if 'random' in self.seeds.given else None
            now = variables()
            self.changed = {name: now.get(name) for name in {*now, *self.base} if now.get(name) != self.base.get(name)}
            self.socket.send(f'warm\nhas imported {len(sys.modules)} modules, {memory_kib() // 1024} MiB{why}'.encode())
        except Cold as cold:
            self.socket.send(str(cold).encode())
            os._exit(0)

    def check_files(self):
        for path, known in self.files:
            if stamp(path) != known:
                raise Cold(f'changed\n{path} has changed')

    def import_all(self, record, left_out):
        """Returns words about modules that are left out. Cold: this process can serve no more."""
        paths, wanted, rest = {name: path for name, path, _, _ in record['modules']}, {}, ''
        for name, path, _, changes in record['modules']:
            above, _, _ = name.rpartition('.')
            if name in sys.modules or name.split('.')[0] in left_out or (above and above not in sys.modules):
                continue
            for change in record['changes'][:changes]:
                wanted.update(change)
            now = variables()
            own = sorted(key for key, value in wanted.items() if mark(now.get(key)) != value)
            if own:
                rest = f'; the script sets {own[0]} before it imports {name}, so all from there on is left out'
                break
            if memory_kib() > MEMORY_KIB_MAX:
                rest = f'; {name} and what follows is left out, because more than {MEMORY_KIB_MAX >> 20} GiB are in use'
                break
            self.import_one(name, path, paths)
        return (f'; {", ".join(left_out)} left out' if left_out else '') + rest

    def import_one(self, name, path, paths):
        import importlib.util
        why = None
        try:
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin != path:
                return  # of the script's own folder: it is small, and the script imports it itself
            importlib.import_module(name)
        except BaseException as error:  # pylint: disable=broad-except
            why = f'its import without the script fails: {type(error).__name__}: {error}'
        why = why or self.trace() or self.stranger(paths)
        if why:
            raise Cold(f'leave\n{name.split(".")[0]}\n{name}: {why}'[:1000])

    def trace(self):
        """A deed of the last import that each worker must do for itself; None: there is none."""
        asked = sorted(type(os.environ).asked & self.places)
        if asked:
            return f'its import reads {asked[0]}, which each worker has for itself'
        if type(os.environ).is_kept():
            return 'its import keeps all variables, of which each worker has some for itself'
        return 'its import reads stdin' if os.lseek(0, 0, os.SEEK_CUR) > 0 else trace_of(self.before)

    def stranger(self, paths):
        """A module that the last import brought from another file than the script has, for sys.path has no folder of the script yet; None: there is none."""
        new = sys.modules.keys() - self.compared
        self.compared |= new
        for name in sorted(new & paths.keys()):
            here = origin(sys.modules[name])
            if here not in (None, paths[name]) and can_be_found(name):
                return f'the script has {name} from {paths[name]}, and {here} comes first here'
        return None

    def fork(self, socket):
        """True in the spare, once it is to run. The process between is gone at once, so that the agent, a reaper, becomes the parent."""
        pid = os.fork()
        if pid > 0:
            os.waitpid(pid, 0)
            return False
        if os.fork() > 0:
            os._exit(0)
        self.socket.close()
        die_with(self.agent_pid)
        socket.send(f'born\n{os.getpid()}'.encode())
        while True:
            message, fds = receive(socket, 4)
            if message.startswith(b'settle'):  # with the worker's place on its node, which no import needs
                os.setsid()
                socket.send(b'ready')
            elif message == b'run':
                self.become(socket, fds)
                return True
            else:
                os._exit(0)

    def become(self, socket, fds):
        with open(fds[3], 'rb') as file:
            environment = dict(line.split(b'=', 1) for line in file.read().split(b'\0') if line)
        for number in range(3):
            os.dup2(fds[number], number)
            os.close(fds[number])
        try:
            self.warm_up({os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()})
            socket.close()
        except Exception as error:  # pylint: disable=broad-except
            socket.send((str(error) if isinstance(error, Cold) else f'changed\nthe hand-over failed: {error!r}').encode())
            with open('/proc/self/cmdline', 'rb') as file:
                # The new file, where somebody has replaced the interpreter.
                program = self.program if os.access(self.program, os.X_OK) else '/proc/self/exe'
                os.execve(program, file.read().split(b'\0')[:-1], environment)

    def warm_up(self, told):
        """Makes this process what a worker with this environment would be after its imports. Cold: it cannot be."""
        os.environ.__class__ = type(os.environ).__mro__[1]
        self.seeds.end()
        self.check_files()
        for name in sorted(set(told) | set(self.base)):
            if name not in self.places and told.get(name) != self.base.get(name):
                raise Cold(f'unlike\n{name}')
        for name, value in {**{name: None for name in os.environ}, **told, **self.changed}.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        # From the system, as in a process of its own; Python's own random does so at a fork.
        if 'numpy.random' in sys.modules and 'numpy.random' not in self.seeds.given:
            sys.modules['numpy.random'].seed()
        if self.drawn is not None:
            sys.modules['random'].setstate(self.drawn)
        if 'threading' in sys.modules:
            sys.modules['threading'].main_thread()._set_native_id()  # Python 3.11 keeps the parent's.
        self.output.repeat()


class Output:
    """Keeps what imports print, so that each worker prints it as if it had imported."""

    def __init__(self):
        self.kept = [os.memfd_create('convene-warm'), os.memfd_create('convene-warm')]
        self.flush()
        for number, fd in enumerate(self.kept, 1):
            os.dup2(fd, number)

    def flush(self):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()

    def repeat(self):
        for number, fd in enumerate(self.kept, 1):
            text = os.pread(fd, 1 << 20, 0)
            while text:
                text = text[os.write(number, text):]
            os.close(fd)


def variables():
    """The environment. To ask os.environ itself would count as a question of an import."""
    return {os.fsdecode(name): os.fsdecode(value) for name, value in os.environ._data.items()}  # pylint: disable=protected-access


def watched_environment():
    class Absent(str):
        """The name of a worker's own variable, where an import goes through all variables. It has not asked for this one."""

    class Watched(type(os.environ)):
        """An import that asks for a rank would get no answer, or another worker's. An import that goes through all variables gets a word for each absent
        variable; an import that keeps the word, or fails by it, would have kept a rank.
        """
        asked = set()
        places = frozenset()
        word = ' '.join(('each worker has', 'a value of its own'))  # no constant, so that nobody else has it

        def __getitem__(self, name):
            if isinstance(name, Absent):
                return Watched.word
            Watched.asked.add(name)
            return super().__getitem__(name)

        def __iter__(self):
            # First, so that the variable of a loop does not keep the word.
            yield from [Absent(name) for name in Watched.places if os.fsencode(name) not in self._data]
            yield from super().__iter__()

        @classmethod
        def is_kept(cls):
            if sys.getrefcount(cls.word) > cls.held and 'gc' in sys.modules:
                sys.modules['gc'].collect()
            return sys.getrefcount(cls.word) > cls.held
    Watched.held = sys.getrefcount(Watched.word)
    return Watched


def memory_kib():
    """Of this process alone."""
    with open('/proc/self/statm', encoding='ascii') as file:
        words = file.read().split()
    return (int(words[1]) - int(words[2])) * (os.sysconf('SC_PAGE_SIZE') // 1024)


def open_fds():
    found = {}
    for name in os.listdir('/proc/self/fd'):
        try:
            found[name] = os.readlink(f'/proc/self/fd/{name}')
        except OSError:
            pass  # of the listing itself
    return found


def hold_stdin():
    """An import that reads stdin would take what is a worker's: it gets an empty line, and the place in this file tells. A spare gets its own stdin."""
    fd = os.memfd_create('convene-warm')
    os.write(fd, b'\n')
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.close(fd)


def shared_state():
    """(descriptors, memory that is mapped for several processes to write): forks have them in common."""
    with open('/proc/self/maps', 'rb') as file:
        return open_fds(), {line for line in file.read().split(b'\n') if b' rw-s ' in line}


def trace_of(before):
    """A thread, a process, a timer, a descriptor or memory that an import left, and that forks would share or lose; None: there is none."""
    fds, memory = shared_state()
    opened = [path for name, path in fds.items() if before[0].get(name) != path and path not in HARMLESS]
    if opened:
        return f'its import opens {opened[0]}'
    if memory - before[1]:
        return 'its import shares memory, as a lock between processes does'
    if len(os.listdir('/proc/self/task')) > 1:
        # A library may end its threads for a fork and start them again when it needs them (OpenBLAS).
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        if len(os.listdir('/proc/self/task')) > 1:
            return 'its import starts a thread'
    try:
        os.waitpid(-1, os.WNOHANG)
        return 'its import starts a process'
    except ChildProcessError:
        return 'its import sets a timer, which no fork has' if has_timer() else None


def has_timer():
    """Of the process: setitimer's and alarm's, and those of timer_create."""
    if any(any(_signal.getitimer(which)) for which in (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF)):
        return True
    try:
        with open('/proc/self/timers', 'rb') as file:
            return bool(file.read())
    except OSError:  # a kernel that does not tell
        return False


def die_with(agent):
    """Waits until the agent is the parent of this process; the kernel then kills it with the agent, as every worker."""
    import ctypes
    import time
    deadline = time.monotonic() + BIRTH_LIMIT_S
    while os.getppid() != agent and time.monotonic() < deadline:
        try:
            os.kill(agent, 0)
        except OSError:  # Killed at this moment, and perhaps its guardian, too: nobody else would end this process before the deadline.
            os._exit(0)
        time.sleep(0.001)
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    if os.getppid() != agent:
        os._exit(0)


def receive(socket, most_fds):
    data, ancillary, _, _ = socket.recvmsg(1 << 16, _socket.CMSG_SPACE(4 * most_fds))
    fds = [int.from_bytes(rest[at:at + 4], sys.byteorder) for _, _, rest in ancillary for at in range(0, len(rest), 4)]
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, fds


def own_environment():
    """As this process began, without what the agent has put there for this file."""
    with open('/proc/self/environ', 'rb') as file:
        found = dict(os.fsdecode(line).split('=', 1) for line in file.read().split(b'\0') if b'=' in line)
    path = found.pop(VARIABLE).split(':', 2)[2]
    if path:
        found['PYTHONPATH'] = path[1:]
    else:
        del found['PYTHONPATH']
    return found


def import_real():
    """Lets the sitecustomize run for which this file stands, and returns its error: site.py expects one where there is none."""
    try:
        import sitecustomize as _
        return None
    except Exception as error:  # pylint: disable=broad-except
        return error


def begin():
    role, place, path = os.environ.pop(VARIABLE).split(':', 2)
    folder = os.path.dirname(place)
    if path:
        os.environ['PYTHONPATH'] = path[1:]
    else:
        os.environ.pop('PYTHONPATH', None)
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path_importer_cache.pop(folder, None)
    del sys.modules['sitecustomize']
    if role == 'parent':
        try:
            error = Parent(place).serve()
        except BaseException:  # pylint: disable=broad-except
            os._exit(1)  # It must never go on to the script: that would be a worker too many.
    else:
        error = import_real()
        sys.meta_path.insert(0, Recorder(place))
    if error is not None:
        raise error


begin()
