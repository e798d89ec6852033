"""A PyTorch script's state in its agent's memory, which outlives the worker, and behind the training on disk (README.md beside this package).

    from convene.checkpoint import Checkpoint
    checkpoint = Checkpoint('checkpoints')      # once in each worker, after init_process_group
    found = checkpoint.load()                   # (step, state), or None: the newest state that every rank has whole
    checkpoint.save(state, step)                # all ranks, with the same step

This file needs PyTorch, and the other files of its name beside it.
"""

import datetime
import logging
import mmap
import os
import sys
import threading
import weakref
from concurrent import futures
from typing import Any, ClassVar, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist

from . import checkpoint_choice as choice
from . import checkpoint_copies as copies
from . import checkpoint_peers as peers
from . import checkpoint_pieces as pieces
from .checkpoint_behind import Behind
from .checkpoint_copies import Name
from .checkpoint_source import Source

_log = logging.getLogger('convene.checkpoint')
_FILES = 3  # a rank keeps so many newest files, the newest state that all ranks have on disk, and the loaded one
_TOLD = _FILES + 4  # and with two writers that wait for the disk, two that are not removed yet
_DISK_LIMIT_S = 600
_PEER_LIMIT_S = 120
_NONE = (0, 0)  # as a name that is told: generations begin at 1
_REFUSED = -(1 << 62)  # as a step that is told: this rank cannot save its state


def _names(told: List[Name]) -> List[Name]:
    return [name for name in told if name != _NONE]


def _states(held: Sequence[choice.Held]) -> Set[choice.State]:
    return {state for of_rank in held for kind in of_rank for state in kind}


class _Room(NamedTuple):
    """In bytes, before any rank takes memory for a save: what each half of this rank needs, what all ranks of the node take now, and with their other halves,
    too; what is free."""
    own: Tuple[int, ...]
    wanted: int
    wanted_in_all: int
    free: int


class _Readable:
    """The copies that this rank can read."""

    def __init__(self, places: Iterable[copies.Place]) -> None:
        self.places = list(places)
        self._kinds: Tuple[Dict, Dict] = ({}, {})  # in memory, on disk: by state the place of each owner's copy
        for place in self.places:
            state = (*place.header.name, place.header.world_size)
            self._kinds[place.is_file].setdefault(state, {})[place.header.owner] = place

    def held(self) -> choice.Held:
        return choice.Held(*({state: set(owners) for state, owners in kind.items()} for kind in self._kinds))

    def of(self, state: choice.State) -> Dict[int, copies.Place]:
        """By owner; memory goes first."""
        return {**self._kinds[1].get(state, {}), **self._kinds[0].get(state, {})}


