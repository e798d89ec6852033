"""A PyTorch script's state in its agent's memory, which outlives the worker, and behind the training on disk (README.md beside this package).

    from convene.checkpoint import Checkpoint
    checkpoint = Checkpoint('checkpoints')      # once in each worker, after init_process_group
    found = checkpoint.load()                   # (step, state), or None: the newest state that every rank has whole
    checkpoint.save(state, step)                # all ranks, with the same step

This file needs PyTorch, and the other files of its name beside it.
"""

import datetime
import io
import logging
import mmap
import os
import pickle
import sys
import threading
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from . import checkpoint_choice as choice
from . import checkpoint_copies as copies
from . import checkpoint_peers as peers
from .checkpoint_copies import Name

_log = logging.getLogger('convene.checkpoint')
_ALIGNMENT = 64
_FILES = 3  # a rank keeps so many newest files, the newest state that all ranks have on disk, and the loaded one
_TOLD = _FILES + 4  # and with two writers that wait for the disk, two that are not removed yet
_DISK_LIMIT_S = 600
_PEER_LIMIT_S = 120
_NONE = (0, 0)  # as a name that is told: generations begin at 1
_REFUSED = -(1 << 62)  # as a step that is told: this rank cannot save its state
_SAFE = {('collections', 'OrderedDict'), ('collections', 'defaultdict'), ('collections', 'Counter'), ('torch', 'Size'), ('torch', 'device'),
         ('builtins', 'set'), ('builtins', 'frozenset'), ('builtins', 'complex'), ('builtins', 'bytearray'), ('builtins', 'slice'),
         ('numpy', 'dtype'), ('numpy', 'ndarray'), ('_codecs', 'encode')}
_SAFE |= {(module, name) for module in ('numpy.core.multiarray', 'numpy._core.multiarray') for name in ('_reconstruct', 'scalar')}


