"""Tells the agent this worker's progress (agent/PROGRESS.md): it sees a worker that hangs, and one that holds the others up.

    from convene.progress import Progress
    progress = Progress()        # once in each worker
    progress.tell(step)          # after each step

Without an agent, tell() does nothing; nor where its page cannot be opened, but then with a warning. No call enters the kernel. This file needs
nothing but itself: a script without the wheel may copy it.
"""

import faulthandler
import math
import mmap
import os
import signal
import struct
import time
import warnings
from typing import Optional

# worker_runtime/contract/progress_page.h
_DUMPS_ON_SIGNAL = 1
_MOST = (1 << 62) - 1
_EVERY_PHASE, _TIMES, _TOKENS, _MEMORY, _LOSS = 2, 4, 8, 16, 32


def _count(number: float, least: int = 0) -> int:
    """The number for the page. A report is not worth a worker: a number out of bounds is the nearest one within, and what is not finite is 0."""
    try:
        return max(least, min(_MOST, int(number))) if math.isfinite(number) else 0
    except (OverflowError, TypeError, ValueError):
        return 0


def _open(path: str) -> Optional[mmap.mmap]:
    try:
        fd = os.open(path, os.O_RDWR)
        try:
            page = mmap.mmap(fd, 4096)
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        warnings.warn(f'no progress page, so a hang goes unnoticed: {path}: {error}; the worker needs the /dev/shm and the user of its agent', stacklevel=3)
        return None
    return page if page[:8] == b'CONVPRG1' else None


def _dump_on_signal() -> bool:
    """Whether SIGUSR2 writes the stacks of all threads to stderr from now on. Where anybody else has a use for the signal, it stays as it is."""
    try:
        with open('/proc/self/status', encoding='ascii') as lines:
            caught = next(int(line.split()[1], 16) for line in lines if line.startswith('SigCgt:'))
        if caught >> (signal.SIGUSR2 - 1) & 1 or signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
            return False
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
        return True
    except (OSError, RuntimeError, ValueError, StopIteration):
        return False


class Progress:

    def __init__(self, tells_every_phase: bool = False, place: int = 0) -> None:
        """place: workers of the same place do the same work, as the ranks of a pipeline's stage; 0: all do."""
        path = os.environ.get('CONVENE_PROGRESS')
        self._page = _open(path) if path else None
        self._dumps = self._page is not None and _dump_on_signal()
        self._pid = os.getpid()
        self._place = place
        self._sequence = 0
        self._flags = _EVERY_PHASE if tells_every_phase else 0
        self._told_at = time.monotonic_ns()
        self._times = [0, 0, 0, 0]  # compute, wait, data, checkpoint: sums in ns
        self._tokens = 0
        self._memory = (0, 0)
        self._loss = 0.0

    def tell(self,
             step: int,
             phase: str = 'step',
             *,
             compute_s: Optional[float] = None,
             wait_s: Optional[float] = None,
             data_s: float = 0,
             checkpoint_s: float = 0,
             tokens: Optional[int] = None,
             loss: Optional[float] = None,
             memory_bytes: int = 0,
             memory_peak_bytes: int = 0,
             mfu: float = 0) -> None:
        """step: the last finished one. The rest is of the time since the last call, and optional.

        compute_s: this worker's own work; not given, all time that is not of the other three. wait_s: for other ranks, in collectives and
        receives; without it the agent is told no times. data_s: for samples. checkpoint_s: for saves. tokens: that this worker trained on
        (workers that share the work on a token share the count).
        memory_bytes, memory_peak_bytes: of the device (else the agent looks at the process).
        mfu: model FLOPs utilization of the last step, as a share of the device's peak: 0.41.
        """
        if self._page is None:
            return
        now = time.monotonic_ns()
        if wait_s is not None:
            rest_s = (now - self._told_at) / 1e9 - wait_s - data_s - checkpoint_s
            seconds = (max(0, rest_s) if compute_s is None else compute_s, wait_s, data_s, checkpoint_s)
            self._times = [_count(sum_ns + _count(1e9 * more)) for sum_ns, more in zip(self._times, seconds)]
            self._flags |= _TIMES
        self._told_at = now
        if tokens is not None:
            self._tokens = _count(self._tokens + _count(tokens))
            self._flags |= _TOKENS
        if memory_bytes:
            self._memory = (_count(memory_bytes), _count(max(memory_bytes, memory_peak_bytes)))
            self._flags |= _MEMORY
        if loss is not None:
            try:
                self._loss = float(loss)
                self._flags |= _LOSS
            except (OverflowError, TypeError, ValueError):
                pass
        # A handler that the script has set since is not the agent's to call.
        dumps = _DUMPS_ON_SIGNAL if self._dumps and signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL else 0
        self._page[8:16] = struct.pack('<Q', self._sequence + 1)
        self._page[16:136] = struct.pack('<qQII24s7QdII', _count(step, -_MOST), now, self._flags | dumps, self._pid,
                                         phase.encode()[:23], *self._times, self._tokens, *self._memory, self._loss, self._place,
                                         min(_count(1e6 * mfu), 2**32 - 1))
        self._sequence += 2
        self._page[8:16] = struct.pack('<Q', self._sequence)