class Checkpoint:
    """All ranks make it, load and save together. Threads: one at a time; another save meanwhile is refused.

    A worker has memory for one state. A Checkpoint may follow another one (a stage of the training, with its own folder): the newer one's load() takes the
    memory over.
    """
    _saver: ClassVar[Optional[weakref.ref]] = None  # the Checkpoint of this process that has saved last
    _saves: ClassVar[int] = 0  # of all Checkpoints of this process

    def __init__(self, folder: Optional[str] = None, replicated: bool = False, replicas: int = 0) -> None:
        """folder: where states are written to; none: they stand in memory only. replicated: all ranks have the same state (DDP), so that one copy a node
        and one file do for any number of ranks; else each rank has a copy of its own, and only as many ranks can load it. replicas: so many other nodes
        keep each rank's copy, too, at most 4; a job with fewer other nodes has as many copies as those, with a word in the log.

        Raises OSError where the folder cannot be made; ValueError for replicas that cannot be.
        """
        if not 0 <= replicas <= (0 if replicated else copies.MOST_GUESTS):
            raise ValueError(f'convene.checkpoint: replicas={replicas}: 0 to {copies.MOST_GUESTS} are possible, and none with replicated=True, where each node '
                             'has the whole state already')
        is_alone = not (dist.is_available() and dist.is_initialized())
        self._rank, self._world = (0, 1) if is_alone else (dist.get_rank(), dist.get_world_size())
        # Messages of its own, on the host: they wait for no GPU, and mix with none of the script's.
        self._group = None if is_alone else dist.new_group(backend='gloo')
        # Without a launcher that numbers the nodes, LOCAL_WORLD_SIZE tells them apart; without that, too, each rank counts as one.
        unnumbered = -1 - self._rank // int(os.environ.get('LOCAL_WORLD_SIZE', '1'))
        memory = copies.worker_memory(os.environ, os.getpid())
        if not memory and os.environ.get('CONVENE_MEMORY'):
            _log.warning('a process that started this one keeps its states in the memory of the agent: those of this process are on disk alone')
        told = self._tell_any((copies.identity(memory), int(os.environ.get('LOCAL_RANK', '0')),
                               int(os.environ.get('GROUP_RANK', unnumbered)), os.path.realpath(folder) if folder else ''))
        memories, local_ranks, self._nodes, folders = zip(*told)
        place = choice.places(memories, local_ranks)[self._rank]
        self._owned = (0, 1) if replicated else (self._rank, self._world)
        self._copies_here = not replicated or place == 0
        self._memory = self._open_memory(memory, place, self._nodes.count(self._nodes[self._rank]))
        self._has_agent = any(memories)
        self._peers = self._find_peers(replicas)
        self._folder = copies.Folder(folder, *self._owned) if folder else None
        # One folder's number for all ranks, where each has a folder of its own, too.
        self._user = copies.User(copies.folder_number(folders[0]), int(os.environ.get('CONVENE_EPOCH', '0')))
        self._saves_seen = 0
        self._writes_here = self._folder is not None and (not replicated or self._rank == 0)
        self._generation = 0
        self._loaded: Optional[Name] = None
        self._saved: Tuple[int, bool] = (-1, False)  # the last step, and whether this rank's copy goes to the disk
        self._lost: Optional[Tuple[int, str]] = None  # the step that the disk has not taken, and why; None: it has the last one
        self._held: List[Optional[Name]] = [None, None]  # by half
        self._windows: List[Any] = [None, None]
        self._busy = threading.Lock()
        self._behind = Behind('convene-checkpoint')
        self._prepared: Optional[futures.Future] = None  # the memory of the second half
        self._written: List[Optional[futures.Future]] = [None, None]  # by the half that is read

    @staticmethod
    def _open_memory(path: str, place: int, local_workers: int) -> copies.Memory:
        try:
            return copies.Memory(path, place, local_workers)
        except OSError as error:
            _log.warning('no memory that outlives this worker: %s: %s; only the disk does', path, error)
            return copies.Memory('', place, local_workers)

    def _find_peers(self, replicas: int) -> Optional[peers.Peers]:
        if replicas == 0 or self._group is None:
            return None
        can_keep, wanted = zip(*self._tell_any((self._memory.outlives_workers, replicas)))
        if len(set(wanted)) > 1:
            raise ValueError(f'convene.checkpoint: the ranks want {list(wanted)} replicas: all want as many')
        if not all(can_keep):
            _log.warning('no replicas: rank %d has no memory of an agent', can_keep.index(False))
            return None
        kept = choice.keepers(self._nodes, replicas)
        if len(kept) < replicas and self._rank == 0:
            _log.warning('%d replicas instead of %d: other nodes: %d', len(kept), replicas, len(set(self._nodes)) - 1)
        limit = datetime.timedelta(seconds=_PEER_LIMIT_S)
        return peers.Peers(dist.new_group(backend='gloo', timeout=limit), self._memory, kept) if kept else None

    def _tell(self, names: List[Name], step: int) -> Tuple[List[List[Name]], List[int]]:
        """All ranks tell their lists of names, and a step. One message of numbers: it holds the script at each save."""
        own = torch.tensor([step, *(number for name in names for number in name)], dtype=torch.int64)
        told = [own]
        if self._group is not None:
            told = [torch.empty_like(own) for _ in range(self._world)]
            dist.all_gather(told, own, group=self._group)
        rows = [row.tolist() for row in told]
        return [list(zip(row[1::2], row[2::2])) for row in rows], [row[0] for row in rows]

    def _tell_any(self, what: Any) -> List[Any]:
        told = [what] * self._world
        if self._group is not None:
            dist.all_gather_object(told, what, group=self._group)
        return told

    def load(self, like: Any = None) -> Optional[Tuple[int, Any]]:
        """(step, state) of the newest step that every rank has whole, in memory or on disk; None where there is none. Tensors are on the CPU.

        like: a state of today, where the saved one has DTensors: they are laid out as its tensor at the same place, else as one with the same placements.
        Then a state of any number of ranks is taken, and what is no DTensor of it comes from the rank of the same number, modulo that of the saved ranks.
        Raises, on all ranks: ValueError where there are only states of another number of ranks, or `like` does not say how to lay out a tensor; OSError
        where a rank cannot look into the folder; MemoryError where a rank has no memory for the state, which stands.
        """
        self._settle()
        known, newest_file, unread = self._look()
        of_folder = (self._user.folder, copies.ANY_FOLDER)
        own = _Readable(place for place in known if place.folder in of_folder)
        # A folder with another name at each start has no state yet, and the memory has some of the folder before it. But what another stage or program has
        # used in this epoch is another state.
        is_stage = any(copies.is_of_another(place.user, self._user) for place in known)
        strange = _Readable(() if is_stage else (place for place in known if place.folder not in of_folder))
        newest = max([newest_file[0], *(place.header.generation for place in known)])
        told = self._tell_any((own.held(), strange.held(), newest, newest_file, unread, like is not None, self._user.epoch))
        held, held_strange, generations, files, problems, can_reshard, epochs = zip(*told)
        self._refuse(problems)
        self._generation = choice.next_generation(max(generations), max(epochs))
        self._saved, self._loaded, self._held, self._lost = (-1, False), None, self._memory.held(), None
        self._saves_seen = Checkpoint._saves
        self._memory.mark(known, self._user)
        world_size = None if all(can_reshard) else self._owned[1]
        mine, other = (choice.choose_state(each, world_size, ()) for each in (held, held_strange))
        has_files = max(files) != _NONE
        if has_files and (mine is None or mine[0][:2] < max(files)):
            own, held = self._look_into_files(own)
            mine, has_files = choice.choose_state(held, world_size, ()), False
        has_own = any(kind for of_rank in held for kind in of_rank)
        if mine is None and (other is not None or not has_own):
            if other is not None:
                _log.warning('the memory has a state that was saved for another folder, and there is none for this one: that state is loaded')
            own, held = strange, held_strange
        elif mine is not None and other is not None and other[0][:2] > mine[0][:2]:
            _log.warning('the memory has step %d, saved for another folder; step %d of this one is loaded', other[0][1], mine[0][1])
        return self._load(own, held, world_size, like, has_files)

    def _load(self, readable: _Readable, held: Sequence[choice.Held], world_size: Optional[int], like: Any, has_files: bool) -> Optional[Tuple[int, Any]]:
        """has_files: there are some that no rank has looked into, because what stands in memory is as new."""
        refused: Set[choice.State] = set()
        while (chosen := choice.choose_state(held, world_size, refused)) is not None:
            state, readers = chosen
            name = state[:2]
            source = Source(self._tell_any, self._group, self._rank, self._world, readers, readable.of(state))
            try:
                found = source.load(like)
            except OSError as error:
                _log.warning('step %d is not loaded, an older one is: %s', name[1], error)
                refused.add(state)
                if has_files:
                    readable, held = self._look_into_files(readable)
                    has_files = False
                continue
            except (ValueError, MemoryError) as error:
                raise type(error)(f'convene.checkpoint: step {name[1]}: {error}') from error
            self._loaded = name
            newer = [ranks for generation, _, ranks in _states(held) if generation > name[0] and ranks != self._owned[1]]
            if newer:
                _log.warning('step %d of %d ranks is loaded; there are newer copies of %d ranks, which are not whole, or need load(like=state)', name[1],
                             state[2], newer[0])
            return name[1], found
        others = sorted({ranks for _, _, ranks in _states(held)} - {self._owned[1]})
        if others and world_size is not None:
            raise ValueError(f'convene.checkpoint: there is no state that all of {self._owned[1]} ranks have whole; there is one of {others[-1]} ranks. '
                             'load(like=state) takes its DTensors (FSDP2) for any number of ranks; with replicated=True (all ranks have the same state) any '
                             'number can load it; else as many ranks can, or remove it to begin anew')
        if _states(held):
            _log.warning('no step is whole on all ranks: the job begins anew')
        return None

    def _settle(self) -> None:
        """Until what this process has saved stands."""
        saver = Checkpoint._saver and Checkpoint._saver()
        for checkpoint in {self, saver or self}:
            try:
                checkpoint.wait()
            except OSError as error:
                _log.warning('%s; the states that it has are looked at', error)

    def _look(self) -> Tuple[List[copies.Place], Name, str]:
        """(the whole copies in the memory of this node, the newest name of a file, why this rank cannot look)."""
        try:
            return self._memory.copies(), (self._folder and self._folder.newest()) or _NONE, ''
        except OSError as error:
            return [], _NONE, str(error)

    def _look_into_files(self, in_memory: _Readable) -> Tuple[_Readable, List[choice.Held]]:
        """(the copies that this rank can read in memory and files, those of all ranks). Each rank opens the files of all ranks and steps."""
        found, why = in_memory, ''
        try:
            found = _Readable([*in_memory.places, *(self._folder.copies() if self._folder else ())])
            for path in self._folder.damaged() if self._writes_here else ():
                _log.warning('%s is not whole, and is not loaded', path)
        except OSError as error:
            why = str(error)
        held, problems = zip(*self._tell_any((found.held(), why)))
        self._refuse(problems)
        return found, list(held)

    @staticmethod
    def _refuse(problems: Sequence[str]) -> None:
        for rank, why in enumerate(problems):
            if why:
                raise OSError(f'convene.checkpoint: rank {rank} cannot look for states: {why}')

    def save(self, state: Any, step: int, to_disk: bool = True) -> bool:
        """True on all ranks: the copies of all ranks stand in memory; to the disk they are written behind the training. The state may change from then on.

        False on all ranks, with a word in the log of at least one: there was too little memory, or the disk still read the older copy; the older state
        stands. Steps grow from save to save. The same step again, with the same state, is copied where its copy does not stand, and written to the disk, if
        only now that is wanted, or the disk has refused it; else it does nothing. All ranks call it.
        Raises, on all ranks, TypeError for a state of any rank that load() would not read (on that rank itself, whatever its parts raise), and ValueError for
        a step that is not the same on all ranks or not a new one; RuntimeError for two saves at once, and where another Checkpoint has saved since load().
        """
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(f'convene.checkpoint: save of step {step} while another thread saves: one thread of a worker saves')
        try:
            return self._save(state, step, to_disk)
        finally:
            self._busy.release()

    def _save(self, state: Any, step: int, to_disk: bool) -> bool:
        if self._generation == 0:
            raise RuntimeError('convene.checkpoint: load() comes before the first save: the ranks agree there on what they hold')
        self._take_turn(step)
        if self._peers is not None:
            self._peers.wait()  # So the older state, of which a half is written over now, is on no node the newest one.
        if self._prepared is not None:
            self._prepared.result()  # It waits for nothing; and until all ranks have told their needs, no rank takes memory.
        plan, problem, written = None, None, []
        try:
            plan = pieces.Plan(state) if self._copies_here else None
        except Exception as error:  # pylint: disable=broad-except  (the other ranks wait for a word of this one)
            problem = error
        try:
            written = self._folder.written() if self._writes_here else []
        except OSError as error:
            _log.warning('older states stay on disk, because their files cannot be listed: %s', error)
        size = copies.data_offset(len(plan.index)) + plan.data_bytes if plan is not None else 0
        needs = tuple(self._memory.needed(half, size) if size else 0 for half in copies.HALVES)
        is_sure = tuple(int(self._is_sure(half, size)) for half in copies.HALVES)
        free = copies.available_bytes() if any(needs) else sys.maxsize
        told, steps = self._tell([(int(self._copies_here), int(self._writes_here)), needs, is_sure, *(held or _NONE for held in self._held),
                                  *([_NONE] * _TOLD + written)[-_TOLD:]], step if problem is None else _REFUSED)
        if problem is not None:
            raise problem
        if _REFUSED in steps:
            raise TypeError(f'convene.checkpoint: step {step} is not saved: the state of rank {steps.index(_REFUSED)} is none that load() would read (its log '
                            'says why)')
        if len(set(steps)) > 1 or step < self._saved[0]:
            raise ValueError(f'convene.checkpoint: the ranks save steps {steps} after step {self._saved[0]}: all save the same step, and a later one')
        in_memory = copies.newest_common([_names(row[3:5]) for row in told if row[0][0]])
        on_disk = copies.newest_common([_names(row[5:]) for row in told if row[0][1]] or [[]])
        name, keep = (self._generation, step), [in_memory, self._loaded]
        lacking = {rank: row for rank, row in enumerate(told) if row[0][0] and name not in row[3:5]}
        stands = True
        if lacking:
            here = [(row[1], row[3:5]) for rank, row in lacking.items() if self._nodes[rank] == self._nodes[self._rank]]
            if self._rank in lacking:
                stands = self._copy(plan, name, keep, _Room(needs, *copies.still_needed(here, keep), free))
            if self._peers is not None:
                self._peers.begin(name, self._windows[self._held.index(name)] if stands else None, keep)
        goes_to_disk = self._saved == (step, True) and (self._lost is None or self._lost[0] != step)
        if stands and to_disk and not goes_to_disk and self._writes_here:
            self._write(name, copies.files_to_remove(written, [on_disk, self._loaded], _FILES), on_disk)
        self._saved = (step, stands and (goes_to_disk or to_disk))
        is_known = all(row[2][copies.half_to_write(row[3:5], keep)] for row in lacking.values())
        return is_known or all(row[0][0] for row in self._tell([(int(stands), 0)], step)[0])

    def _is_sure(self, half: int, size: int) -> bool:
        """Whether a copy of this size into the half cannot fail: its memory is there, and the disk does not read it."""
        return self._memory.is_ready(half, size) and (self._written[half] is None or self._written[half].done())

    def _take_turn(self, step: int) -> None:
        if not self._has_agent:
            return
        if self._saves_seen != Checkpoint._saves:
            raise RuntimeError(f'convene.checkpoint: step {step} is not saved: another Checkpoint of this process has saved since this one loaded, and a '
                               'worker has memory for one of them. Save both states as one, {"model": ..., "ema": ...}; or call load() where the other '
                               'one has done its part')
        Checkpoint._saver = weakref.ref(self)
        Checkpoint._saves += 1
        self._saves_seen = Checkpoint._saves

    def _copy(self, plan: pieces.Plan, name: Name, keep: List[Optional[Name]], room: _Room) -> bool:
        half = copies.half_to_write(self._held, keep)
        begin = copies.data_offset(len(plan.index))
        try:
            if room.own[half] > 0 and room.wanted > room.free:
                raise OSError(f'the ranks of this node need {room.wanted} bytes more for copies, {room.free} are free')
            self._wait_for(half)
            window = self._memory.reserve(half, begin + plan.data_bytes)
        except OSError as error:
            _log.warning('step %d is not saved, the older state stands: %s', name[1], error)
            return False
        self._held[half] = None
        data = torch.frombuffer(window, dtype=torch.uint8)[begin:]
        for tensor, piece in plan.tensors:
            if tensor.numel() > 0:
                piece.of(data).copy_(tensor)
        copies.seal_copy(window, copies.Header(*name, *self._owned, len(plan.index), begin, plan.data_bytes), plan.index, self._user)
        self._held[half] = name
        self._windows[half] = window
        if self._prepared is None and room.wanted_in_all <= room.free:
            self._prepared = self._behind.submit(self._prepare, 1 - half, len(window))
        return True

    def _prepare(self, half: int, size: int) -> None:
        """Behind the training: so the second save, too, finds its memory."""
        try:
            self._memory.prepare(half, size)
        except OSError:
            pass  # The save that needs it says so.

    def _write(self, name: Name, remove: List[Name], whole: Optional[Name]) -> None:
        """To the disk, behind the training. remove: older names of this rank. whole: the newest that all ranks have there."""
        half = self._held.index(name)
        window = self._windows[half]

        def run() -> None:
            try:
                self._folder.remove_parts()  # Not where the folder is loaded: another job may look at the states of one that writes.
                self._folder.remove(remove)
                self._folder.remove_replaced(whole)
                self._folder.write(name, window)
                self._lost = None
            except OSError as error:
                _log.warning('step %d is not on disk: %s', name[1], error)
                self._lost = name[1], str(error)

        self._written[half] = self._behind.submit(run)

    def _wait_for(self, half: int) -> None:
        """Raises OSError where the disk still reads the half after the limit."""
        if self._written[half] is not None:
            try:
                self._written[half].result(_DISK_LIMIT_S)
            except futures.TimeoutError:
                raise OSError(f'the disk has not taken an older state within {_DISK_LIMIT_S} s') from None

    def wait(self) -> None:
        """Until the disk, and the other nodes, have all that was saved.

        Raises OSError where the disk has not taken it within 10 minutes for each of two states, or has refused the last one. On this rank alone: on the one
        that writes. The same step may be saved again.
        """
        if self._peers is not None:
            self._peers.wait()
        for half in copies.HALVES:
            self._wait_for(half)
        if self._lost is not None:
            raise OSError(f'convene.checkpoint: step {self._lost[0]} is not on disk: {self._lost[1]}')
