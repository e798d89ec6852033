#!/usr/bin/python3
"""The parts of tools/check, in order; each prints its time, and the end lists the failures.

A part goes on after another failed, so that one run shows everything. Counted: each test case (Catch2, unittest), and each
part that is no test run. Logs: ~/.cache/convene/check/<checkout>/<part>.log.
"""

import argparse
import collections
import functools
import os
import re
import subprocess
import sys
import time
from typing import Callable, Deque, Dict, List, NamedTuple, Optional, Set

sys.dont_write_bytecode = True
import bazel_events  # noqa: E402  (the line above keeps __pycache__ out of the tree)
import changes  # noqa: E402
import stamps  # noqa: E402
import targets  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LOGS = os.path.join(os.path.expanduser('~/.cache/convene/check'), ROOT.strip('/').replace('/', '-'))
PART_LIMIT_SECONDS = 40 * 60  # the tests with nothing cached: 30 minutes on 2 slow cores
TOTAL_LIMIT_SECONDS = 80 * 60  # CI stops us after 90 minutes; better to end with a list of what failed
# No cursor movements in a log; a line every 20 s shows that it lives.
BAZEL_OUTPUT = ['--curses=no', '--color=no', '--show_progress_rate_limit=20', '--noshow_loading_progress', '--keep_going']

# Folders that are worth another build: for ASan, code with bytes from outside, raw memory and processes; for TSan, code with threads
# of our own. gRPC's own threads are left out there: Debian's library is not instrumented, so TSan does not see its locks.
SANITIZED = {
    'asan': ['tools/base', 'rendezvous/attend', 'rendezvous/client', 'rendezvous/journal', 'rendezvous/logs', 'rendezvous/net',
             'rendezvous/server', 'rendezvous/store', 'rendezvous/web', 'rendezvous/wire', 'agent', 'launcher', 'tests/fuzz',
             'worker_runtime/checkpoint', 'worker_runtime/comm', 'worker_runtime/data', 'worker_runtime/gguf', 'worker_runtime/session', 'worker_runtime/shard',
             'worker_runtime/tokenizer', 'worker_runtime/tuning', 'worker_runtime/weights'],
    'tsan': ['rendezvous/attend', 'rendezvous/logs', 'rendezvous/server', 'rendezvous/store', 'rendezvous/web', 'worker_runtime/comm',
             'worker_runtime/data/prepare'],
}
# Files that the part cuda is built by, but that Bazel's graph does not name. The rest of its paths is read from the graph
# (cuda_paths).
CUDA_BUILT_BY = ['tools/bazel', '.bazelrc', 'WORKSPACE']
NVCC = '/usr/local/cuda/bin/nvcc'


class Counts:
    """The counts behind the last line and the exit status."""

    def __init__(self) -> None:
        self.passed = self.failed = 0
        self.skipped: List[str] = []
        self.failures: List[str] = []

    def fail(self, what: str, why: List[str], count: int = 1) -> None:
        self.failed += count
        self.failures.append(what + ''.join(f'\n           {line}' for line in why))


