"""Plants mutations in a copy of the tree, and runs the tests that must catch them."""

import os
import random
import shutil
import subprocess
import tempfile
import time
from typing import List, NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Mutation(NamedTuple):
    name: str
    file: str
    old: str  # stands once in the file
    new: str
    tests: str  # targets with a blank between: one of them must fail
    bug: str = ''  # the class of bugs that it is one of


def planted(mutation: Mutation, root: str) -> str:
    """The file's text with the mutation in it. Raises ValueError where it does not apply."""
    with open(os.path.join(root, mutation.file), encoding='utf-8') as file:
        text = file.read()
    found = text.count(mutation.old)
    if found != 1:
        raise ValueError(f'"{mutation.name}": its old text stands {found} times in {mutation.file}; it must stand there once. '
                         'Write the mutation anew for the code as it is now')
    return text.replace(mutation.old, mutation.new)


def check(mutations: List[Mutation]) -> List[str]:
    """Why mutations do not apply: a line for each of them."""
    wrong = []
    names = set()
    for mutation in mutations:
        if mutation.name in names:
            wrong.append(f'"{mutation.name}" is the name of two mutations')
        names.add(mutation.name)
        try:
            planted(mutation, ROOT)
        except (OSError, ValueError) as error:
            wrong.append(str(error))
    return wrong


class Copy:
    """The tree, copied, with a Bazel of its own: neither touches what a person builds meanwhile."""

    def __init__(self) -> None:
        self.parent = tempfile.mkdtemp(prefix='convene-mutations-')
        self.root = os.path.join(self.parent, 'tree')
        self.log = os.path.join(self.parent, 'log')
        listed = subprocess.run(['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'], cwd=ROOT, check=True,
                                capture_output=True, text=True).stdout
        # Bazel's settings of this machine, which git does not know.
        for name in listed.split('\0') + ['.bazelrc.user']:
            if os.path.isfile(os.path.join(ROOT, name)):
                os.makedirs(os.path.join(self.root, os.path.dirname(name)), exist_ok=True)
                shutil.copy2(os.path.join(ROOT, name), os.path.join(self.root, name))

    def bazel(self, *arguments: str) -> int:
        with open(self.log, 'a', encoding='utf-8') as output:
            return subprocess.run(['bazel', f'--output_base={self.parent}/bazel', *arguments], cwd=self.root, stdout=output,
                                  stderr=subprocess.STDOUT, check=False).returncode

    def verdict(self, mutation: Mutation) -> str:
        """'caught' where the tests are built and one fails, 'SURVIVED' where all pass, else 'UNBUILT'."""
        path = os.path.join(self.root, mutation.file)
        with open(path, encoding='utf-8') as file:
            original = file.read()
        mutated = planted(mutation, self.root)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(mutated)
        status = self.bazel('test', '--test_runner_fail_fast', *mutation.tests.split())
        with open(path, 'w', encoding='utf-8') as file:
            file.write(original)
        # 3: built, and a test failed (Bazel's exit codes).
        return {0: 'SURVIVED', 3: 'caught'}.get(status, 'UNBUILT')

    def remove(self, keep_log: bool) -> None:
        subprocess.run(['chmod', '-R', 'u+w', self.parent], check=False)  # Bazel's outputs are read-only
        for folder in (self.root, os.path.join(self.parent, 'bazel')) if keep_log else (self.parent,):
            shutil.rmtree(folder, ignore_errors=True)


def run(mutations: List[Mutation], names: List[str], seconds: float = float('inf')) -> int:
    """Plants all of them, or those named, or as many as fit into the time. The exit status."""
    chosen = [mutation for mutation in mutations if not names or mutation.name in names]
    if len(chosen) < len(names):
        print(f'no such mutation among {names}; there are: {"; ".join(mutation.name for mutation in mutations)}')
        return 64
    if seconds < float('inf'):
        random.shuffle(chosen)
    copy = Copy()
    planted_count = 0
    caught = 0
    try:
        if copy.bazel('test', *sorted({test for mutation in chosen for test in mutation.tests.split()})) != 0:
            print(f'the tests fail without any mutation: {copy.log}')
            return 1
        end = time.monotonic() + seconds
        for mutation in chosen:
            if planted_count and time.monotonic() > end:
                break
            verdict = copy.verdict(mutation)
            planted_count += 1
            caught += verdict == 'caught'
            bug = f' [{mutation.bug}]' if mutation.bug else ''
            print(f'{verdict:8} {mutation.name}{bug} ({mutation.tests})', flush=True)
    finally:
        copy.bazel('shutdown')
        copy.remove(keep_log=planted_count == 0 or caught < planted_count)
    print(f'{caught} of {planted_count} caught; {"nothing survived" if caught == planted_count else "the log is " + copy.log}')
    return 0 if caught == planted_count else 1
