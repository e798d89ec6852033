#!/usr/bin/python3
"""Kernel bugs, planted one by one: the tests on the emulated GPU must catch each.

usage: mutations.py [--check | --seconds N | NAME...]
Copies the tree to a folder under /tmp and runs the tests there, which must pass. Then plants each mutation (all, or those named, or with
--seconds as many as fit, in random order), runs the test that must fail, and prints a line for each. Exit 1 where one survived. --check
(which mutations_test runs) only checks whether each still applies: its old text stands exactly once in its file.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from typing import List, NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
OPS = 'worker_runtime/ops/cuda'
KERNELS = f'//{OPS}:kernels_emulated_test_'
ATTENTION = f'//{OPS}/attention:attention_emulated_test_'
TRAINER = '//tests/e2e:emulated_gpu_test'
FLASH = f'{OPS}/attention/flash_attention.cu'


class Mutation(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    test: str  # the target that must fail


MUTATIONS = [
    Mutation('no barrier between the warps and the first one', f'{OPS}/cross_entropy.cu',
             '__syncthreads();', '', KERNELS + 'forward'),
    Mutation('no barrier in the sum of a block', f'{OPS}/vector.cuh',
             '__syncthreads();\n  return WarpSum', 'return WarpSum', KERNELS + 'forward'),
    Mutation('one scratch for two rows in turn', f'{OPS}/rms_norm_backward.cu',
             'scratch[turn]);\n    turn ^= 1;\n    WriteGradient', 'scratch[turn]);\n    WriteGradient', KERNELS + 'forward'),
    Mutation('a tile is loaded over one that is read', FLASH,
             'query_begin += kTile) {\n      __syncthreads();  // nobody reads the tiles of before', 'query_begin += kTile) {', ATTENTION + 'forward'),
    Mutation('no __syncwarp between the lanes of a row', FLASH,
             '__syncwarp();  // a row\'s dscores stay within its warp', '', ATTENTION + 'forward'),
    Mutation('one element past the end', f'{OPS}/elementwise.cu',
             'if (i < count) element(i);', 'if (i <= count) element(i);', KERNELS + 'forward'),
    Mutation('a shared tile one row short', FLASH,
             'constexpr size_t kSharedBytes = 3 * Tiles::kRowsBytes + Tiles::kScoresBytes;',
             'constexpr size_t kSharedBytes = 3 * Tiles::kRowsBytes + Tiles::kScoresBytes - sizeof(typename Tiles::ScoreRow);',
             ATTENTION + 'forward'),
    Mutation('half of the warp in the mask', f'{OPS}/vector.cuh',
             '__shfl_xor_sync(0xffffffffu', '__shfl_xor_sync(0x0000ffffu', KERNELS + 'forward'),
    Mutation('a sum of a quarter of the warp', f'{OPS}/vector.cuh',
             'int distance = kWarp / 2; distance', 'int distance = kWarp / 4; distance', KERNELS + 'forward'),
    Mutation('wide accesses to arrays that are not aligned', f'{OPS}/launch_geometry.h',
             'return reinterpret_cast<uintptr_t>(array) % access_bytes == 0;',
             'return array == nullptr || access_bytes > 0;', KERNELS + 'forward'),
    Mutation('an array in registers one too short', f'{OPS}/swiglu.cu',
             'Vector<T, kWidth> ups[kForwardUnroll];', 'Vector<T, kWidth> ups[kForwardUnroll - 1];', KERNELS + 'address'),
    Mutation('shared memory that nobody wrote', f'{OPS}/vector.cuh',
             'if (lane == 0) scratch[warp] = value;', 'if (threadIdx.x == 0) scratch[warp] = value;', KERNELS + 'forward'),
    Mutation('a register that nobody wrote', f'{OPS}/rms_norm.cu',
             'Vector<T, kWidth> kept[kVectors] = {};', 'Vector<T, kWidth> kept[kVectors];', KERNELS + 'forward'),
    Mutation('threads that return before the barrier', f'{OPS}/rms_norm.cu',
             'const int64_t row = blockIdx.x;',
             'const int64_t row = blockIdx.x;\n  if (static_cast<int>(threadIdx.x) >= a.columns) return;', KERNELS + 'forward'),
    Mutation('more threads than the launch bounds', f'{OPS}/launch_geometry.h',
             'int64_t{width} * kVectorsPerThread), kWarp), kWarp, 512));',
             'int64_t{width} * kVectorsPerThread), kWarp), kWarp, 1024));', KERNELS + 'forward'),
    Mutation('two blocks write one place', f'{OPS}/adamw.cu',
             'Launch(stream, "decide_step", 1, dim3(1)', 'Launch(stream, "decide_step", 2, dim3(1)', KERNELS + 'thread'),
    Mutation('all threads of a block write one place', f'{OPS}/elementwise.cu',
             'if (threadIdx.x == 0) partials[blockIdx.x] = total;', 'partials[blockIdx.x] = total;', KERNELS + 'thread'),
    Mutation('more than 48 KiB without asking', FLASH,
             'static_cast<int>(bytes)),\n               "attention: shared memory");',
             'static_cast<int>(bytes / 2)),\n               "attention: shared memory");', ATTENTION + 'forward'),
    Mutation('attention sees the next token', FLASH,
             'c >= hidden && c < visible ? geometry.scale * scores[i]', 'c >= hidden && c <= visible ? geometry.scale * scores[i]', TRAINER),
    Mutation('a key is hidden by its place instead of its position', FLASH,
             'return positions.keys == nullptr ? key : positions.keys[key];', 'return key;', ATTENTION + 'forward'),
    Mutation('the statistics of a part have the heads last', FLASH,
             'heads_last(shape.packed && !shape.is_part())', 'heads_last(shape.packed)', ATTENTION + 'forward'),
    Mutation('another row of the embedding', f'{OPS}/embedding.cu',
             '(is_here ? int64_t{token} - vocabulary_begin : 0) * columns;', '(is_here ? int64_t{token ^ 1} - vocabulary_begin : 0) * columns;',
             TRAINER),
]


def planted(mutation: Mutation, root: str) -> str:
    """The file's text with the mutation in it. Raises ValueError where it does not apply."""
    with open(os.path.join(root, mutation.file), encoding='utf-8') as file:
        text = file.read()
    found = text.count(mutation.old)
    if found != 1:
        raise ValueError(f'"{mutation.name}": its old text stands {found} times in {mutation.file}; it must stand there once. '
                         'Write the mutation anew for the code as it is now')
    return text.replace(mutation.old, mutation.new)


