"""The parts `ops` and `sanitize`, and the first half of `layouts` and `bench`: the bundle's own test and bench binaries."""

import json
import os
import re
import sys
import tempfile
from typing import Any, Dict, List, NamedTuple

import processes
from budget import Budget
from results import Results

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), 'ci'))
import bazel_events  # noqa: E402  (it counts Catch2's cases for tools/check too)

TEST_LIMIT_SECONDS = 120  # a test that takes longer hangs
# Its sweep of shapes builds a hundred of cuDNN's graphs, each for up to seconds: it comes last, and may take longer.
SLOWEST_TEST = '//worker_runtime/ops/cuda/attention:attention_test'
SWEEP = '[sweep]'
# It starts jobs of several ranks that share a GPU, one a case, and gives each 90 s. Each of its cases is a program run of its own, so that ranks that
# wait for each other without end cost the case that they belong to, and no other.
NCCL_TEST = '//worker_runtime/comm/nccl:nccl_test'
# On one GPU most of its cases skip; on several it is a dozen tests.
ON_GPUS_TEST = '//worker_runtime/trainer/testing:on_gpus_test'
LONG_LIMIT_SECONDS = {SLOWEST_TEST: 180, NCCL_TEST: 400, ON_GPUS_TEST: 300}
LIST_SECONDS = 30  # to load the libraries, and tell the names of the cases
SANITIZER_FLOOR_SECONDS = 20
# The tests of single kernels of ours: the others call libraries alone, train with the same kernels, or need several GPUs.
SANITIZED = ('//worker_runtime/ops/cuda:kernels_test', SLOWEST_TEST)
BENCH_FLOOR_SECONDS = 20
# It measures every algorithm that cuBLASLt proposes, and loads each of its kernels for that: it comes last, and gets more of the time.
LONGEST_BENCH = '//worker_runtime/ops/cuda/matmul:libraries_bench'
KERNELS_BENCH = '//worker_runtime/ops/cuda:kernels_bench'
LEAST_SECONDS = 3  # with less left nothing is started
# It runs first on a new machine: it shows whether libraries load, are of the versions that were linked, and open the
# device.
TOOLCHAIN_TEST = '//tests/gpu:toolchain_test'
# A call that fails and is handled (out of memory, a probe of cuBLASLt's) is no finding; a kernel's bad access is.
SANITIZERS = {'memcheck': ['--report-api-errors', 'no'], 'racecheck': []}
# Our own kernels, by their namespace in the mangled name: cuBLASLt's and cuDNN's are not ours to prove, and take nearly all of the time.
OUR_KERNELS = ['--kernel-name', 'kernel_substring=convene']
# Cases so tagged take too long under a sanitizer, which slows a kernel by up to 100 times.
NOT_SANITIZED = '~[slow]'

# The goals of issue 3, by the benches' names: memory-bound kernels against a copy, products against cuBLASLt's best.
GOALS = {'fraction_of_copy': 0.85, 'ratio': 0.95}


class Slice(NamedTuple):
    """Of a binary: an item of its own."""
    name: str  # after the label; '' for the item that has the label's name
    arguments: List[str]
    by_name_alone: bool = False  # it runs where it was chosen by its name, and is otherwise within another slice


WHOLE = Slice('', [])
SLICES = {
    SLOWEST_TEST: [Slice('', [f'~{SWEEP}']), Slice('the sweep of shapes', [SWEEP])],
    # The yardsticks of all other figures: the GPU can do no more.
    KERNELS_BENCH: [WHOLE, Slice('copy', ['--only', 'copy'], True)],
    LONGEST_BENCH: [WHOLE, Slice('8192 x 8192 x 8192', ['--only', 'product 8192'], True)],
}


class Binary(NamedTuple):
    label: str
    kind: str  # test or bench
    part: str
    file: str
    slice: Slice = WHOLE

    @property
    def name(self) -> str:
        """As --only knows it."""
        return f'{self.label}, {self.slice.name}' if self.slice.name else self.label


def parse_manifest(text: str) -> List[Binary]:
    return [Binary(entry['label'], entry['kind'], entry['part'], entry['file'], cut)
            for entry in json.loads(text) for cut in SLICES.get(entry['label'], [WHOLE])]


def read_manifest(bundle: str) -> List[Binary]:
    path = os.path.join(bundle, 'tests/manifest.json')
    if not os.path.exists(path):
        return []
    with open(path, encoding='utf-8') as file:
        return parse_manifest(file.read())


