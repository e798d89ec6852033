"""A state as an index and data, for convene.checkpoint; and a state for today's layout, of the pieces that copies of another layout have.

A piece is a tensor's bytes in one rank's copy: a whole tensor, or a DTensor's local shard with its place in the global one. PyTorch's distributed
checkpoint (DCP) plans which parts of which pieces make a shard of today. Nothing here talks to other ranks.
"""

import functools
import io
import mmap
import pickle
import sys
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import checkpoint_copies as copies

_ALIGNMENT = 64
_SAFE = {('collections', 'OrderedDict'), ('collections', 'defaultdict'), ('collections', 'Counter'), ('torch', 'Size'), ('torch', 'device'),
         ('builtins', 'set'), ('builtins', 'frozenset'), ('builtins', 'complex'), ('builtins', 'bytearray'), ('builtins', 'slice'),
         ('numpy', 'dtype'), ('numpy', 'ndarray'), ('_codecs', 'encode')}
_SAFE |= {(module, name) for module in ('numpy.core.multiarray', 'numpy._core.multiarray') for name in ('_reconstruct', 'scalar')}

Path = Tuple[Any, ...]  # the keys and numbers that lead to a tensor of a state


class Piece(NamedTuple):
    """A tensor's bytes in a copy. As a tuple it stands in the index in the tensor's place."""
    offset: int
    dtype: torch.dtype
    shape: Tuple[int, ...]
    # Of a DTensor, of which this is the local shard: its placements and its mesh's ranks in words, its shape, and where in it the shard begins. Else None.
    placements: Optional[str] = None
    ranks: Optional[str] = None
    global_shape: Optional[Tuple[int, ...]] = None
    begin: Optional[Tuple[int, ...]] = None

    def of(self, data: torch.Tensor) -> torch.Tensor:
        size = self.dtype.itemsize * torch.Size(self.shape).numel()
        return data[self.offset:self.offset + size].view(self.dtype).view(self.shape) if size else torch.empty(self.shape, dtype=self.dtype)


