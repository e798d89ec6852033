"""All ranks read one state together, for convene.checkpoint: each its own copy, then what today's layout needs of others'.

A rank reads from memory and files of its node by itself; what it cannot read, a rank that can hands over.
"""

import errno
import mmap
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from . import checkpoint_choice as choice
from . import checkpoint_copies as copies
from . import checkpoint_peers as peers
from . import checkpoint_pieces as pieces

class Source:
    """The copies of one state."""

    def __init__(self, tell: Callable[[Any], List[Any]], group: Optional[dist.ProcessGroup], rank: int, world: int, places: Sequence[choice.Readers],
                 readable: Dict[int, copies.Place]) -> None:
        """tell: gives all ranks' words to all. places: by owner, of choose_state(). readable: those that this rank can read, by owner."""
        self._tell = tell
        self._group = group
        self._rank = rank
        self._world = world
        self._places = places
        self._readable = readable
        self._opened: Dict[int, pieces.Copy] = {}
        self._short = ''  # why this rank cannot read what is whole: it has no memory

    def load(self, like: Any) -> Any:
        """The state. All ranks call it. Raises, on all ranks: MemoryError where a rank has no memory for it; OSError where a copy is damaged; ValueError where
        `like` does not fit the state.
        """
        own, problem = self._fetch()
        made: List[pieces.Assembly] = []

        def begin() -> bool:
            if own is None:
                raise OSError(problem)
            made.append(pieces.Assembly(own, like))
            return made[0].is_whole()

        if not all(self._agree(begin)):
            shards = {owner: of_owner for told in self._agree(self._shards) for owner, of_owner in told.items()}
            ordered = [shards[owner] for owner in range(len(self._places))]
            wanted = self._agree(lambda: made[0].needs(ordered, self._rank, lambda owner: choice.giver(self._places[owner], self._rank)))
            self._agree(self._hand_over(made[0], wanted))
        return made[0].state()

    def _agree(self, call: Callable[[], Any]) -> List[Any]:
        """The results of all ranks' calls. Where one raises, or memory was short, all raise."""
        try:
            word = (None, call())
        except OSError as error:
            word = ((OSError, str(error)), None)
        except Exception as error:  # pylint: disable=broad-except  (the other ranks wait for a word of this one)
            word = ((ValueError, str(error) or type(error).__name__), None)
        told = self._tell(((MemoryError, self._short), None) if self._short else word)
        problems = [problem for problem, _ in told if problem]
        # Damage last: an older state would be taken then.
        for kind, text in sorted(problems, key=lambda problem: problem[0] is OSError):
            raise kind(text)
        return [result for _, result in told]

    def _memory(self, size: int) -> Optional[mmap.mmap]:
        """For what comes from another rank, or goes there, which waits for a word: None where there is too little."""
        try:
            return mmap.mmap(-1, size)
        except OSError as error:
            self._no_memory(f'{size} bytes', error)
            return None

    def _no_memory(self, what: str, error: OSError) -> None:
        self._short = self._short or f'rank {self._rank} has no memory for {what} of it ({error}); the state itself is whole: free memory there and start again'

    def _open(self, owner: int) -> pieces.Copy:
        """A copy that this rank can read. Raises OSError where it is damaged."""
        if owner not in self._opened:
            try:
                self._opened[owner] = pieces.Copy(copies.read(self._readable[owner]))
            except OSError as error:
                if error.errno == errno.ENOMEM:
                    self._no_memory('its copy', error)
                raise
        return self._opened[owner]

    def _fetch(self) -> Tuple[Optional[pieces.Copy], str]:
        """(this rank's copy, ''), or (None, why there is none). Ranks beyond those of the state take those of its first ones once more."""
        own, why = None, ''
        for rank in range(self._world):
            owner = rank % len(self._places)
            giver = choice.giver(self._places[owner], rank)
            if self._rank == giver:
                try:
                    copy, problem = self._open(owner), ''
                except OSError as error:
                    copy, problem = None, str(error)
                if rank == giver:
                    own, why = copy, problem
                else:
                    peers.exchange(self._group, copy and copy.window, copies.size_of(copy.window) if copy else 0, rank, None, lambda _: None)
            elif self._rank == rank:
                _, window = peers.exchange(self._group, None, 0, None, giver, self._memory)
                if window is None or copies.find_in(window) is None:
                    why = f'rank {giver}, whose node had it, cannot read it'
                else:
                    own = pieces.Copy(window)
        return own, why

    def _shards(self) -> Dict[int, Dict[pieces.Path, pieces.Piece]]:
        """Of the copies of which this rank tells the others."""
        mine = [owner for owner, readers in enumerate(self._places) if choice.giver(readers, owner) == self._rank]
        return {owner: self._open(owner).shards() for owner in mine}

    def _pack(self, needs: Sequence[pieces.Need]) -> Optional[mmap.mmap]:
        """None where there is too little memory. Raises OSError where a copy is damaged."""
        packed = self._memory(sum(need.bytes() for need in needs))
        if packed is None:
            return None
        out = torch.frombuffer(packed, dtype=torch.uint8)
        for need in needs:
            self._open(need.owner).put(need, out)
            out = out[need.bytes():]
        return packed

    def _hand_over(self, assembly: pieces.Assembly, wanted: Sequence[Dict[int, List[pieces.Need]]]) -> Callable[[], None]:
        """wanted: of each rank, by giver. The function that this returns raises OSError where a part did not come."""
        lost = ''
        for turn in range(len(wanted)):
            to, source = (self._rank + turn) % len(wanted), (self._rank - turn) % len(wanted)
            gives, takes = wanted[to].get(self._rank, []), wanted[self._rank].get(source, [])
            packed, arrived = None, None
            try:
                packed = self._pack(gives) if gives else None
            except OSError as error:
                lost = lost or str(error)
            if turn == 0:
                arrived = packed
            else:
                _, arrived = peers.exchange(self._group, packed, len(packed) if packed else 0, to if gives else None, source if takes else None, self._memory)
            if takes and arrived is not None:
                assembly.take(source, takes, torch.frombuffer(arrived, dtype=torch.uint8))
            elif takes:
                lost = lost or f'rank {source}, whose node had a part, cannot read it'

        def check() -> None:
            if lost:
                raise OSError(lost)
        return check
