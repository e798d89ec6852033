#!/usr/bin/env python3
"""Tests and benchmarks of Convene on this machine's NVIDIA GPU.

usage: tools/gpu_check [PART...] [--bundle PATH] [--output FOLDER] [--only NAME] [--after FOLDER] [--seconds N] [--gpu LIST]   (in a checkout)
       convene/gpu_check ...                                                        (in an unpacked bundle, which then is the bundle)
Needs an NVIDIA driver (580 or later), CUDA 13's libraries (PyTorch's copies will do), and PyTorch for the comparisons with it.
In a checkout without --bundle it first builds one. A call ends within its time, which is 220 s for ops, 260 s for sanitize, 480 s for layouts, 480 s
for bench, for several parts their sum, or --seconds; items left out are `skipped`. With --only, the chosen items get all of the time.
Where a GPU is there for a quarter of an hour: `first` (500 s) takes the items that prove most, of all parts, and then `second --after FOLDER` (150 s) what
failed or was cut there, and in the time left sanitizers, attention and more ranks.
nvidia-smi, the libraries that are missing and the toolchain's test come first in each call.
Writes gpu_check.json (every figure) and gpu_check.log (every output); the last line is `N passed, N failed, N skipped`.
Exit status: 0 nothing failed; 1 something did; 64 bad usage; 69 no GPU or no CUDA libraries here: nothing was run.
"""

import argparse
import functools
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import AbstractSet, Any, Callable, Dict, List, NamedTuple, Optional

sys.dont_write_bytecode = True
import layouts  # noqa: E402  (the line above keeps __pycache__ out of the tree)
import machine  # noqa: E402
import processes  # noqa: E402
import sessions  # noqa: E402
import test_binaries  # noqa: E402
import training  # noqa: E402
from budget import Budget  # noqa: E402
from results import Results, make_folder  # noqa: E402

HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # of a checkout or of an unpacked bundle
PART_SECONDS = {'ops': 220, 'sanitize': 260, 'layouts': 480, 'bench': 480}
TESTS_SHARE = 0.3  # of the time of `layouts`, for the collectives' own tests; the rest is training
BENCHES_SHARE = 0.3  # of the time of `bench`, for the kernels' own; the rest is training
TORCH_PROBE_SECONDS = 90  # PyTorch's libraries are read from a cold disk


class Check(NamedTuple):
    """The arguments of every part."""
    bundle: str
    device: str
    gpu: str  # nvidia-smi's name of the first
    environment: Dict[str, str]
    torch: Callable[[], Dict[str, Any]]  # looks for PyTorch when it is first called: from a cold disk that takes a minute
    only: AbstractSet[str]  # the names of the chosen items; empty: all
    turns: int  # of ours and of PyTorch's, in `bench`
    binaries: List[test_binaries.Binary]
    results: Results

    def chosen(self, kind: str, *parts: str) -> List[test_binaries.Binary]:
        """The toolchain's test is not among them: it has run already."""
        return [binary for binary in self.binaries if binary.kind == kind and (not parts or binary.part in parts)
                and (binary.name in self.only if self.only else not binary.slice.by_name_alone) and binary.label != test_binaries.TOOLCHAIN_TEST]

    def part_of(self, budget: Budget, share: float) -> Budget:
        """The share of a part's time; the items that --only chose get all of it."""
        return budget if self.only else budget.part(share)


def first_look(check: Check, budget: Budget) -> bool:
    """Reports faults of the machine, before anything else fails because of them. False where most of the toolchain's test fails: then all would."""
    check.results.log('nvidia-smi', machine.smi_text())
    programs = [f'{check.bundle}/bin/{name}' for name in ('convene', 'convened', 'convene-train')]
    programs += dict.fromkeys(os.path.join(check.bundle, binary.file) for binary in check.binaries)
    libraries = machine.needed_libraries(programs, check.environment)
    for library, users in libraries.missing.items():
        check.results.failed('machine', library, f'the loader does not find it, and {len(users)} programs need it, the first is {users[0]}: '
                             'is it in CUDA\'s libraries here, or should the bundle bring it?')
    if libraries.unknown:
        check.results.skipped('machine', 'ldd', f'it told nothing of {", ".join(libraries.unknown)} within {machine.LDD_SECONDS} s: a missing library shows '
                              'when they start')
    toolchain = [binary for binary in check.binaries if binary.label == test_binaries.TOOLCHAIN_TEST]
    test_binaries.run_tests('machine', toolchain, check.bundle, check.environment, budget, check.results)
    return not any(row.failed > row.passed for row in check.results.rows if row.name == test_binaries.TOOLCHAIN_TEST)


