"""PURE. The nodes that keep copies of a rank's state for convene.checkpoint, and the places that a state is read from. Nothing here needs PyTorch."""

from typing import Collection, List, NamedTuple, Optional, Sequence, Set, Tuple

Name = Tuple[int, int]  # of checkpoint_copies: generation and step


class Held(NamedTuple):
    """The copies that one rank can read without another's help."""
    in_memory: Set[Tuple[Name, int]]  # of its node: name and owner
    on_disk: Set[Name]                # of its own state


def choose_state(held: Sequence[Held], owners: Sequence[int], refused: Collection[Name]) -> Optional[Tuple[Name, List[Optional[int]]]]:
    """The newest state that is whole, and for each rank the rank in whose node's memory its copy stands (itself first); None there: on disk.

    owners: of the copy that each rank needs. None where no state is whole.
    """
    places = {}  # of a copy: the ranks of the nodes that have it
    for rank, of_rank in enumerate(held):
        for name, owner in of_rank.in_memory:
            places.setdefault((name, owner), []).append(rank)
    names = {name for name, _ in places}.union(*(of_rank.on_disk for of_rank in held)).difference(refused)
    for name in sorted(names, reverse=True):
        if all((name, owner) in places or name in of_rank.on_disk for owner, of_rank in zip(owners, held)):
            found = [places.get((name, owner), []) for owner in owners]
            return name, [rank if rank in of_copy else of_copy[rank % len(of_copy)] if of_copy else None for rank, of_copy in enumerate(found)]
    return None


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
