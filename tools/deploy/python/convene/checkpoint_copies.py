"""Where convene.checkpoint keeps copies of a worker's state: windows of the agent's memory, and files. Nothing here needs PyTorch.

A copy has the same bytes in both places, and those of the trainer's copies (worker_runtime/replicas/node_memory.h) but for the magic number, the
checksum and the index:

    header (a page) | index: a pickle, padded to a page | data

In memory the header's seal is written last, and taken away before the window is written again: a copy that a death cut short is no copy. Behind the seal
the header names the folder that the copy's job writes to, and who has used the copy last. A file gets its name when it is whole, and ends with a checksum of
all its bytes.
"""

import contextlib
import mmap
import os
import re
import struct
import threading
import zlib
from typing import Any, Callable, Dict, Iterable, List, MutableMapping, NamedTuple, Optional, Sequence, Tuple

# (generation, step). A generation begins where the ranks load a state: copies of two generations are never parts of one state. Newer ones are greater.
Name = Tuple[int, int]

PAGE = 4096
MOST_INDEX_BYTES = 1 << 30
_MAGIC = 0x3168637274636e63  # "cnctrch1": convene-train takes no such copy for one of its own
_FIELDS = struct.Struct('<Q7q')  # the fields of Header, behind the magic number
_SEAL = struct.Struct('<Q')
_MARKS = struct.Struct('<3Q')  # behind the seal: the folder, and the two of a User
_MARKS_AT = _FIELDS.size + _SEAL.size
ANY_FOLDER = 0  # in a copy of an older build
# worker_runtime/replicas/node_memory.h. convene-train takes the first windows of a rank. A script takes the last two, and two before them for each rank
# of another node whose state it keeps: a guest.
_WINDOW_BYTES = 1 << 40
_WINDOWS_OF_RANK = 64
_FIRST_WINDOW = 62
MOST_GUESTS = 4
HALVES = (0, 1)
_PIECE = 16 << 20
_MADV_POPULATE_WRITE = 23  # madvise(2); the module mmap has no name for it
_FILE = re.compile(r'step-(\d+)\.generation-(\d+)\.rank-(\d+)-of-(\d+)\.state')


class Header(NamedTuple):
    generation: int
    step: int
    owner: int
    world_size: int
    index_bytes: int
    data_offset: int
    data_bytes: int

    @property
    def name(self) -> Name:
        return self.generation, self.step


class User(NamedTuple):
    """The program that saved a copy in memory, or looked at it since: its job's folder_number(), and its epoch."""
    folder: int
    epoch: int


class Place(NamedTuple):
    """Where a copy stands: in a file, or in a window of the memory at this offset."""
    path: str
    offset: int
    header: Header
    folder: int = ANY_FOLDER  # in memory: folder_number() of the job that saved the copy
    user: User = User(ANY_FOLDER, 0)  # in memory

    @property
    def is_file(self) -> bool:
        return _FILE.search(self.path) is not None


def newest_common(held: Iterable[Iterable[Name]]) -> Optional[Name]:
    """PURE. The newest name that is in all of the lists: a state that every rank has whole."""
    return max(set.intersection(*map(set, held)), default=None)


def half_to_write(held: Sequence[Optional[Name]], keep: Sequence[Optional[Name]]) -> int:
    """PURE. The half of the two that is written next: none that holds a state to be kept, else the one with the older copy."""
    return min(HALVES, key=lambda half: (held[half] is not None and held[half] in keep, held[half] or (0, 0)))


def still_needed(ranks: Sequence[Tuple[Sequence[int], Sequence[Optional[Name]]]], keep: Sequence[Optional[Name]]) -> Tuple[int, int]:
    """PURE. Bytes that the ranks of a node take at this save, and with the other halves, too. ranks: the bytes that each half still needs, what it holds."""
    return sum(needs[half_to_write(held, keep)] for needs, held in ranks), sum(sum(needs) for needs, _ in ranks)


def folder_number(path: Optional[str]) -> int:
    """PURE. Names the folder in a copy; never ANY_FOLDER. path: absolute; none or '': the states stand in memory only."""
    return 2 + zlib.crc32(os.fsencode(path)) if path else 1


def is_of_another(used: User, own: User) -> bool:
    """PURE. Whether the copy is of another stage or program of this start: not of workers that an earlier epoch lost."""
    return used.epoch == own.epoch and used.folder not in (own.folder, ANY_FOLDER)


def files_to_remove(written: Iterable[Name], keep: Sequence[Optional[Name]], newest: int) -> List[Name]:
    """PURE. Of the names that this rank has on disk: all but those to be kept and the newest few."""
    return [name for name in sorted(written)[:-newest] if name not in keep]


