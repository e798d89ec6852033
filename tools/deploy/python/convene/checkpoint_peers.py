"""Copies of a worker's state on other nodes, for convene.checkpoint. checkpoint_choice.py says which node keeps whose.

A copy travels between two workers by messages on the host (gloo): its size, the word whether there is memory for it, its bytes. The page with the seal
comes last, so that a copy whose sender died is none.
"""

import logging
import mmap
from concurrent import futures
from typing import Callable, List, Optional, Tuple

import torch
import torch.distributed as dist

from . import checkpoint_copies as copies
from .checkpoint_behind import Behind
from .checkpoint_copies import Name

_log = logging.getLogger('convene.checkpoint')
_PIECE = 64 << 20
_NO_COPY = 0  # as a size that is told


def _pieces(size: int) -> List[Tuple[int, int]]:
    """Begin and end of each message, the first page last."""
    return [(begin, min(size, begin + _PIECE)) for begin in range(copies.PAGE, size, _PIECE)] + [(0, copies.PAGE)]


def exchange(group: dist.ProcessGroup, window: Optional[mmap.mmap], size: int, to: Optional[int], source: Optional[int],
             reserve: Callable[[int], Optional[mmap.mmap]]) -> Tuple[bool, Optional[mmap.mmap]]:
    """Sends `size` bytes of the window to rank `to` (no window: the word that there are none), while a copy of rank `source` comes; None: no such rank.

    reserve: memory for so many bytes; None: there is too little, then the sender is told so. Returns (the other rank has the copy, the copy that came).
    Raises RuntimeError where a rank is gone, or silent for the group's limit.
    """
    def both(sent: Optional[torch.Tensor], came: Optional[torch.Tensor], there: Optional[int], here: Optional[int]) -> None:
        works = [dist.irecv(came, here, group=group)] if came is not None and here is not None else []
        works += [dist.isend(sent, there, group=group)] if sent is not None and there is not None else []
        for work in works:
            work.wait()

    told, size_there = torch.tensor([size if window is not None else _NO_COPY]), torch.zeros(1, dtype=torch.int64)
    both(told, size_there, to, source)
    arriving = reserve(int(size_there)) if size_there > 0 else None
    answer, is_taken = torch.tensor([int(arriving is not None)]), torch.zeros(1, dtype=torch.int64)
    both(answer, is_taken, source, to)
    out = torch.frombuffer(window, dtype=torch.uint8) if window is not None and is_taken > 0 else None
    into = torch.frombuffer(arriving, dtype=torch.uint8) if arriving is not None else None
    going = _pieces(size) if out is not None else []
    coming = _pieces(int(size_there)) if into is not None else []
    for number in range(max(len(going), len(coming))):
        both(out[slice(*going[number])] if number < len(going) else None, into[slice(*coming[number])] if number < len(coming) else None, to, source)
    return out is not None, arriving


class Peers:
    """The copies of this worker's state on other nodes, and those that this worker keeps for others. Threads: its own sends; the calls come from one."""

    def __init__(self, group: dist.ProcessGroup, memory: copies.Memory, kept: List[List[int]]) -> None:
        """kept: of keepers(). The group is for nothing else."""
        self._group = group
        self._memory = memory
        rank = dist.get_rank()
        self._routes = [(of_copy[rank], of_copy.index(rank)) for of_copy in kept]  # (the keeper of this rank's copy, the owner of the guest's)
        self._guests = [memory.held(guest) for guest in range(1, len(kept) + 1)]
        self._behind = Behind('convene-peers')
        self._sent: Optional[futures.Future] = None

    def begin(self, name: Name, window: Optional[mmap.mmap], keep: List[Optional[Name]]) -> None:
        """All ranks, behind each save; beside the training. window: of this rank's copy, None where it could not be made. keep: states that stay."""
        self._sent = self._behind.submit(self._run, name, window, keep)

    def wait(self) -> None:
        """Until the copies of the last save stand on the other nodes, or their absence has been told in the log."""
        if self._sent is not None:
            self._sent.result()  # The group's limit ends it.
            self._sent = None

    def _run(self, name: Name, window: Optional[mmap.mmap], keep: List[Optional[Name]]) -> None:
        size = copies.size_of(window) if window is not None else 0
        try:
            for guest, (keeper, owner) in enumerate(self._routes):
                held = self._guests[guest]
                half = copies.half_to_write(held, keep)

                def reserve(bytes_there: int) -> Optional[mmap.mmap]:
                    return self._reserve(guest, half, owner, bytes_there)  # pylint: disable=cell-var-from-loop  (called within this turn)

                is_kept, arrived = exchange(self._group, window, size, keeper, owner, reserve)
                if arrived is not None:
                    held[half] = name
                if window is not None and not is_kept:
                    _log.warning('step %d is not on the node of rank %d, which has too little memory: an older state stands there', name[1], keeper)
        except (RuntimeError, ValueError) as error:
            _log.warning('step %d is not on other nodes: %s', name[1], error)

    def _reserve(self, guest: int, half: int, owner: int, size: int) -> Optional[mmap.mmap]:
        try:
            window = self._memory.reserve(half, size, guest + 1)
        except OSError as error:
            _log.warning('no copy of rank %d is kept here: %s', owner, error)
            return None
        self._guests[guest][half] = None  # A copy that is cut short is none: the next one comes here, and the older one stays.
        return window