def part_ops(check: Check, budget: Budget) -> None:
    binaries = check.chosen('test', 'ops')
    if not binaries:
        check.results.skipped('ops', 'op tests', why_no_binaries(check))
    test_binaries.run_tests('ops', binaries, check.bundle, check.environment, budget, check.results)


def part_layouts(check: Check, budget: Budget) -> None:
    test_binaries.run_tests('layouts', check.chosen('test', 'layouts'), check.bundle, check.environment, check.part_of(budget, TESTS_SHARE),
                            check.results)
    layouts.check(check.bundle, check.device, check.environment, check.torch, budget, check.only, check.results)


def part_sanitize(check: Check, budget: Budget) -> None:
    tool = machine.compute_sanitizer()
    binaries = test_binaries.sanitized(check.chosen('test', 'ops'))
    if tool is None:
        check.results.skipped('sanitize', 'compute-sanitizer', 'it is not installed here: it comes with the CUDA toolkit')
    elif not binaries:
        check.results.skipped('sanitize', 'compute-sanitizer', why_no_binaries(check))
    else:
        test_binaries.run_sanitizer(tool, binaries, check.bundle, check.environment, budget, check.results)


def part_bench(check: Check, budget: Budget) -> None:
    benches = check.chosen('bench')
    if benches:
        test_binaries.run_benches(benches, check.bundle, check.environment, check.part_of(budget, BENCHES_SHARE), check.results)
    cases = training.chosen_cases(check.device, check.only)
    if not cases:
        return
    if not check.torch():
        check.results.skipped('bench', 'PyTorch', 'no python3 here can import torch: ours is measured alone')
    training.bench(cases, lambda folder: machine.Place(check.bundle, folder, check.device, check.environment, check.torch()), check.gpu, check.turns,
                   budget, check.results)


def why_no_binaries(check: Check) -> str:
    if check.binaries:
        return f'none of the {len(check.binaries)} test binaries of the bundle is one of those chosen for this part'
    return 'the bundle has no GPU tests: make it with tools/deploy/bundle --with-tests, on a machine with the CUDA toolkit'


def names_of(part: str, device: str, binaries: List[test_binaries.Binary]) -> List[str]:
    """The names that --only can choose in a part."""
    tests = [binary for binary in binaries if binary.kind == 'test' and binary.part == part]
    if part == 'sanitize':
        return [binary.name for binary in test_binaries.sanitized(binaries)]
    if part == 'bench':
        return [binary.name for binary in binaries if binary.kind == 'bench'] + [case.name for case in training.CASES[device]]
    return [binary.name for binary in tests] + (layouts.names(device) if part == 'layouts' else [])


def chosen_names(wanted: List[str], names: List[str]) -> AbstractSet[str]:
    """`wanted`: each a name, or the beginning of one name alone. ValueError where one is neither."""
    chosen = set()
    for text in wanted:
        found = [text] if text in names else [name for name in names if name.startswith(text)]
        if len(found) != 1:
            raise ValueError(f'--only \'{text}\' {"begins several names" if found else "is no name in these parts"}:\n  ' + '\n  '.join(found or names))
        chosen.add(found[0])
    return chosen


PARTS: Dict[str, Callable[[Check, Budget], None]] = {'ops': part_ops, 'layouts': part_layouts, 'sanitize': part_sanitize, 'bench': part_bench}


