"""Work of convene.checkpoint behind the training. Nothing here needs PyTorch."""

from concurrent import futures
from typing import Any, Callable


class Behind:
    """A thread that stays: the start of one would hold a save until it runs. The interpreter waits at its end until all is done."""

    def __init__(self, name: str) -> None:
        self._thread = futures.ThreadPoolExecutor(1, name)

    def submit(self, work: Callable[..., None], *arguments: Any) -> 'futures.Future[None]':
        """In the order of the calls. An interpreter that ends (atexit) has no such thread any more: then the work is done when this returns."""
        try:
            return self._thread.submit(work, *arguments)
        except RuntimeError:
            work(*arguments)
            done: 'futures.Future[None]' = futures.Future()
            done.set_result(None)
            return done