def check(root: str) -> List[str]:
    wrong = []
    for mutation in MUTATIONS:
        try:
            planted(mutation, root)
        except ValueError as error:
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

    def catches(self, mutation: Mutation) -> bool:
        """Whether the test is built and fails."""
        path = os.path.join(self.root, mutation.file)
        with open(path, encoding='utf-8') as file:
            original = file.read()
        mutated = planted(mutation, self.root)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(mutated)
        # 3: built, and a test failed (Bazel's exit codes).
        status = self.bazel('test', mutation.test)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(original)
        return status == 3

    def remove(self, keep_log: bool) -> None:
        subprocess.run(['chmod', '-R', 'u+w', self.parent], check=False)  # Bazel's outputs are read-only
        for folder in (self.root, os.path.join(self.parent, 'bazel')) if keep_log else (self.parent,):
            shutil.rmtree(folder, ignore_errors=True)


def run(names: List[str], seconds: float = float('inf')) -> int:
    chosen = [mutation for mutation in MUTATIONS if not names or mutation.name in names]
    if len(chosen) < len(names):
        print(f'no such mutation among {names}; there are: {"; ".join(mutation.name for mutation in MUTATIONS)}')
        return 64
    if seconds < float('inf'):
        random.shuffle(chosen)
    copy = Copy()
    planted_count = 0
    survived = 0
    failed = True
    try:
        if copy.bazel('test', *sorted({mutation.test for mutation in chosen})) != 0:
            print(f'the tests fail without any mutation: {copy.log}')
            return 1
        end = time.monotonic() + seconds
        for mutation in chosen:
            if planted_count and time.monotonic() > end:
                break
            caught = copy.catches(mutation)
            planted_count += 1
            survived += not caught
            print(f'{"caught  " if caught else "SURVIVED"} {mutation.name} ({mutation.test})', flush=True)
        failed = survived > 0
    finally:
        copy.bazel('shutdown')
        copy.remove(keep_log=failed)
    print(f'{planted_count - survived} of {planted_count} caught; {"the log is " + copy.log if survived else "nothing survived"}')
    return 1 if survived else 0


def main() -> int:
    arguments = sys.argv[1:]
    if arguments == ['--check']:
        wrong = check(ROOT)
        print('\n'.join(wrong) or f'all {len(MUTATIONS)} mutations apply')
        return 1 if wrong else 0
    if arguments[:1] == ['--seconds'] and len(arguments) == 2:
        return run([], float(arguments[1]))
    return run(arguments)


if __name__ == '__main__':
    sys.exit(main())
