"""Remembers passed checks: one empty file for each key, in a folder under ~/.cache/convene whose size is bounded."""

import os

KEPT = 2000  # of a folder: each run of tools/check adds a few at most, and the oldest goes first


class Stamps:
    """A key stands for all that decides a result, such as a hash of the files that were read."""

    def __init__(self, folder: str, kept: int = KEPT):
        self.folder = folder
        self.kept = kept
        os.makedirs(folder, exist_ok=True)

    def has(self, key: str) -> bool:
        """Whether `key` was put and is still kept. A key that is asked for counts as new, so that it is kept longer."""
        try:
            os.utime(os.path.join(self.folder, key))
        except FileNotFoundError:
            return False
        return True

    def put(self, key: str) -> None:
        with open(os.path.join(self.folder, key), 'w', encoding='utf-8'):
            pass
        os.utime(os.path.join(self.folder, key))

    def sweep(self) -> None:
        """Removes all but the newest `kept`. Two programs may sweep one folder at the same time."""
        ages = {}
        for name in os.listdir(self.folder):
            try:
                ages[name] = os.stat(os.path.join(self.folder, name)).st_mtime_ns
            except FileNotFoundError:
                continue
        for name in sorted(ages, key=lambda name: -ages[name])[self.kept:]:
            try:
                os.remove(os.path.join(self.folder, name))
            except FileNotFoundError:
                continue
