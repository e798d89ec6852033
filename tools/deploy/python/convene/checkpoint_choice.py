"""PURE. The nodes that keep copies of a rank's state for convene.checkpoint, and the places that a state is read from. Nothing here needs PyTorch."""

from typing import Any, Collection, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

State = Tuple[int, int, int]  # generation, step, and the number of ranks whose copies are the state
Readers = Tuple[List[int], List[int]]  # of a copy: the ranks that can read it from memory, and from disk


class Held(NamedTuple):
    """The copies that one rank can read without another's help: of each state, their owners."""
    in_memory: Dict[State, Set[int]]
    on_disk: Dict[State, Set[int]]


def choose_state(held: Sequence[Held], world_size: Optional[int], refused: Collection[State]) -> Optional[Tuple[State, List[Readers]]]:
    """The newest state that is whole, and by owner the ranks that can read its copies. None where no state is whole.

    world_size: the state is one of so many ranks; None: of any number.
    """
    states = {state for of_rank in held for kind in of_rank for state in kind}
    for state in sorted(states.difference(refused), reverse=True):
        if world_size in (None, state[2]):
            readers: List[Readers] = [([], []) for _ in range(state[2])]
            for rank, of_rank in enumerate(held):
                for kind, of_kind in enumerate(of_rank):
                    for owner in of_kind.get(state, ()):
                        readers[owner][kind].append(rank)
            if all(in_memory or on_disk for in_memory, on_disk in readers):
                return state, readers
    return None


def next_generation(newest: int, epoch: int) -> int:
    """The generation of the states that the ranks of an epoch save. newest: of all that they see.

    Ranks of two epochs may see nothing of each other. Their generations differ all the same, so a state is never mixed of both. Where both saw
    the same newest state, those of the later epoch are the newer ones.
    """
    return ((newest >> 20) + 1 << 20) + epoch


def giver(readers: Readers, rank: int) -> int:
    """The rank that reads a copy for this one: from memory before disk, itself before others."""
    ranks = readers[0] or readers[1]
    return rank if rank in ranks else ranks[rank % len(ranks)]


def places(memories: Sequence[Any], local_ranks: Sequence[int]) -> List[int]:
    """The place of each rank in its memory: its local rank. memories: what tells the rank's memory from others; None: it has one of its own.

    A worker that makes several ranks gives all of them its local rank. Then the ranks of that memory have the places of their order instead.
    """
    of_memory: Dict[Any, List[int]] = {}
    for rank, memory in enumerate(memories):
        of_memory.setdefault(memory, []).append(rank)
    found = list(local_ranks)
    for memory, ranks in of_memory.items():
        if memory is not None and len({local_ranks[rank] for rank in ranks}) < len(ranks):
            for place, rank in enumerate(ranks):
                found[rank] = place
    return found


def keepers(nodes: Sequence[int], replicas: int) -> List[List[int]]:
    """For each of the copies on other nodes, the rank that keeps it, by the rank whose state it is. nodes: the node of each rank.

    The nodes of one state's copies lie as far apart as their number allows: neighbours often share a rack. Fewer nodes, fewer copies.
    Raises ValueError where the nodes have different numbers of workers.
    """
    of_node = {node: [rank for rank, other in enumerate(nodes) if other == node] for node in sorted(set(nodes))}
    rows = list(of_node.values())
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f'replicas need as many workers on each node; the nodes have {[len(row) for row in rows]}')
    count = min(replicas, len(rows) - 1)
    apart = len(rows) // (count + 1)
    kept = [[0] * len(nodes) for _ in range(count)]
    for number, row in enumerate(rows):
        for place, rank in enumerate(row):
            for copy in range(count):
                kept[copy][rank] = rows[(number + (copy + 1) * apart) % len(rows)][place]
    return kept