def is_replaced(old: Name, whole: Optional[Name]) -> bool:
    """PURE. Whether a state of another number of ranks is older, by its step too, than this one, which all of today's ranks have whole."""
    return whole is not None and old < whole and old[1] <= whole[1]


def data_offset(index_bytes: int) -> int:
    return PAGE + -(-index_bytes // PAGE) * PAGE


def size_of(window: mmap.mmap) -> int:
    """Of the copy that stands in it."""
    header = Header(*_FIELDS.unpack_from(window)[1:])
    return header.data_offset + header.data_bytes


def _seal(fields: bytes, index: Any) -> int:
    return 1 + zlib.crc32(index, zlib.crc32(fields))  # never 0


def break_copy(window: mmap.mmap) -> None:
    window[_FIELDS.size:_FIELDS.size + _SEAL.size] = _SEAL.pack(0)


def seal_copy(window: mmap.mmap, header: Header, index: bytes, saver: User = User(ANY_FOLDER, 0)) -> None:
    fields = _FIELDS.pack(_MAGIC, *header)
    window[PAGE:PAGE + len(index)] = index
    window[:_FIELDS.size] = fields
    window[_MARKS_AT:_MARKS_AT + _MARKS.size] = _MARKS.pack(saver.folder, *saver)
    window[_FIELDS.size:_FIELDS.size + _SEAL.size] = _SEAL.pack(_seal(fields, index))


def find(fd: int, offset: int) -> Optional[Header]:
    """The whole copy that begins at this offset, if there is one. Reads no data."""
    return _find(lambda size, at: os.pread(fd, size, offset + at))


def find_in(window: mmap.mmap) -> Optional[Header]:
    """The same of a copy that came from another node."""
    return _find(lambda size, at: window[at:at + size])


def _find(read_at: Callable[[int, int], bytes]) -> Optional[Header]:
    head = read_at(_FIELDS.size + _SEAL.size, 0)
    if len(head) < _FIELDS.size + _SEAL.size:
        return None
    magic, *rest = _FIELDS.unpack_from(head)
    header = Header(*rest)
    if magic != _MAGIC or not 0 <= header.index_bytes <= min(header.data_offset - PAGE, MOST_INDEX_BYTES) or header.data_bytes < 0:
        return None
    index = read_at(header.index_bytes, PAGE)
    is_whole = _seal(head[:_FIELDS.size], index) == _SEAL.unpack_from(head, _FIELDS.size)[0]
    return header if is_whole and len(index) == header.index_bytes else None


def read(place: Place) -> mmap.mmap:
    """The copy's bytes, of which the process may write a version of its own. Raises OSError where the copy is damaged or no longer there."""
    fd = os.open(place.path, os.O_RDONLY)
    try:
        if find(fd, place.offset) != place.header:
            raise OSError(f'{place.path}: there is another copy now, or none')
        size = place.header.data_offset + place.header.data_bytes
        if os.fstat(fd).st_size < place.offset + size:
            raise OSError(f'{place.path}: it has become shorter')
        window = mmap.mmap(fd, size, mmap.MAP_PRIVATE, offset=place.offset)
        if place.is_file and os.pread(fd, 8, size) != _SEAL.pack(zlib.crc32(window)):
            raise OSError(f'{place.path}: its bytes are not those that were written')
        return window
    finally:
        os.close(fd)


def available_bytes(proc: str = '/proc', cgroup: str = '/sys/fs/cgroup') -> int:
    """Memory that this process can still get: by the machine, and by the limits of its control groups (version 2)."""
    with open(f'{proc}/meminfo', encoding='ascii') as lines:
        least = next(int(line.split()[1]) << 10 for line in lines if line.startswith('MemAvailable:'))
    try:
        with open(f'{proc}/self/cgroup', encoding='utf-8') as lines:
            parts = next((line[3:].strip('/\n').split('/') for line in lines if line.startswith('0::')), [])
    except OSError:
        parts = []
    for depth in range(len(parts) + 1):
        folder = os.path.join(cgroup, *parts[:depth])
        try:
            with open(f'{folder}/memory.max', encoding='ascii') as limit, open(f'{folder}/memory.current', encoding='ascii') as used, \
                    open(f'{folder}/memory.stat', encoding='ascii') as stat:
                cache = sum(int(line.split()[1]) for line in stat if line.startswith(('inactive_file ', 'active_file ')))
                least = min(least, int(limit.read()) - int(used.read()) + cache)
        except (OSError, ValueError):
            pass  # the root has no limit, and 'max' is none
    return max(0, least)


def worker_memory(environment: MutableMapping[str, str], process: int) -> str:
    """The agent's memory, for the process that asks first and those it replaces; '' for the processes that it starts, which inherit its environment:
    their states are others than the worker's, and would be written over its."""
    memory = environment.get('CONVENE_MEMORY', '')
    user, _, used = environment.get('CONVENE_MEMORY_USER', '').partition(' ')
    if used == memory != '' and user != str(process):
        return ''
    environment['CONVENE_MEMORY_USER'] = f'{process} {memory}'  # with the memory: a worker may be an agent of a job of its own
    return memory


def identity(path: str) -> Any:
    """Tells this memory from any other one of any node. None where there is none."""
    boot = ''
    with contextlib.suppress(OSError), open('/proc/sys/kernel/random/boot_id', encoding='ascii') as file:
        boot = file.read()
    try:
        info = os.stat(path)
    except OSError:
        return None
    return os.uname().nodename, boot, info.st_dev, info.st_ino


def _take_pages(mapped: mmap.mmap) -> None:
    """Piece by piece: each call holds the interpreter, and the training with it, for as long as it takes."""
    for begin in range(0, len(mapped), _PIECE):
        try:
            mapped.madvise(_MADV_POPULATE_WRITE, begin, min(_PIECE, len(mapped) - begin))
        except OSError:
            return  # Linux before 5.14: the first copy takes them.


class Memory:
    """The windows of this worker in its agent's memory. Without an agent, memory of the process itself, which ends with it."""

    def __init__(self, path: str, place: int, local_workers: int) -> None:
        """path: CONVENE_MEMORY, or ''. place: of places(); no other worker of the memory has it. Raises OSError where the file cannot be opened."""
        self._path = path
        self._fd = os.open(path, os.O_RDWR) if path else -1
        self._first = place * _WINDOWS_OF_RANK + _FIRST_WINDOW
        self._local_workers = local_workers
        self._mapped: Dict[Tuple[int, int], mmap.mmap] = {}
        self._taking = threading.Lock()  # Two threads that look at the same free memory would both take it.

    @property
    def outlives_workers(self) -> bool:
        return bool(self._path)

    def _offset(self, half: int, guest: int) -> int:
        return (self._first - 2 * guest + half) * _WINDOW_BYTES

    def held(self, guest: int = 0) -> List[Optional[Name]]:
        """For each half, the name of the whole copy in it. guest: 0 is this worker itself."""
        found = [find(self._fd, self._offset(half, guest)) if self._path else None for half in HALVES]
        return [header and header.name for header in found]

    def copies(self) -> List[Place]:
        """Of all ranks of this node and of its guests, those of earlier epochs too."""
        windows = range(os.fstat(self._fd).st_size // _WINDOW_BYTES + 1) if self._path else ()
        scripts = [window for window in windows if window % _WINDOWS_OF_RANK >= _FIRST_WINDOW - 2 * MOST_GUESTS]
        found = [(window, find(self._fd, window * _WINDOW_BYTES)) for window in scripts]
        return [self._place(window * _WINDOW_BYTES, header) for window, header in found if header]

    def _place(self, offset: int, header: Header) -> Place:
        folder, *user = _MARKS.unpack(os.pread(self._fd, _MARKS.size, offset + _MARKS_AT))
        return Place(self._path, offset, header, folder, User(*user))

    def mark(self, places: Iterable[Place], user: User) -> None:
        """Of copies(). Each worker of the node may write the same."""
        for place in places:
            os.pwrite(self._fd, _MARKS.pack(place.folder, *user), place.offset + _MARKS_AT)

    def _taken(self, offset: int) -> int:
        """Bytes of the half at this offset that have memory already."""
        try:
            return os.lseek(self._fd, offset, os.SEEK_HOLE) - offset if self._path else 0
        except OSError:  # behind the end
            return 0

    def needed(self, half: int, size: int, guest: int = 0) -> int:
        """Bytes that prepare() would take."""
        return 0 if self.is_ready(half, size, guest) else max(0, size - self._taken(self._offset(half, guest)))

    def is_ready(self, half: int, size: int, guest: int = 0) -> bool:
        """Whether reserve() cannot fail."""
        mapped = self._mapped.get((guest, half))
        return mapped is not None and len(mapped) >= size

    def reserve(self, half: int, size: int, guest: int = 0) -> mmap.mmap:
        """The half, with memory for so many bytes; no copy stands in it any more. Raises OSError where there is too little: the copy in it stands."""
        mapped = self.prepare(half, size, guest)
        break_copy(mapped)
        return mapped

    def prepare(self, half: int, size: int, guest: int = 0) -> mmap.mmap:
        """Takes memory for so many bytes in the half; a copy in it stands. Fresh memory takes far longer than the copy. Raises OSError as reserve() does.

        Of guests only their sizes here are known, and the other workers of the node take some at the same time: there is to be as much for each worker.
        """
        with self._taking:
            mapped = self._mapped.get((guest, half))
            if mapped is None or len(mapped) < size:
                if size > _WINDOW_BYTES:
                    raise OSError(f'a copy of {size} bytes; at most {_WINDOW_BYTES} are allowed')
                offset = self._offset(half, guest)
                wanted, free = self.needed(half, size, guest) * (self._local_workers if guest else 1), available_bytes()
                if wanted > free:
                    raise OSError(f'{wanted} bytes more are needed for copies, {free} are free')
                if self._path:
                    os.posix_fallocate(self._fd, offset, size)
                    kind = mmap.MAP_SHARED
                else:
                    kind, offset = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0
                self._mapped[guest, half] = mapped = mmap.mmap(self._fd, size, kind, offset=offset)
                _take_pages(mapped)
            return mapped


class Folder:
    """The files of a rank in the folder of checkpoints."""

    def __init__(self, path: str, owner: int, world_size: int) -> None:
        """Raises OSError where the folder cannot be made."""
        self._path = os.path.abspath(path)  # The script may change its directory.
        self._owned = (owner, world_size)
        os.makedirs(self._path, exist_ok=True)

    def _file(self, name: Name) -> str:
        return os.path.join(self._path, 'step-{1}.generation-{0}.rank-{2}-of-{3}.state'.format(*name, *self._owned))

    def newest(self) -> Optional[Name]:
        """Of all ranks' files, by their names alone."""
        return max((self._numbers(entry)[0] for entry in self._whole()), default=None)

    def copies(self) -> List[Place]:
        """Of all ranks, the whole ones."""
        return [place for entry in self._whole() if (place := self._place(entry))]

    def damaged(self) -> List[str]:
        """This rank's files that have their names and are not whole: something has cut them since."""
        owned = [entry for entry in self._whole() if self._numbers(entry)[1] == self._owned and not self._place(entry)]
        return [path for path in (os.path.join(self._path, entry) for entry in owned) if os.path.exists(path)]

    def _place(self, entry: str) -> Optional[Place]:
        path = os.path.join(self._path, entry)
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError:  # removed since
            return None
        header = find(fd, 0)
        is_whole = header and os.fstat(fd).st_size == header.data_offset + header.data_bytes + _SEAL.size
        os.close(fd)
        return Place(path, 0, header) if is_whole else None

    def _entries(self) -> List[str]:
        """None where the folder is gone: the next write makes it anew."""
        try:
            return os.listdir(self._path)
        except FileNotFoundError:
            return []

    def _whole(self) -> List[str]:
        return [entry for entry in self._entries() if _FILE.fullmatch(entry)]

    def _remove(self, entry: str) -> None:
        """A file that is gone is no error: two writers that wait for the disk may be told the same ones. A file that cannot be removed stays: such a file
        may be another user's, and holds up no write.
        """
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._path, entry))

    def written(self) -> List[Name]:
        """This rank's names."""
        return sorted(name for name, owned in map(self._numbers, self._whole()) if owned == self._owned)

    @staticmethod
    def _numbers(entry: str) -> Tuple[Name, Tuple[int, int]]:
        """A file's name, and (owner, world size)."""
        step, generation, *owned = map(int, _FILE.fullmatch(entry).groups())
        return (generation, step), tuple(owned)

    def remove_parts(self) -> None:
        """Files of this rank that a death cut short."""
        ending = '.rank-{}-of-{}.state.part'.format(*self._owned)
        for entry in self._entries():
            if entry.endswith(ending):
                self._remove(entry)

    def remove_replaced(self, whole: Optional[Name]) -> None:
        """Files of other numbers of ranks, cut short or not, where this state of today's number replaces them. Any rank may remove them."""
        for entry in self._entries() if whole else ():
            found = _FILE.fullmatch(entry.removesuffix('.part'))
            if found:
                step, generation, _, world_size = map(int, found.groups())
                if world_size != self._owned[1] and is_replaced((generation, step), whole):
                    self._remove(entry)

    def remove(self, names: Iterable[Name]) -> None:
        for name in names:
            self._remove(self._file(name))

    def write(self, name: Name, window: mmap.mmap) -> None:
        """The copy in the window, which nobody changes meanwhile. Raises OSError: then the file is not there."""
        path = self._file(name)
        size = size_of(window)
        checksum = 0
        os.makedirs(self._path, exist_ok=True)
        try:
            with memoryview(window) as view, open(path + '.part', 'wb', buffering=0) as out:
                for begin in range(0, size, _PIECE):
                    piece = view[begin:min(size, begin + _PIECE)]
                    checksum = zlib.crc32(piece, checksum)
                    while piece:
                        piece = piece[out.write(piece):]
                out.write(_SEAL.pack(checksum))
                os.fsync(out.fileno())
            os.replace(path + '.part', path)
        except OSError:
            if os.path.exists(path + '.part'):
                os.unlink(path + '.part')
            raise
