"""Each part's time: whoever is next gets a share of what is left, by weight."""

import time
from typing import Callable, Iterable, Iterator, List, Tuple, TypeVar

Item = TypeVar('Item')


class Budget:
    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        return max(0.0, self._end - self._clock())

    def part(self, fraction: float) -> 'Budget':
        """A budget of its own, of a fraction of what is left."""
        return Budget(self.left() * fraction, self._clock)

    def shares(self, items: Iterable[Item], weight: Callable[[Item], float] = lambda item: 1.0) -> Iterator[Tuple[Item, float]]:
        """Each item with the seconds it may take when its turn comes: what an earlier one did not use goes to all later ones."""
        waiting: List[Item] = list(items)
        while waiting:
            share = self.left() * weight(waiting[0]) / sum(weight(item) for item in waiting)
            yield waiting.pop(0), share
