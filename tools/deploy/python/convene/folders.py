"""The folder of one launch, below $TMPDIR. It is removed when the launch ends, and by a later launch when `kill -9` ended the process that made it.

A folder belongs to a launch for as long as someone holds its lock (flock on the folder itself): the launching process and the launcher that it
starts. The kernel lets go of the lock when both have ended, however they end.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from typing import Iterator, Optional, Tuple

_PREFIX = 'convene_launch_'


def _lock(folder: str) -> int:
    """A descriptor with the lock. FileNotFoundError: the folder is gone; BlockingIOError: another process has it; other OSErrors: this file system
    has no such locks (NFS)."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), os.stat(folder, follow_symlinks=False)):
            raise FileNotFoundError(folder)
        return fd
    except OSError:
        os.close(fd)
        raise


def _remove_left_behind(above: str) -> None:
    """The folders of this user's launches that nobody holds any more."""
    with contextlib.suppress(OSError), os.scandir(above) as entries:
        own = [entry.path for entry in entries if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False)
               and entry.stat(follow_symlinks=False).st_uid == os.geteuid()]
        for folder in own:
            with contextlib.suppress(OSError):
                fd = _lock(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(fd)


def _make(above: str) -> Tuple[str, Optional[int]]:
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=above)
        try:
            return folder, _lock(folder)
        except (FileNotFoundError, BlockingIOError):
            continue  # Another launch that has just begun took it for one that was left behind.
        except OSError:
            return folder, None


@contextlib.contextmanager
def launch_folder() -> Iterator[Tuple[str, Tuple[int, ...]]]:
    """The folder, and the descriptors that the launcher must inherit to hold it."""
    above = tempfile.gettempdir()
    _remove_left_behind(above)
    folder, fd = _make(above)
    try:
        yield folder, () if fd is None else (fd,)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if fd is not None:
            os.close(fd)