class Run:
    """One part at work: its log, its time limit, and the counts that it adds to."""

    def __init__(self, name: str, arguments: argparse.Namespace, chosen: Set[str], counts: Counts, total_deadline: float):
        self.name = name
        self.fast = arguments.fast
        self.asked_for = name in arguments.parts
        self.chosen = chosen  # the parts of this run
        self.counts = counts
        self.log = os.path.join(LOGS, f'{name}.log')
        self.output: Deque[str] = collections.deque(maxlen=5000)  # of the last command, its last lines
        self.deadline = min(time.monotonic() + PART_LIMIT_SECONDS, total_deadline)
        os.makedirs(LOGS, exist_ok=True)
        with open(self.log, 'w', encoding='utf-8'):
            pass

    def command(self, *arguments: str) -> bool:
        """Runs a command to its end, its output to the screen and to the log. Whether it succeeded."""
        self.output.clear()
        limit = max(1, int(self.deadline - time.monotonic()))
        with open(self.log, 'a', encoding='utf-8') as log:
            log.write('$ ' + ' '.join(arguments)[:2000] + '\n')
            with subprocess.Popen(['timeout', '--kill-after=30', str(limit), *arguments], cwd=ROOT, text=True, errors='replace',
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
                for line in child.stdout:
                    print(line, end='', flush=True)
                    log.write(line)
                    self.output.append(line)
            if child.returncode == 124:
                line = f'check: stopped: one part may take {PART_LIMIT_SECONDS} s, all of them {TOTAL_LIMIT_SECONDS} s\n'
                print(line, end='')
                log.write(line)
                self.output.clear()
                self.output.append(line)
        return child.returncode == 0

    def step(self, *arguments: str) -> bool:
        """A command that counts as one pass or one failure."""
        good = self.command(*arguments)
        if good:
            self.counts.passed += 1
        else:
            text = ' '.join(arguments)
            self.counts.fail(f'{self.name}: {text if len(text) < 80 else " ".join(arguments[:2])[:80] + " ..."}  (log: {self.log})', self.why())
        return good

    def why(self) -> List[str]:
        """Why the last command failed."""
        return bazel_events.why_failed(''.join(self.output))

    def skip(self, why: str) -> None:
        print(f'skipped: {why}')
        self.counts.skipped.append(f'{self.name}: {why}')

    def bazel_build(self, *arguments: str) -> bool:
        return self.step('bazel', 'build', *BAZEL_OUTPUT, *arguments)

    def bazel_test(self, *arguments: str) -> None:
        """Each test case counts; a run that broke before its tests counts as one failure."""
        events = os.path.join(LOGS, f'{self.name}.events.json')
        if os.path.exists(events):
            os.remove(events)
        failures_before = len(self.counts.failures)
        good = self.command('bazel', 'test', *BAZEL_OUTPUT, '--build_tests_only', f'--build_event_json_file={events}', *arguments)
        tests = bazel_events.read_tests(events)
        for test in tests:
            self.counts.passed += test.passed
            self.counts.skipped += [f'{self.name}: {test.label}: {line}' for line in test.skipped]
            if test.failed:
                self.counts.fail(f'{self.name}: {test.label}: {test.failed} failed  (log: {test.log})', test.failures, test.failed)
        broken = bazel_events.read_broken_targets(events)
        for label in broken:
            # Bazel's output does not say which line belongs to which target, so the last target gets all lines.
            self.counts.fail(f'{self.name}: {label} does not build  (log: {self.log})', self.why() if label == broken[-1] else [])
        if not good and len(self.counts.failures) == failures_before:
            self.counts.fail(f'{self.name}: bazel test itself failed  (log: {self.log})', self.why())
        print(f'{self.name}: {sum(t.passed for t in tests)} test cases of {len(tests)} binaries passed')


def tracked(*patterns: str) -> List[str]:
    """Files that git has or would add."""
    command = ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard', '--', *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(path for path in set(listed.split('\0')) if path and os.path.isfile(os.path.join(ROOT, path)))


def first_line(path: str) -> str:
    with open(os.path.join(ROOT, path), 'rb') as file:
        return file.readline(200).decode('utf-8', 'replace')


def part_format(run: Run) -> None:
    run.step('tools/ci/check_format', *tracked('*.cc', '*.h', '*.cu', '*.cuh'))


def part_tidy(run: Run) -> None:
    for test in ('bazel_events_test.py', 'changes_test.py', 'check_test.py', 'lint_test.py', 'nightly_test.py', 'stamps_test.py', 'targets_test.py',
                 'tidy_test.py'):
        run.step(f'tools/ci/{test}')
    run.step('tools/ci/tidy')
    run.step('tools/ci/one_definition_test.py')
    run.step('tools/ci/one_definition')


def part_scripts(run: Run) -> None:
    scripts = [(path, first_line(path)) for path in tracked() if first_line(path).startswith('#!') or path.endswith('.py')]
    run.step('shellcheck', *[path for path, line in scripts if re.match(r'#!.*\b(ba|da)?sh\b', line)])
    compile_only = 'import sys\nfor path in sys.argv[1:]: compile(open(path, encoding="utf-8").read(), path, "exec")'
    run.step('/usr/bin/python3', '-c', compile_only, *[path for path, line in scripts if path.endswith('.py') or 'python' in line])
    run.step('tools/quickstart_test.py')
    run.step('tools/trace_picture_test.py')
    run.step('tools/deploy/bundling_test.py')
    run.step('tools/deploy/packaging_test.py')
    run.step('tools/gpu/gpu_check_test.py')
    run.step('tools/gpu/machine_test.py')
    run.step('tools/gpu/sessions_test.py')
    run.step('tools/gpu/recovery_test.py')
    run.step('tools/gpu/fake_machine_test.py')
    run.step('tests/mutations/mutations.py', '--check')


def part_layers(run: Run) -> None:
    run.step('tools/ci/check_layers')


def sanitized_folders(config: str) -> List[str]:
    return [f'//{folder}/...' for folder in SANITIZED[config] if tracked(f'{folder}/*BUILD.bazel')]


def bazel_query(query: str, *options: str) -> List[str]:
    command = ['bazel', 'query', '--noshow_progress', *options, query]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()


class Change(NamedTuple):
    """The targets that a run has to look at more closely."""
    rules: Dict[str, targets.Rule]
    touched: Set[str]  # by a file of their own
    reached: Set[str]  # by a file of theirs, or of a target that they depend on

    def near(self, labels: List[str]) -> List[str]:
        """The labels whose own files changed, and a fifth of the others: enough where another compiler looks at all of them."""
        return sorted(self.touched.intersection(labels).union(targets.fifth(labels, day())))

    def far(self, labels: List[str]) -> List[str]:
        """The labels that the change may break, and a fifth of the others: those passed on the day when something of theirs changed."""
        return sorted(self.reached.intersection(labels).union(targets.fifth(labels, day())))


@functools.lru_cache(maxsize=None)
def change() -> Change:
    """The change since what landed. Where that is not known it may reach everything."""
    tree = changes.Tree(ROOT)
    landed = tree.landed()
    rules = targets.read_rules()
    if not landed:
        return Change(rules, set(), set(rules))
    changed = set(tree.changed_since(landed))
    return Change(rules, targets.touched(rules, changed), targets.reached(targets.read_graph(rules), changed))


def targets_of(config: str, kind: str) -> List[str]:
    """The targets of the part `config` whose rule's name matches `kind`, without those that their tags leave out."""
    here = f'set({" ".join(sanitized_folders(config))})'
    return bazel_query(fr'kind("{kind}", {here}) except attr(tags, "\b(cuda|manual|no-{config}|no-sanitizer)\b", {here})')


def sanitized_tests(config: str) -> List[str]:
    """The tests that the part `config` builds and runs."""
    return change().far(targets_of(config, '_test rule'))


def tests_of_asan(run: Run) -> List[str]:
    """Each test that the part asan of the same run builds and runs: to link and run it once is enough."""
    return sanitized_tests('asan') if 'asan' in run.chosen else []


@functools.lru_cache(maxsize=None)
def day() -> int:
    """The day when this run began: all its parts share out the work alike."""
    return int(time.time()) // 86400


def without(labels: List[str]) -> List[str]:
    """Patterns for a command line of Bazel, after `--`."""
    return [f'-{label}' for label in labels]


def part_build(run: Run) -> None:
    left_out = tests_of_asan(run)
    run.bazel_build('--', '//...', *without(left_out))
    # The part asan compiles them by clang. A change must not land that gcc, which everybody's own `bazel test` uses, refuses.
    seen = change().near(left_out)
    if seen:
        run.bazel_build('--output_groups=compilation_outputs', '--', *seen)


def part_test(run: Run) -> None:
    if not run.fast and not run.command('tools/torch_environment', '--quiet'):
        run.skip('PyTorch could not be installed (above): tests with unmodified PyTorch programs skip')
    run.bazel_test('--', '//...', *(['-//tests/...'] if run.fast else []), *without(tests_of_asan(run)))


def part_clang(run: Run) -> None:
    # Only clang's warnings are wanted (thread safety and others): nothing is optimised, and nothing linked. The part asan
    # compiles its folders by clang as well, but with headers that are precompiled, which hides an include that is missing.
    tests = bazel_query('kind("cc_test rule", //...)')
    seen = set(tests + targets_of('asan', 'cc_(library|binary) rule'))
    left_out = sorted(seen.difference(change().near(list(seen))))
    run.bazel_build('--config=clang', '--output_groups=compilation_outputs', '--', '//...', *without(left_out))


def part_lint(run: Run) -> None:
    run.step('tools/ci/lint')


def sanitize(run: Run, config: str) -> None:
    tests = sanitized_tests(config)
    if tests:
        run.bazel_test(f'--config={config}', '--', *tests)
    else:
        run.skip('the change reaches none of its tests, and no package has its turn today')


def part_asan(run: Run) -> None:
    # The part clang leaves these folders out, so targets that no test links are compiled here.
    compiled = change().far(targets_of('asan', 'cc_(library|binary) rule'))
    if compiled:
        run.bazel_build('--config=asan', '--output_groups=compilation_outputs', '--', *compiled)
    sanitize(run, 'asan')


def part_tsan(run: Run) -> None:
    sanitize(run, 'tsan')


def cuda_paths() -> List[str]:
    """The folders and files that decide whether the part cuda can find anything new: the packages of all that its targets are made from."""
    sources = r'kind("source file", deps(attr(tags, "\bcuda\b", //...) + kind("cc_", rdeps(//..., @cuda//...))))'
    packages = bazel_query(sources, '--output=package')
    return [package for package in packages if not package.startswith('@')] + CUDA_BUILT_BY


def cuda_fingerprint(paths: List[str]) -> str:
    """Of all that the part cuda builds from."""
    compiler = subprocess.run([NVCC, '--version'], check=True, capture_output=True, text=True).stdout
    has_gpu = os.path.exists('/dev/nvidiactl')  # without one its tests skip: that proves nothing for a machine that has one
    return changes.Tree(ROOT).fingerprint(paths, compiler, str(has_gpu))


def why_no_cuda(passed_before: bool, landed: Optional[str], changed: List[str], paths: List[str]) -> str:
    """Why the part cuda has nothing to find; '' where it may. landed: None where it is not known, and then `changed` says nothing."""
    if passed_before:
        return 'with these very files it passed on this machine before'
    if landed is not None and not changes.below(changed, paths):
        return f'since {landed[:12]}, which landed, nothing changed that it is built from'
    return ''


def part_cuda(run: Run) -> None:
    if not os.path.exists(NVCC):
        run.skip('no CUDA toolkit at /usr/local/cuda')
        return
    # Bazel cannot read the graph of what is built with CUDA without these headers.
    if not run.command('tools/install_cudnn_frontend'):
        run.skip("cudnn-frontend's headers could not be downloaded (above)")
        return
    paths = cuda_paths()
    passed = stamps.Stamps(os.path.join(LOGS, '..', 'cuda_passed'), kept=50)
    key = cuda_fingerprint(paths)
    if not run.asked_for:
        tree = changes.Tree(ROOT)
        landed = tree.landed()
        why = why_no_cuda(passed.has(key), landed, tree.changed_since(landed) if landed else [], paths)
        if why:
            run.skip(f'{why}; tools/check cuda runs it')
            return
    failed_before = run.counts.failed
    # All of it: programs that are built with and without CUDA are not tagged, and what has no CUDA is built already.
    if run.bazel_build('--config=cuda', '--', '//...', *without(tests_of_asan(run))):
        run.bazel_test('--config=cuda', '--test_tag_filters=cuda', '//...')
    if run.counts.failed == failed_before:
        passed.put(key)
        passed.sweep()


class Part(NamedTuple):
    name: str
    fast: bool  # whether it belongs to --fast
    what: str
    work: Callable[[Run], None]


PARTS = [
    Part('format', True, 'clang-format on every C++ file', part_format),
    Part('tidy', True, "the project's own rules (tools/ci/tidy), and their test", part_tidy),
    Part('scripts', True, 'shellcheck, python3 reads every Python file, the tests of the tools, and whether the mutations still apply', part_scripts),
    Part('layers', True, 'no forbidden dependency (tools/ci/check_layers)', part_layers),
    Part('build', True, 'bazel build //...; of the tests that the part asan links, what gcc says of those that changed, and of a fifth', part_build),
    Part('test', True, 'bazel test //... (likewise; with --fast not //tests/...)', part_test),
    Part('clang', False, 'by clang what asan does not compile (of tests, those that changed and a fifth): thread-safety analysis', part_clang),
    Part('lint', False, 'clang-tidy on the change, and on a tenth of the rest', part_lint),
    Part('asan', False, 'tests of threads, processes and foreign bytes that the change reaches, and a fifth: AddressSanitizer, UBSan', part_asan),
    Part('tsan', False, 'tests of threads that the change reaches, and a fifth: ThreadSanitizer', part_tsan),
    Part('cuda', False, 'everything with --config=cuda, and the tests tagged cuda: where the toolkit is, and its files changed', part_cuda),
]


def parse_arguments() -> argparse.Namespace:
    listed = '\n'.join(f'  {part.name:9}{part.what}' for part in PARTS)
    parser = argparse.ArgumentParser(prog='tools/check', formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description='Everything that must hold before a change lands.', epilog='parts:\n' + listed)
    parser.add_argument('--fast', action='store_true', help='only: ' + ', '.join(p.name for p in PARTS if p.fast))
    parser.add_argument('parts', nargs='*', metavar='PART', help='only these parts')
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - {part.name for part in PARTS}
    if unknown:
        print(f'tools/check: no part {", ".join(sorted(unknown))}; the parts are:\n{listed}', file=sys.stderr)
        sys.exit(64)
    return arguments


def main() -> int:
    arguments = parse_arguments()
    chosen = [part for part in PARTS if (part.name in arguments.parts if arguments.parts else part.fast or not arguments.fast)]
    counts = Counts()
    started = time.monotonic()
    times = []
    for part in chosen:
        part_started = time.monotonic()
        print(f'\n=== {part.name}: {part.what} (at {part_started - started:.0f} s)', flush=True)
        run = Run(part.name, arguments, {part.name for part in chosen}, counts, started + TOTAL_LIMIT_SECONDS)
        try:
            part.work(run)
        except (OSError, subprocess.SubprocessError) as error:
            counts.fail(part.name, [str(error)])
        times.append(f'{part.name} {time.monotonic() - part_started:.0f} s')
    print(f'\n=== {time.monotonic() - started:.0f} s in all: {", ".join(times)}')
    for line, count in collections.Counter(counts.skipped).items():
        print(f'skipped  {line}' + (f'  ({count} times)' if count > 1 else ''))
    for line in counts.failures:
        print(f'FAILED   {line}')
    print(f'{counts.passed} passed, {counts.failed} failed, {len(counts.skipped)} skipped', flush=True)
    return 1 if counts.failed else 0


if __name__ == '__main__':
    sys.exit(main())