class Sanitized(NamedTuple):
    outcome: str  # passed, failed or skipped
    text: str


def judge_sanitizer(tool: str, code: int, output: str) -> Sanitized:
    """code None: it was stopped before its end."""
    # Without a driver that lets it in (some containers and sandboxes), the tool refuses before the first kernel.
    refused = re.search(r'^=+.*(?:Device not supported|Unable to find injection library|not supported on this).*$', output, re.M)
    if refused:
        return Sanitized('skipped', f'compute-sanitizer cannot work on this machine: {refused.group(0).strip(" =")}')
    summary = re.findall(r'(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)', output)
    finding = re.search(r'^=+ *((?:Invalid|Race|Program hit|Potential).*)$', output, re.M)
    if code is None and finding:
        return Sanitized('failed', f'{tool} did not end in its time, and found: {finding.group(1)[:200]}')
    if code is None:
        return Sanitized('skipped', f'{tool} did not end in its time, no verdict: run it again with --only')
    if not summary:
        return Sanitized('failed', f'{tool} ended with {code} and without a summary: {bazel_events.failures(output)[0]}')
    findings = sum(int(errors or hazards) for errors, hazards in summary)
    if findings:
        where = re.search(r'^=+ *((?:Invalid|Error|Warning|Race|Program hit|Potential).*)$', output, re.M)
        return Sanitized('failed', f'{findings} findings of {tool}; the first: {where.group(1)[:200] if where else "see the log"}')
    # Catch2's code is the number of failed cases: a test may fail under the tool without a finding of it.
    if code != 0:
        return Sanitized('failed', f'the test itself failed: {bazel_events.failures(output)[0]}')
    cases, _, skipped = bazel_events.count_cases(True, output)
    if not cases:
        return Sanitized('skipped', f'{tool} had nothing to look at, no case ran: {skipped[0].replace("SKIPPED: ", "")}')
    return Sanitized('passed', f'{tool} found nothing in {cases} cases')


def parse_figures(text: str) -> List[Dict[str, Any]]:
    """Reads a bench's output: one object with a list of figures in it, or one figure a line. A figure is an object with a `name`."""
    try:
        records = [json.loads(text)]
    except ValueError:
        records = [record for record in map(parsed, text.splitlines()) if record]
    figures = []
    for record in records:
        inner = [entry for value in record.values() if isinstance(value, list) for entry in value]
        figures += [entry for entry in [record, *inner] if isinstance(entry, dict) and 'name' in entry]
    return figures


def parsed(line: str) -> Dict[str, Any]:
    """{} for what is no JSON object, such as a line that was torn."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def figure_text(record: Dict[str, Any]) -> str:
    return ', '.join((f'{key} {value:.4g}' if isinstance(value, float) else f'{key} {value}') + beside_goal(key, value)
                     for key, value in record.items() if key != 'name')


def beside_goal(key: str, value: Any) -> str:
    return f' (goal {GOALS[key]}{"" if value >= GOALS[key] else ": MISSED"})' if key in GOALS else ''


def run_tests(part: str, binaries: List[Binary], bundle: str, environment: Dict[str, str], budget: Budget, results: Results) -> None:
    for binary in sorted(binaries, key=lambda binary: binary.label == SLOWEST_TEST):
        path = os.path.join(bundle, binary.file)
        with results.of(binary.name):
            if binary.label == NCCL_TEST:
                run_cases(part, binary.label, path, environment, budget, results)
            else:
                run_test(part, binary.name, binary.name, [path, *binary.slice.arguments],
                         LONG_LIMIT_SECONDS.get(binary.label, TEST_LIMIT_SECONDS), environment, budget, results)


def run_cases(part: str, label: str, path: str, environment: Dict[str, str], budget: Budget, results: Results) -> None:
    """A run for each case, for all of them together the binary's limit."""
    together = budget.at_most(LONG_LIMIT_SECONDS[label])
    listed = processes.run([path, '--list-test-names-only'], environment, min(LIST_SECONDS, together.left()))
    names = [line.strip() for line in listed.output.splitlines() if line.strip()]
    if not names or listed.code != len(names):  # Catch2 ends with the number of names
        results.log(label, listed.output)
        results.failed(part, label, f'its cases are not known, it ended with {listed.code}: {processes.last_line(listed.output)}')
        return
    for name in names:
        run_test(part, label, f'{label}, {name}', [path, re.sub(r'([\\,\[\]"])', r'\\\1', name)], TEST_LIMIT_SECONDS, environment, together, results)