def parse_arguments(arguments: Optional[List[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='gpu_check', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('parts', nargs='*', metavar='PART', help='ops, layouts, sanitize, bench, or all (the default); or one of first, second')
    parser.add_argument('--bundle', help='a bundle made with --with-tests: the tarball, or the folder it was unpacked to')
    parser.add_argument('--output', default='gpu-check', help='the folder for gpu_check.json and gpu_check.log (default: %(default)s)')
    parser.add_argument('--only', action='append', default=[], metavar='NAME',
                        help='only the test, run or bench of this name, or of the only name that begins so; may be given several times')
    parser.add_argument('--after', action='append', default=[], metavar='FOLDER',
                        help='(second) the output of an earlier call: its items that failed or were cut come first; may be given several times')
    parser.add_argument('--seconds', type=float, help='that the whole call may take (default: what its parts need)')
    parser.add_argument('--gpu', default=machine.inherited_gpus(), metavar='LIST',
                        help='numbers or UUIDs, a comma between: the first for each item of one GPU; where a layout has no more ranks than these, each rank '
                             'has its own, else ranks share them over sockets (default: CUDA_VISIBLE_DEVICES, or 0)')
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda', help='cpu tries this tool itself, without a GPU, on the parts layouts and bench')
    parsed = parser.parse_args(arguments)
    why = why_bad_usage(parsed)
    if why:
        print(f'gpu_check: {why}', file=sys.stderr)
        sys.exit(64)
    if not parsed.parts or 'all' in parsed.parts:
        parsed.parts = list(PARTS)
    if parsed.seconds is None:
        parsed.seconds = float(sum(sessions.SECONDS.get(name) or PART_SECONDS[name] for name in parsed.parts))
    return parsed


def why_bad_usage(parsed: argparse.Namespace) -> str:
    """Empty where the arguments fit together."""
    unknown = set(parsed.parts) - set(PARTS) - set(sessions.SECONDS) - {'all'}
    if unknown:
        return f'no part {", ".join(sorted(unknown))}: the parts are {", ".join([*PARTS, *sessions.SECONDS])} and all'
    session = [name for name in parsed.parts if name in sessions.SECONDS]
    if session and (len(parsed.parts) > 1 or parsed.only or parsed.device == 'cpu'):
        return f'{session[0]} is a whole call on a GPU: give it no other part, no --only and no --device cpu'
    if parsed.after and session != ['second']:
        return '--after belongs to the part second'
    return ''

def unpacked_bundle(given: Optional[str], folder: str) -> str:
    """The bundle's folder: the given one, the one that this file is in, or a new one. RuntimeError when there is none."""
    if given is None and os.path.exists(f'{HOME}/VERSION'):
        return HOME
    if given is None:
        given = f'{folder}/convene.tar.gz'
        print('gpu_check: building a bundle (minutes the first time)', flush=True)
        if subprocess.run([f'{HOME}/tools/deploy/bundle', '--with-tests', '--output', given], check=False).returncode != 0:
            raise RuntimeError('no bundle could be built; its error is above')
    if not os.path.isdir(given):
        with tarfile.open(given) as archive:
            # A bundle is ours; the filter is for Pythons that would warn without one.
            archive.extractall(folder, **({'filter': 'tar'} if hasattr(tarfile, 'tar_filter') else {}))
        given = f'{folder}/convene'
    if not os.path.exists(f'{given}/bin/convene-train'):
        raise RuntimeError(f'{given} is no bundle: it has no bin/convene-train')
    return os.path.abspath(given)


def find_torch(arguments: argparse.Namespace, environment: Dict[str, str], budget: Budget, results: Results) -> Dict[str, Any]:
    """PyTorch's facts; {} where it cannot work."""
    torch = machine.torch_python(environment, min(TORCH_PROBE_SECONDS, budget.left() / 4))
    results.machine.update(torch)
    print(f'PyTorch {torch.get("torch", "none")} (CUDA {torch.get("torch_cuda")}, cuDNN {torch.get("cudnn")}, NCCL {torch.get("nccl")})', flush=True)
    return {} if arguments.device == 'cuda' and torch and not torch['torch_sees_gpu'] else torch


def plan(arguments: argparse.Namespace, binaries: List[test_binaries.Binary]) -> List[List[sessions.Stage]]:
    """The stages to run, in groups: each group has all the time that the groups before it leave. ValueError where --only or --after names nothing."""
    if arguments.parts[0] in sessions.SECONDS:
        return sessions.plan(arguments.parts[0], [sessions.read_rows(path) for path in arguments.after])
    names = dict.fromkeys(name for part in arguments.parts for name in names_of(part, arguments.device, binaries))
    only = tuple(chosen_names(arguments.only, list(names)))
    return [[sessions.Stage(part, only, PART_SECONDS[part]) for part in arguments.parts]]


def run_stages(groups: List[List[sessions.Stage]], check: Check, budget: Budget) -> None:
    for group in groups:
        for stage, share in budget.shares(group, lambda stage: stage.seconds):
            started = time.monotonic()
            print(f'\n=== {stage.part} (at most {share:.0f} s)', flush=True)
            known = names_of(stage.part, check.device, check.binaries)
            for name in [name for name in stage.only if name not in known]:
                with check.results.of(name):
                    check.results.skipped(stage.part, name, 'the bundle has no such test or bench: make it with tools/deploy/bundle --with-tests')
            only = frozenset(stage.only) & frozenset(known)
            if only or not stage.only:
                PARTS[stage.part](check._replace(only=only), Budget(share))
            print(f'=== {stage.part}: {time.monotonic() - started:.0f} s', flush=True)


def run_parts(arguments: argparse.Namespace, bundle: str, budget: Budget) -> int:
    environment = machine.environment(bundle, arguments.gpu)
    binaries = test_binaries.read_manifest(bundle)
    try:
        groups = plan(arguments, binaries)
    except (ValueError, OSError) as error:
        print(f'gpu_check: {error}', file=sys.stderr)
        return 64
    gpu = machine.first_gpu(arguments.gpu)
    facts = machine.describe(bundle, gpu)
    print(f'{facts["gpu"]}, driver {facts["driver"]}, bundle {facts["bundle"]["commit"][:12]} of {facts["bundle"]["date"]}', flush=True)
    results = Results(arguments.output, facts)
    torch = functools.lru_cache(maxsize=None)(lambda: find_torch(arguments, environment, budget, results))
    turns = 1 if arguments.parts[0] in sessions.SECONDS else training.TURNS
    check = Check(bundle, arguments.device, gpu, environment, torch, frozenset(), turns, binaries, results)
    if first_look(check, budget):
        run_stages(groups, check, budget)
    else:
        for part in dict.fromkeys(stage.part for group in groups for stage in group):
            results.skipped(part, 'all of it', f'{test_binaries.TOOLCHAIN_TEST} failed, and a lent machine\'s time is short: mend that first')
    print(f'\n{results.table()}\n\n{os.path.join(arguments.output, "gpu_check.json")} has every figure, gpu_check.log beside it every output')
    print(results.totals(), flush=True)
    return 1 if results.any_failed() else 0


def main() -> int:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.device == 'cuda':
        reason = machine.why_no_gpu()
        if reason:
            print(f'gpu_check: {reason}: nothing was run. Without a GPU, `tools/check cuda` compiles and links what this would test.', file=sys.stderr)
            return 69
    try:
        make_folder(arguments.output)
    except RuntimeError as error:
        print(f'gpu_check: {error}', file=sys.stderr)
        return 64
    try:
        with tempfile.TemporaryDirectory(prefix='gpu_check.') as folder:
            bundle = unpacked_bundle(arguments.bundle, folder)
            return run_parts(arguments, bundle, Budget(arguments.seconds))
    except (RuntimeError, tarfile.TarError, OSError) as error:
        print(f'gpu_check: {error}', file=sys.stderr)
        return 69
    except KeyboardInterrupt:
        print('\ngpu_check: stopped; nothing is left running', file=sys.stderr)
        return 130
    finally:
        processes.kill_marked()


if __name__ == '__main__':
    sys.exit(main())
