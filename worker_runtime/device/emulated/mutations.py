#!/usr/bin/python3
"""Kernel bugs, planted one by one: the tests on the emulated GPU must catch each.

usage: mutations.py [--check | NAME...]
Plants each mutation (all, or those named) in a copy of the tree under /tmp, runs the test that must fail, and prints a line for each.
Exit 1 where one survived. Each builds and runs a test; --check (which mutations_test runs) only checks whether each still
applies: its old text stands exactly once in its file.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from typing import List, NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
OPS = 'worker_runtime/ops/cuda'
KERNELS = f'//{OPS}:kernels_emulated_test_'
ATTENTION = f'//{OPS}/attention:attention_emulated_test_'
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
             '> last_key) break;\n      __syncthreads();  // nobody reads the tiles of before', '> last_key) break;', ATTENTION + 'forward'),
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


def is_caught(mutation: Mutation, copy: str, log: str) -> bool:
    """Whether the test is built and fails."""
    path = os.path.join(copy, mutation.file)
    with open(path, encoding='utf-8') as file:
        original = file.read()
    with open(path, 'w', encoding='utf-8') as file:
        file.write(planted(mutation, copy))
    with open(log, 'a', encoding='utf-8') as output:
        command = ['bazel', f'--output_base={copy}.bazel', 'test', '--cache_test_results=no', mutation.test]
        # 3: built, and a test failed (Bazel's exit codes).
        status = subprocess.run(command, cwd=copy, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    with open(path, 'w', encoding='utf-8') as file:
        file.write(original)
    return status == 3


def run(names: List[str]) -> int:
    chosen = [mutation for mutation in MUTATIONS if not names or mutation.name in names]
    parent = tempfile.mkdtemp(prefix='convene-mutations-')
    copy = os.path.join(parent, 'tree')
    listed = subprocess.run(['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout
    for name in filter(None, listed.split('\0')):
        if not os.path.isfile(os.path.join(ROOT, name)):
            continue
        os.makedirs(os.path.join(copy, os.path.dirname(name)), exist_ok=True)
        shutil.copy2(os.path.join(ROOT, name), os.path.join(copy, name))
    survived = 0
    log = os.path.join(parent, 'log')
    for mutation in chosen:
        caught = is_caught(mutation, copy, log)
        survived += not caught
        print(f'{"caught  " if caught else "SURVIVED"} {mutation.name} ({mutation.test})', flush=True)
    subprocess.run(['bazel', f'--output_base={copy}.bazel', 'shutdown'], cwd=copy, check=False)
    print(f'{len(chosen) - survived} of {len(chosen)} caught; {"the log is " + log if survived else "nothing survived"}')
    if not survived:
        subprocess.run(['chmod', '-R', 'u+w', parent], check=False)
        shutil.rmtree(parent)
    return 1 if survived or not chosen else 0


def main() -> int:
    arguments = sys.argv[1:]
    if arguments == ['--check']:
        wrong = check(ROOT)
        print('\n'.join(wrong) or f'all {len(MUTATIONS)} mutations apply')
        return 1 if wrong else 0
    return run(arguments)


if __name__ == '__main__':
    sys.exit(main())
