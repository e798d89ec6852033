"""Finds a change: the files that differ from the landed commit, and whether files are the same as in an earlier pass.

The landed commit is known where a branch named origin/main or main is an ancestor of the checkout: in a person's clone. A clone that CI makes may
have none, or may call the change itself main: then nothing is known of the change, and a caller must take the careful way.
"""

import hashlib
import os
import subprocess
from typing import Iterable, List, Optional

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LANDED_BRANCHES = ['origin/main', 'main']


class Tree:
    """A git checkout, with its uncommitted changes."""

    def __init__(self, root: str = ROOT):
        self.root = root

    def git(self, *arguments: str) -> Optional[str]:
        """The output of git; None where it refused, for example because there is no such branch."""
        done = subprocess.run(['git', *arguments], cwd=self.root, check=False, capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None

    def landed(self) -> Optional[str]:
        """The newest commit that is an ancestor of this one and has landed. None where that is not known."""
        head = self.git('rev-parse', 'HEAD')
        for branch in LANDED_BRANCHES:
            base = self.git('merge-base', 'HEAD', branch)
            # A branch that ends here says nothing: it may be the change's own name in CI's clone.
            if base and base != head:
                return base.strip()
        return None

    def changed_since(self, commit: str) -> List[str]:
        """Paths of files that were added, edited or removed since `commit`, committed or not."""
        listed = [self.git('diff', '--name-only', '--no-renames', '-z', commit), self.git('ls-files', '-z', '--others', '--exclude-standard')]
        return sorted({path for text in listed if text for path in text.split('\0') if path})

    def changed_lately(self) -> List[str]:
        """Where nobody knows what landed: what is not committed, and then the files that the commits of the last day before the newest one touched,
        the newest commit's first. A merge counts as one commit that brings all it merges. The oldest commit of a shallow clone brings every file."""
        newest = int(self.git('log', '-1', '--format=%ct') or 0)
        listed = [self.git('diff', '--name-only', '-z', 'HEAD'), self.git('ls-files', '-z', '--others', '--exclude-standard'),
                  self.git('log', f'--since={newest - 24 * 3600}', '-m', '--first-parent', '--no-renames', '--format=', '--name-only', '-z')]
        return list(dict.fromkeys(path.strip() for text in listed if text for path in text.split('\0') if path.strip()))

    def fingerprint(self, paths: Iterable[str], *more: str) -> str:
        """A hash, equal for the same files with the same bytes, in every clone. `more`: other facts that must be the same, such as a compiler's version."""
        listed = self.git('ls-files', '-z', '--cached', '--others', '--exclude-standard', '--', *paths) or ''
        digest = hashlib.sha256('\0'.join(more).encode())
        for path in sorted(set(filter(None, listed.split('\0')))):
            whole = os.path.join(self.root, path)
            if os.path.isfile(whole):
                with open(whole, 'rb') as file:
                    digest.update(f'{path}\0{hashlib.sha256(file.read()).hexdigest()}\n'.encode())
        return digest.hexdigest()


def below(paths: Iterable[str], folders: Iterable[str]) -> List[str]:
    """The paths that are one of `folders`, or lie in one."""
    return [path for path in paths if any(path == folder or path.startswith(folder + '/') for folder in folders)]