def run_test(part: str, item: str, name: str, command: List[str], usual_s: float, environment: Dict[str, str], budget: Budget,
             results: Results) -> None:
    """The test `item`, or the case of it that the command chooses."""
    limit = min(usual_s, budget.left())
    if limit < LEAST_SECONDS:
        results.skipped(part, name, f'no time left in this call: run it again with --only \'{item}\'')
        return
    # The time of each case tells where a test that was stopped spent its own.
    done = processes.run([*command, '--durations', 'yes'], environment, limit)
    results.log(name, done.output)
    if done.code is None and limit < usual_s:
        results.skipped(part, name, f'stopped after {limit:.0f} s, when its time in this call was up: run it again with --only \'{item}\'')
        return
    if done.code is None:
        results.failed(part, name, f'not done after {limit:.0f} s, and stopped')
        return
    passed, failed, skipped = bazel_events.count_cases(done.code == 0, done.output)
    text = bazel_events.failures(done.output)[0] if failed else f'{passed} cases in {done.seconds:.1f} s'
    if skipped:
        text += f'; {len(skipped)} skipped: {skipped[0].replace("SKIPPED: ", "")}'
    results.counted(part, name, passed, failed, skipped, text)


def sanitized(binaries: List[Binary]) -> List[Binary]:
    """In the order of SANITIZED."""
    return sorted((binary for binary in binaries if binary.name in SANITIZED), key=lambda binary: SANITIZED.index(binary.label))


def run_sanitizer(tool_path: str, binaries: List[Binary], bundle: str, environment: Dict[str, str], budget: Budget, results: Results) -> None:
    """Every binary under the first tool, then every one under the second: memory errors first."""
    runs = [(tool, binary) for tool in SANITIZERS for binary in binaries]
    for (tool, binary), share in budget.shares(runs, floor=lambda run: SANITIZER_FLOOR_SECONDS):
        name = f'{tool} {binary.label}'
        with results.of(binary.name):
            if share < LEAST_SECONDS:
                results.skipped('sanitize', name, f'no time left in this call: run it again with --only {binary.label}')
                continue
            command = [tool_path, '--tool', tool, *SANITIZERS[tool], *OUR_KERNELS, '--error-exitcode', '86', '--print-limit', '20',
                       os.path.join(bundle, binary.file), NOT_SANITIZED]
            done = processes.run(command, environment, share)
            results.log(name, done.output)
            verdict = judge_sanitizer(tool, done.code, done.output)
            getattr(results, verdict.outcome)('sanitize', name, verdict.text)


def run_benches(binaries: List[Binary], bundle: str, environment: Dict[str, str], budget: Budget, results: Results) -> None:
    with tempfile.TemporaryDirectory(prefix='gpu_check.') as folder:
        ordered = sorted(binaries, key=lambda binary: binary.label == LONGEST_BENCH)
        for binary, share in budget.shares(ordered, lambda binary: 2.0 if binary.name == LONGEST_BENCH else 1.0, lambda binary: BENCH_FLOOR_SECONDS):
            with results.of(binary.name):
                if share < LEAST_SECONDS:
                    results.skipped('bench', binary.name, f'no time left in this call: run it again with --only \'{binary.name}\'')
                else:
                    run_bench(binary, os.path.join(bundle, binary.file), folder, environment, share, results)


def run_bench(binary: Binary, program: str, folder: str, environment: Dict[str, str], share: float, results: Results) -> None:
    path = f'{folder}/figures.json'
    done = processes.run([program, '--json', path, *binary.slice.arguments], environment, share)
    results.log(binary.name, done.output)
    figures = read_figures(path)
    for record in figures:
        results.measured('bench', record['name'], figure_text(record), **record)
    if os.path.exists(path):
        os.remove(path)
    if done.code is None:
        results.skipped('bench', binary.name, f'stopped after {share:.0f} s, when it had {len(figures)} figures: '
                        f'run it again with --only \'{binary.name}\'')
    elif done.code != 0 or not figures:
        results.failed('bench', binary.name, f'ended with {done.code} and {len(figures)} figures: {bazel_events.failures(done.output)[0]}')


def read_figures(path: str) -> List[Dict[str, Any]]:
    if not os.path.exists(path):
        return []
    with open(path, encoding='utf-8') as file:
        return parse_figures(file.read())