def _is_shard(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor. A script that has some has imported the module."""
    return isinstance(tensor, getattr(sys.modules.get('torch.distributed.tensor'), 'DTensor', ()))


class _Piece(NamedTuple):
    """A tensor's bytes in a copy. As a tuple it stands in the index in the tensor's place."""
    offset: int
    dtype: torch.dtype
    shape: Tuple[int, ...]
    # Of a DTensor, of which this is the local shard: the layout in words, the global shape and strides. Else None.
    layout: Optional[str] = None
    global_shape: Optional[Tuple[int, ...]] = None
    global_stride: Optional[Tuple[int, ...]] = None

    def of(self, data: torch.Tensor) -> torch.Tensor:
        size = self.dtype.itemsize * torch.Size(self.shape).numel()
        return data[self.offset:self.offset + size].view(self.dtype).view(self.shape) if size else torch.empty(self.shape, dtype=self.dtype)


class _Plan(pickle.Pickler):
    """The place of each tensor of a state in the data, and the rest of the state as a pickle."""

    def __init__(self, state: Any) -> None:
        """Raises TypeError where the state has something that load() would not read."""
        self._out = io.BytesIO()
        super().__init__(self._out, protocol=4)
        self._known: Dict[Any, _Piece] = {}
        self.tensors: List[Tuple[torch.Tensor, _Piece]] = []  # of this rank
        self.shards: Dict[str, Any] = {}  # by layout: a DTensor that has it
        self.data_bytes = 0
        self.dump(state)
        self.index = self._out.getvalue()
        if len(self.index) > copies.MOST_INDEX_BYTES:
            raise TypeError(f'the state has {len(self.index)} bytes beside its tensors, and {copies.MOST_INDEX_BYTES} are allowed: make tensors of them')
        _Reader(self.index, None, {}).load()

    def persistent_id(self, obj: Any) -> Optional[Tuple]:
        if not isinstance(obj, torch.Tensor):
            return None
        of_shard = ()
        local = obj
        if _is_shard(obj):
            local = obj.to_local()
            layout = f'{obj.placements} on ranks {obj.device_mesh.mesh.tolist()}'
            self.shards[layout] = obj
            of_shard = (layout, tuple(obj.shape), obj.stride())
        if type(local) not in (torch.Tensor, torch.nn.Parameter) or local.layout != torch.strided or local.is_quantized or local.is_meta:
            raise TypeError(f'convene.checkpoint keeps dense tensors, and DTensors of such; the state has a {type(local).__name__} with layout '
                            f'{local.layout} on {local.device}')
        key = (local.data_ptr(), local.dtype, local.shape, local.stride(), local.device, local.is_conj(), local.is_neg(), of_shard)
        if key not in self._known:  # tied weights are written once
            self._known[key] = piece = _Piece(self.data_bytes, local.dtype, tuple(local.shape), *of_shard)
            self.tensors.append((local.detach(), piece))
            self.data_bytes += -(-local.numel() * local.element_size() // _ALIGNMENT) * _ALIGNMENT
        return tuple(self._known[key])


class _Reader(pickle.Unpickler):
    """Makes a state of its index and data. An index may name what torch.load(weights_only=True) takes, and numpy's arrays; no other code."""

    def __init__(self, index: bytes, data: Optional[torch.Tensor], shards: Dict[str, Any]) -> None:
        """data: none where only the index is tried. shards: for each layout, a DTensor that has it."""
        super().__init__(io.BytesIO(index))
        self._data = data
        self._shards = shards
        self._made: Dict[Tuple, torch.Tensor] = {}

    def find_class(self, module_name: str, global_name: str) -> Any:
        added = {(getattr(known, '__module__', ''), getattr(known, '__qualname__', '')): known for known in torch.serialization.get_safe_globals()
                 if not isinstance(known, tuple)}
        if (module_name, global_name) in added:
            return added[module_name, global_name]
        is_dtype = module_name == 'torch' and isinstance(getattr(torch, global_name, None), torch.dtype)
        if is_dtype or (module_name, global_name) in _SAFE:
            return super().find_class(module_name, global_name)
        raise TypeError(f'the state has a {module_name}.{global_name}, which is not read from a checkpoint unless torch.serialization.add_safe_globals '
                        'allows it; save its state_dict, or numbers, strings, lists and dicts')

    def persistent_load(self, pid: Tuple) -> Any:
        if self._data is None:
            return None
        if pid not in self._made:
            piece = _Piece(*pid)
            tensor = piece.of(self._data).clone()
            if piece.layout is not None:
                if piece.layout not in self._shards:
                    raise ValueError(f'shards were saved as {piece.layout}; load(like=state) needs a state with such, it has {list(self._shards)}. Shards are '
                                     'loaded into the same layout only: for others use torch.distributed.checkpoint')
                like = self._shards[piece.layout]
                tensor = type(like).from_local(tensor.to(like.device), like.device_mesh, like.placements, shape=torch.Size(piece.global_shape),
                                               stride=piece.global_stride)
            self._made[pid] = tensor
        return self._made[pid]


class Checkpoint:
    """All ranks make it, load and save together. Threads: one at a time; another save meanwhile is refused."""

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
        local_rank = int(os.environ.get('LOCAL_RANK', '0'))
        self._owned = (0, 1) if replicated else (self._rank, self._world)
        self._copies_here = not replicated or local_rank == 0
        self._memory = self._open_memory(local_rank, 1 if replicated else int(os.environ.get('LOCAL_WORLD_SIZE', '1')))
        self._peers = self._find_peers(replicas)
        self._folder = copies.Folder(folder, *self._owned) if folder else None
        self._writes_here = self._folder is not None and (not replicated or self._rank == 0)
        self._generation = 0
        self._loaded: Optional[Name] = None
        # The last step, whether its copy stands, and whether it goes to the disk.
        self._saved: Tuple[int, bool, bool] = (-1, False, False)
        self._held: List[Optional[Name]] = [None, None]  # by half
        self._windows: List[Any] = [None, None]
        self._busy = threading.Lock()
        self._writers: List[Optional[threading.Thread]] = [None, None]  # by the half that it reads

    @staticmethod
    def _open_memory(local_rank: int, local_workers: int) -> copies.Memory:
        path = os.environ.get('CONVENE_MEMORY', '')
        try:
            return copies.Memory(path, local_rank, local_workers)
        except OSError as error:
            _log.warning('no memory that outlives this worker: %s: %s; only the disk does', path, error)
            return copies.Memory('', local_rank, local_workers)

    def _find_peers(self, replicas: int) -> Optional[peers.Peers]:
        if replicas == 0 or self._group is None:
            return None
        told = self._tell_any((int(os.environ.get('GROUP_RANK', '0')), self._memory.outlives_workers, replicas))
        nodes, can_keep, wanted = zip(*told)
        if len(set(wanted)) > 1:
            raise ValueError(f'convene.checkpoint: the ranks want {list(wanted)} replicas: all want as many')
        if not all(can_keep):
            _log.warning('no replicas: rank %d has no memory of an agent', can_keep.index(False))
            return None
        kept = choice.keepers(nodes, replicas)
        if len(kept) < replicas and self._rank == 0:
            _log.warning('%d replicas instead of %d: other nodes: %d', len(kept), replicas, len(set(nodes)) - 1)
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

        like: a state of today, where the saved one has DTensors: it gives the meshes for them.
        Raises, on all ranks: ValueError where there are only states of another number of ranks, or a layout that `like` has not; OSError where a rank
        cannot look into the folder.
        """
        known, unread = self._look()
        in_memory = {(place.header.name, place.header.owner): place for place in known if not place.is_file and place.header.world_size == self._owned[1]}
        on_disk = {place.header.name: place for place in known if place.is_file and (place.header.owner, place.header.world_size) == self._owned}
        told = self._tell_any((choice.Held(set(in_memory), set(on_disk)), self._owned[0],
                               {(place.header.generation, place.header.world_size) for place in known}, unread))
        held, owners, seen, problems = zip(*told)
        for rank, why in enumerate(problems):
            if why:
                raise OSError(f'convene.checkpoint: rank {rank} cannot look for states: {why}')
        of_any = [found for found_there in seen for found in found_there]
        self._generation = 1 + max((generation for generation, _ in of_any), default=0)
        self._saved, self._loaded, self._held = (-1, False, False), None, self._memory.held()
        refused = set()
        while (chosen := choice.choose_state(held, owners, refused)) is not None:
            name, sources = chosen
            state, problem = self._read(*self._fetch(name, sources, owners, in_memory, on_disk), like)
            problems = [problem for problem in self._tell_any(problem) if problem]
            if not problems:
                self._loaded = name
                newer = [world_size for generation, world_size in of_any if generation > name[0] and world_size != self._owned[1]]
                if newer:
                    _log.warning('step %d of %d ranks is loaded; there are newer copies of %d ranks, which only as many can load', name[1], self._owned[1],
                                 newer[0])
                return name[1], state
            for is_damaged, text in problems:
                if not is_damaged:
                    raise ValueError(f'convene.checkpoint: step {name[1]}: {text}')
            _log.warning('step %d is not loaded, an older one is: %s', name[1], problems[0][1])
            refused.add(name)
        others = sorted({world_size for _, world_size in of_any} - {self._owned[1]})
        if others:
            raise ValueError(f'convene.checkpoint: there is no state that all of {self._owned[1]} ranks have whole; there is one of {others[-1]} ranks. '
                             'As many ranks can load it; with replicated=True (all ranks have the same state) any number can; else remove it to begin anew')
        if of_any:
            _log.warning('no step is whole on all ranks: the job begins anew')
        return None

    def _look(self) -> Tuple[List[copies.Place], str]:
        """(the whole copies that this rank can see, why it cannot look into the folder)."""
        try:
            self.wait()
        except OSError as error:
            _log.warning('%s; the states that it has are looked at', error)
        try:
            if self._writes_here:
                self._folder.remove_parts()
            return self._memory.copies() + (self._folder.copies() if self._folder else []), ''
        except OSError as error:
            return [], str(error)

    def _fetch(self, name: Name, sources: Sequence[Optional[int]], owners: Sequence[int], in_memory: Dict[Tuple[Name, int], copies.Place],
               on_disk: Dict[Name, copies.Place]) -> Tuple[Optional[mmap.mmap], str]:
        """(this rank's copy, ''), or (None, why there is none). All ranks hand over to each other what they have."""
        own, why = None, ''
        for rank, source in enumerate(sources):
            giver = rank if source is None else source
            if self._rank == giver:
                window, problem = self._open(on_disk[name] if source is None else in_memory[name, owners[rank]])
                if rank == giver:
                    own, why = window, problem
                else:
                    peers.exchange(self._group, window, copies.size_of(window) if window else 0, rank, None, lambda _: None)
            elif self._rank == rank:
                _, own = peers.exchange(self._group, None, 0, None, giver, lambda size: mmap.mmap(-1, size))
                if own is None or copies.find_in(own) is None:
                    own, why = None, f'rank {giver}, whose node had it, cannot read it'
        return own, why

    @staticmethod
    def _open(place: copies.Place) -> Tuple[Optional[mmap.mmap], str]:
        try:
            return copies.read(place), ''
        except OSError as error:
            return None, str(error)

    @staticmethod
    def _read(window: Optional[mmap.mmap], why: str, like: Any) -> Tuple[Any, Optional[Tuple[bool, str]]]:
        """(the state, None), or (None, (whether the copy is damaged, why it cannot be read))."""
        if window is None:
            return None, (True, why)
        try:
            header = copies.find_in(window)
            index = window[copies.PAGE:copies.PAGE + header.index_bytes]
            data = torch.frombuffer(window, dtype=torch.uint8)[header.data_offset:]
            return _Reader(index, data, _Plan(like).shards).load(), None
        except Exception as error:  # pylint: disable=broad-except  (the other ranks wait for a word of this one)
            return None, (False, str(error) or type(error).__name__)

    def save(self, state: Any, step: int, to_disk: bool = True) -> bool:
        """Returns when the copy stands in memory: True; to the disk it is written behind the training. The state may change from then on.

        False, with a word in the log: there was too little memory, or the disk still read the older copy; the older state stands. Steps grow from save
        to save; the same step again writes to the disk, if only now that is wanted, and else does nothing. All ranks call it.
        Raises, on all ranks, TypeError for a state of any rank that load() would not read, and ValueError for a step that is not the same on all ranks or
        not a new one; RuntimeError for two saves at once.
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
        if self._peers is not None:
            self._peers.wait()  # So the older state, of which a half is written over now, is on no node the newest one.
        plan, problem, written = None, None, []
        try:
            plan = _Plan(state) if self._copies_here else None
            written = self._folder.written() if self._writes_here else []
        except TypeError as error:  # the other ranks wait for a word of this one
            problem = error
        except OSError as error:
            _log.warning('older states stay on disk, because their files cannot be listed: %s', error)
        told, steps = self._tell([(int(self._copies_here), int(self._writes_here)), *(name or _NONE for name in self._held),
                                  *([_NONE] * _TOLD + written)[-_TOLD:]], step if problem is None else _REFUSED)
        if problem is not None:
            raise problem
        if _REFUSED in steps:
            raise TypeError(f'convene.checkpoint: step {step} is not saved: the state of rank {steps.index(_REFUSED)} is none that load() would read (its log '
                            'says why)')
        if len(set(steps)) > 1 or step < self._saved[0]:
            raise ValueError(f'convene.checkpoint: the ranks save steps {steps} after step {self._saved[0]}: all save the same step, and a later one')
        in_memory = copies.newest_common([names[1:3] for names in told if names[0][0]])
        on_disk = copies.newest_common([names[3:] for names in told if names[0][1]] or [[]])
        _, stands, goes_to_disk = self._saved
        if step != self._saved[0]:
            keep = [in_memory, self._loaded]
            stands, goes_to_disk = not self._copies_here or self._copy(plan, (self._generation, step), keep), False
            if self._peers is not None:
                self._peers.begin((self._generation, step), self._windows[self._held.index((self._generation, step))] if stands else None, keep)
        if stands and to_disk and not goes_to_disk and self._writes_here:
            self._write((self._generation, step), copies.files_to_remove(written, [on_disk, self._loaded], _FILES))
        self._saved = (step, stands, goes_to_disk or to_disk)
        return stands

    def _copy(self, plan: _Plan, name: Name, keep: List[Optional[Name]]) -> bool:
        half = copies.half_to_write(self._held, keep)
        begin = copies.data_offset(len(plan.index))
        try:
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
        copies.seal_copy(window, copies.Header(*name, *self._owned, len(plan.index), begin, plan.data_bytes), plan.index)
        self._held[half] = name
        self._windows[half] = window
        return True

    def _write(self, name: Name, remove: List[Name]) -> None:
        """To the disk, behind the training."""
        half = self._held.index(name)
        before, window = self._writers[1 - half], self._windows[half]

        def run() -> None:
            if before is not None:
                before.join(_DISK_LIMIT_S)
            try:
                self._folder.remove(remove)
                self._folder.write(name, window)
            except OSError as error:
                _log.warning('step %d is not on disk, an older one is: %s', name[1], error)

        # Not a daemon: the interpreter waits at its end until the file is whole.
        self._writers[half] = threading.Thread(target=run, name='convene-checkpoint')
        self._writers[half].start()

    def _wait_for(self, half: int) -> None:
        """Raises OSError where the disk still reads the half after the limit."""
        writer = self._writers[half]
        if writer is not None:
            writer.join(_DISK_LIMIT_S)
            if writer.is_alive():
                raise OSError(f'the disk has not taken an older state within {_DISK_LIMIT_S} s')

    def wait(self) -> None:
        """Until the disk, and the other nodes, have all that was saved. Raises OSError where it has not within 10 minutes for each of two states."""
        if self._peers is not None:
            self._peers.wait()
        for half in copies.HALVES:
            self._wait_for(half)