class Need(NamedTuple):
    """A part of a piece that another rank's shard of today needs."""
    owner: int
    piece: Piece
    begin: Tuple[int, ...]  # within the piece
    shape: Tuple[int, ...]

    def bytes(self) -> int:
        return _aligned(self.piece.dtype.itemsize * torch.Size(self.shape).numel())


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _box(tensor: torch.Tensor, begin: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
    return tensor[tuple(slice(first, first + count) for first, count in zip(begin, shape))]


def _first(data: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor of such a shape at the begin of the bytes."""
    return data[:like.numel() * like.element_size()].view(like.dtype).view(like.shape)


def _is_shard(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor. A script that has some has imported the module."""
    return isinstance(tensor, getattr(sys.modules.get('torch.distributed.tensor'), 'DTensor', ()))


@functools.lru_cache(maxsize=1 << 16)  # It takes longer than the copy of a small shard.
def _local_box(shape: torch.Size, mesh: Any, placements: Tuple) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """(the local shape, where it begins) of a DTensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # pylint: disable=import-outside-toplevel  (see _is_shard)
    return compute_local_shape_and_global_offset(shape, mesh, placements)


def _leaves(state: Any, path: Path = (), within: FrozenSet[int] = frozenset()) -> Iterator[Tuple[Path, Any]]:
    """The tensors, or pieces, of a state that stand in dicts, lists and tuples. A dict that holds itself is looked into once."""
    if isinstance(state, (torch.Tensor, Piece)):
        yield path, state
    elif isinstance(state, (dict, list, tuple)) and id(state) not in within:
        for key, value in state.items() if isinstance(state, dict) else enumerate(state):
            yield from _leaves(value, path + (key,), within | {id(state)})


class Plan(pickle.Pickler):
    """The place of each tensor of a state in the data, and the rest of the state as a pickle."""

    def __init__(self, state: Any) -> None:
        """Raises TypeError where the state has something that load() would not read."""
        self._out = io.BytesIO()
        super().__init__(self._out, protocol=4)
        self._known: Dict[Any, Piece] = {}
        self.tensors: List[Tuple[torch.Tensor, Piece]] = []  # of this rank
        self.data_bytes = 0
        self.dump(state)
        self.index = self._out.getvalue()
        if len(self.index) > copies.MOST_INDEX_BYTES:
            raise TypeError(f'the state has {len(self.index)} bytes beside its tensors, and {copies.MOST_INDEX_BYTES} are allowed: make tensors of them')
        _Reader(self.index, lambda piece: None).load()

    def persistent_id(self, obj: Any) -> Optional[Tuple]:
        if not isinstance(obj, torch.Tensor):
            return None
        of_shard = ()
        local = obj
        if _is_shard(obj):
            local = obj.to_local()
            if any(placement.is_partial() for placement in obj.placements):
                raise TypeError(f'convene.checkpoint keeps no summands; the state has a DTensor with {obj.placements}: save its full_tensor()')
            shape, begin = _local_box(obj.shape, obj.device_mesh, obj.placements)
            if tuple(shape) != tuple(local.shape):
                raise TypeError(f'convene.checkpoint: the local shard of {obj.placements} has shape {tuple(local.shape)}; PyTorch finds {tuple(shape)}')
            of_shard = (*_in_words(obj), tuple(obj.shape), tuple(begin))
        if type(local) not in (torch.Tensor, torch.nn.Parameter) or local.layout != torch.strided or local.is_quantized or local.is_meta:
            raise TypeError(f'convene.checkpoint keeps dense tensors, and DTensors of such; the state has a {type(local).__name__} with layout '
                            f'{local.layout} on {local.device}')
        # Tied weights are written once. Empty shards, which all begin nowhere, are not tied.
        place = local.data_ptr() if local.numel() else id(obj)
        key = (place, local.dtype, local.shape, local.stride(), local.device, local.is_conj(), local.is_neg(), of_shard)
        if key not in self._known:
            self._known[key] = piece = Piece(self.data_bytes, local.dtype, tuple(local.shape), *of_shard)
            self.tensors.append((local.detach(), piece))
            self.data_bytes += _aligned(max(1, local.numel() * local.element_size()))
        return tuple(self._known[key])


def _in_words(tensor: torch.Tensor) -> Tuple[str, str]:
    """A DTensor's placements, and the ranks that it is on."""
    mesh = tensor.device_mesh
    return f'{tensor.placements} on {mesh.mesh_dim_names or mesh.ndim}', str(mesh.mesh.tolist())


class _Reader(pickle.Unpickler):
    """Makes a state of its index. An index may name what torch.load(weights_only=True) takes, and numpy's arrays; no other code."""

    def __init__(self, index: bytes, tensor_of: Callable[[Piece], Any]) -> None:
        super().__init__(io.BytesIO(index))
        self._tensor_of = tensor_of

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
        piece = Piece(*pid)
        if piece.placements is not None and piece.begin is None:
            raise ValueError('an older Convene wrote its DTensors, and did not say where their shards begin: load it with that version and save it with '
                             'torch.distributed.checkpoint, or remove it to begin anew')
        return self._tensor_of(piece)


class Copy:
    """A rank's copy of a state, as it stands in memory or in a file."""

    def __init__(self, window: mmap.mmap) -> None:
        header = copies.find_in(window)
        self.window = window
        self._index = window[copies.PAGE:copies.PAGE + header.index_bytes]
        self._data = torch.frombuffer(window, dtype=torch.uint8)[header.data_offset:]

    def pieces(self) -> Dict[Piece, Optional[Path]]:
        """All of its pieces. The path of a piece is None where it stands in an object that is not looked into."""
        found: Dict[Piece, Optional[Path]] = {}

        def remember(piece: Piece) -> Piece:
            found[piece] = None
            return piece

        for path, piece in _leaves(_Reader(self._index, remember).load()):
            found[piece] = path
        return found

    def shards(self) -> Dict[Path, Piece]:
        """The parts of DTensors. Tied ones stand at each of their paths."""
        return {path: piece for path, piece in _leaves(_Reader(self._index, lambda piece: piece).load()) if piece.begin is not None and 0 not in piece.shape}

    def tensor(self, piece: Piece) -> torch.Tensor:
        """A view of its data."""
        return piece.of(self._data)

    def state(self, tensors: Dict[Piece, torch.Tensor]) -> Any:
        return _Reader(self._index, tensors.__getitem__).load()

    def put(self, need: Need, out: torch.Tensor) -> None:
        """Copies the part to the begin of these bytes."""
        part = _box(self.tensor(need.piece), need.begin, need.shape)
        _first(out, part).copy_(part)


class _Layouts:
    """How the tensors of a state of today are laid out."""

    def __init__(self, like: Any) -> None:
        self._at = dict(_leaves(like))
        self._with: Dict[str, Dict[str, torch.Tensor]] = {}  # by placements, and ranks
        for tensor in self._at.values():
            if _is_shard(tensor):
                placements, ranks = _in_words(tensor)
                self._with.setdefault(placements, {})[ranks] = tensor

    def of(self, path: Optional[Path], piece: Piece) -> torch.Tensor:
        """A tensor with the layout that the piece's tensor gets: that at its path, else one with its placements. Raises ValueError where there is none."""
        found = self._at.get(path)
        if found is not None:
            if tuple(found.shape) != piece.global_shape:
                raise ValueError(f'{path} was saved with shape {piece.global_shape}; the state that load(like=state) got has {tuple(found.shape)}')
            return found
        meshes = self._with.get(piece.placements, {})
        if piece.ranks in meshes:
            return meshes[piece.ranks]
        if len(meshes) != 1:
            known = [(placements, *ranks) for placements, ranks in self._with.items()]
            raise ValueError(f'{path} was saved as {piece.placements}, ranks {piece.ranks}; load(like=state) needs a state that has a tensor there, or one '
                             f'mesh for such placements: it has {known}. torch.distributed.checkpoint.state_dict.get_state_dict makes one of a model and '
                             'its optimizer')
        return next(iter(meshes.values()))


class Assembly:
    """A state of today's layout: this rank's copy gives all but the parts of DTensors that it has not."""

    def __init__(self, own: Copy, like: Any) -> None:
        """Raises ValueError where `like` does not say how a DTensor is laid out today."""
        self._own = own
        self._tensors: Dict[Piece, torch.Tensor] = {}
        self._missing: List[Tuple[Optional[Path], Piece, torch.Tensor, Tuple[int, ...]]] = []  # the shards to fill, and where each begins
        self._parts: Dict[int, List[torch.Tensor]] = {}  # by giver: the parts of shards to be filled, in the order of its needs
        layouts = _Layouts(like)
        for piece, path in own.pieces().items():
            if piece.begin is None:
                self._tensors[piece] = own.tensor(piece).clone()
            else:
                self._lay_out(path, piece, layouts.of(path, piece))

    def _lay_out(self, path: Optional[Path], piece: Piece, like: torch.Tensor) -> None:
        shape, begin = piece.global_shape, (0,) * len(piece.global_shape)
        if _is_shard(like):
            shape, begin = _local_box(torch.Size(piece.global_shape), like.device_mesh, like.placements)
        shard = torch.empty(shape, dtype=piece.dtype, device=like.device)
        self._tensors[piece] = shard
        if _is_shard(like):
            stride = torch.empty(piece.global_shape, device='meta').stride()
            self._tensors[piece] = type(like).from_local(shard, like.device_mesh, like.placements, shape=torch.Size(piece.global_shape), stride=stride)
        if (tuple(shape), tuple(begin)) == (piece.shape, piece.begin):
            shard.copy_(self._own.tensor(piece))
        elif shard.numel() > 0:
            self._missing.append((path, piece, shard, tuple(begin)))

    def is_whole(self) -> bool:
        return not self._missing

    def needs(self, shards: Sequence[Dict[Path, Piece]], first: int, giver_of: Callable[[int], int]) -> Dict[int, List[Need]]:
        """The missing parts, by the rank that gives them. shards: by owner. first: the owner whose pieces are taken where several have the same.

        Raises ValueError where no piece has a part of a shard.
        """
        needs: Dict[int, List[Need]] = {}
        for path, piece, shard, begin in self._missing:
            pieces: Dict[Any, Tuple[int, Piece]] = {}  # by place: replicas of a shard are read once
            for number in range(len(shards)):
                owner = (first + number) % len(shards)
                found = shards[owner].get(path)
                if found is not None and (found.dtype, found.global_shape) == (piece.dtype, piece.global_shape):
                    pieces.setdefault((found.begin, found.shape), (owner, found))
            read = _plan(str(path), piece, list(pieces), begin, shard.shape)
            if sum(item.lengths.numel() for item in read) != shard.numel():
                raise ValueError(f'{path}: no rank saved what {tuple(shard.shape)} from {begin} of {piece.global_shape} needs')
            for item in read:
                owner, found = list(pieces.values())[item.storage_index.index]
                giver = giver_of(owner)
                needs.setdefault(giver, []).append(Need(owner, found, tuple(item.storage_offsets), tuple(item.lengths)))
                self._parts.setdefault(giver, []).append(_box(shard, item.dest_offsets, item.lengths))
        return needs

    def take(self, giver: int, needs: Sequence[Need], data: torch.Tensor) -> None:
        """Fills in the parts that came from the giver."""
        for part, need in zip(self._parts[giver], needs):
            part.copy_(_first(data, part))
            data = data[need.bytes():]

    def state(self) -> Any:
        return self._own.state(self._tensors)


def _plan(name: str, piece: Piece, saved: Sequence[Tuple], begin: Sequence[int], shape: Sequence[int]) -> List[Any]:
    """DCP's plan (a list of ReadItem) for a shard, of saved boxes."""
    from torch.distributed.checkpoint import metadata, planner_helpers  # pylint: disable=import-outside-toplevel  (it takes 0.1 s and more to import)
    boxes = [metadata.ChunkStorageMetadata(torch.Size(first), torch.Size(count)) for first, count in (*saved, (begin, shape))]
    known = metadata.TensorStorageMetadata(metadata.TensorProperties(piece.dtype), torch.Size(piece.global_shape), boxes[:-1])
    return planner_helpers.create_read_items_for_chunk_list(name, known, boxes[-1:])
