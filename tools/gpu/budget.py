"""A call's time: the next item gets a share of the time left, by weight, and at least its floor."""

import time
from typing import Callable, Iterable, Iterator, List, Tuple, TypeVar

Item = TypeVar('Item')


class Budget:
    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        return max(0.0, self._end - self._clock())

    def at_most(self, seconds: float) -> 'Budget':
        """A budget of its own, of so much of what is left."""
        return Budget(min(seconds, self.left()), self._clock)

    def part(self, fraction: float) -> 'Budget':
        """A budget of its own, of a fraction of what is left."""
        return Budget(self.left() * fraction, self._clock)

    def shares(self, items: Iterable[Item], weight: Callable[[Item], float] = lambda item: 1.0,
               floor: Callable[[Item], float] = lambda item: 0.0) -> Iterator[Tuple[Item, float]]:
        """Each item with the seconds it may take when its turn comes: its floor, and its share of the time beyond all
        floors. Time that an earlier item did not use goes to all later ones. Where not even the floors fit, the
        earlier items have theirs, and the last ones get the rest."""
        waiting: List[Item] = list(items)
        while waiting:
            spare = max(0.0, self.left() - sum(floor(item) for item in waiting))
            share = floor(waiting[0]) + spare * weight(waiting[0]) / sum(weight(item) for item in waiting)
            yield waiting.pop(0), min(share, self.left())
