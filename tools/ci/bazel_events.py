"""Reads what Bazel says of a `bazel test` (its build event file) and what the tests, and other commands that failed, printed."""

import json
import os
import re
from typing import List, NamedTuple
from urllib.parse import unquote, urlparse

# Catch2's closing lines.
_ALL_PASSED = re.compile(r'^All tests passed \(\d+ assertions? in (\d+) test cases?\)', re.M)
_SOME_FAILED = re.compile(r'^test cases:\s*(\d+).*?(\d+) failed', re.M)
# Catch2 v2 cannot skip: a test case that cannot run here prints this line and returns.
_SKIPPED = re.compile(r'^SKIPPED: .*', re.M)
_CATCH2_FAILURE = re.compile(r'^\S+:\d+: FAILED:.*(?:\n(?![-=.]{3,}|\S+:\d+: FAILED:).*){0,8}', re.M)
# Python's unittest: its closing lines, the line of a case that skips (with verbosity=2), and the report of one that
# failed.
_UNITTEST_RAN = re.compile(r'^Ran (\d+) tests? in .*\n\n(OK|FAILED)(?: \((.*)\))?$', re.M)
_UNITTEST_SKIPPED = re.compile(r"^(?:.* )?\.\.\. skipped ['\"](?:SKIPPED: )?(.*)['\"]$", re.M)
# The pattern ends at the next report or the closing lines; the test's own output is in between.
_UNITTEST_FAILURE = re.compile(r'^={70}\n(?:FAIL|ERROR): (.+)\n-{70}\n((?:.*\n)*?)(?=\n(?:={70}|-{70})$)', re.M)
_UNITTEST_CAUSE = re.compile(r'^\w[\w.]*(?:Error|Exception|Expired|Interrupt)\b.*', re.M | re.S)
_FAILURES_MAX = 5  # of one binary
_FAILURE_TEXT_MAX = 1200
_LINE_MAX = 240
# The lines of a long output that say why: errors of our own log, exceptions, the last words of a dying program.
_TELLING = re.compile(r'\b(?:error|warning|fatal|what\(\)|\w*(?:Error|Exception)): |Fatal Python|terminate called|'
                      r'\b(?:killed|aborted|signal|SIG[A-Z]{3,})\b', re.I)
# A compiler's, a linker's and clang-tidy's words; the line of a finding of ours; Bazel's own. The first kind that a command printed says why it failed.
_REASONS = [re.compile(pattern, re.M) for pattern in (r'^.*\berror: .*', r'^\S+:\d+: .* \[[\w-]+\]$', r'^ERROR: .*')]


class TestResult(NamedTuple):
    label: str
    log: str  # path; empty where there is none
    passed: int
    failed: int
    skipped: List[str]  # the SKIPPED lines
    failures: List[str]  # each failed case and its reason, a line each


def failures(output: str) -> List[str]:
    """Each failed case and its reason, a line each; for a binary that names neither, the last lines of its output."""
    found = [f'{name}: {_cause(report)}' for name, report in _UNITTEST_FAILURE.findall(output)]
    found = found or _CATCH2_FAILURE.findall(output)
    if not found:
        found = ['\n'.join(output.splitlines()[-8:])] if output.strip() else ['it printed nothing']
    left_out = len(found) - _FAILURES_MAX
    return [_one_line(text) for text in found[:_FAILURES_MAX]] + ([f'and {left_out} more'] if left_out > 0 else [])


def why_failed(output: str) -> List[str]:
    """Of a command that is no test binary, and failed: the lines that say why, or the last ones."""
    if _UNITTEST_FAILURE.search(output):
        return failures(output)
    for kind in _REASONS:
        found = list(dict.fromkeys(kind.findall(output)))
        if found:
            left_out = len(found) - _FAILURES_MAX
            return [_shorter(line) for line in found[:_FAILURES_MAX]] + ([f'and {left_out} more'] if left_out > 0 else [])
    return [_shorter(line) for line in output.splitlines() if line.strip()][-_FAILURES_MAX:] or ['it printed nothing']


def _shorter(line: str) -> str:
    return line if len(line) <= _LINE_MAX else f'{line[:_LINE_MAX - 60]} [...] {line[-60:]}'


def _cause(report: str) -> str:
    """The place in the test from a traceback, and the exception with its whole message."""
    lines = re.findall(r'^  File ".*?([^/"]+_test\.py)", line (\d+)', report, re.M)
    cause = _UNITTEST_CAUSE.search(report)
    return ''.join([*(f'{file}:{line}: ' for file, line in lines), cause.group(0) if cause else report])


def _one_line(text: str) -> str:
    """The whole text if it is short; else its first and last line and, as far as there is room, the lines that say why, in their order."""
    lines = [part.strip() for part in text.splitlines() if part.strip()]
    if len(' | '.join(lines)) <= _FAILURE_TEXT_MAX:
        return ' | '.join(lines)
    lines = [_shorter(line) for line in lines]
    by_weight = sorted(range(len(lines)), key=lambda i: (i not in (0, len(lines) - 1), not _TELLING.search(lines[i]), i))
    kept, room = [], _FAILURE_TEXT_MAX
    for i in by_weight:
        room -= len(lines[i]) + len(' [...] | ')
        if room < 0:
            break
        kept.append(i)
    kept.sort()
    return ' | '.join(lines[i] + (' [...]' if i + 1 < len(lines) and i + 1 not in kept else '') for i in kept)


def count_cases(ok: bool, output: str):
    """(passed, failed, SKIPPED lines) of a test binary's output; a binary that says nothing counts as one case."""
    ran = _UNITTEST_RAN.findall(output)
    if ran and (ran[-1][1] == 'OK') == ok:
        counts = dict(re.findall(r'(\w+)=(\d+)', ran[-1][2]))
        failed = int(counts.get('failures', 0)) + int(counts.get('errors', 0))
        skipped = [f'SKIPPED: {why}' for why in _UNITTEST_SKIPPED.findall(output)] or _SKIPPED.findall(output)
        failed = max(failed, 0 if ok else 1)
        return max(int(ran[-1][0]) - failed - int(counts.get('skipped', 0)), 0), failed, skipped
    skipped = _SKIPPED.findall(output)
    if ok:
        all_passed = _ALL_PASSED.search(output)
        return max(int(all_passed.group(1)) - len(skipped) if all_passed else 1 - len(skipped), 0), 0, skipped
    some_failed = _SOME_FAILED.search(output)
    if some_failed:
        total, failed = int(some_failed.group(1)), int(some_failed.group(2))
        return max(total - failed - len(skipped), 0), max(failed, 1), skipped
    return 0, 1, skipped  # died, hung, or a sanitizer stopped it


def read_tests(path: str) -> List[TestResult]:
    """The tests of the run that wrote the build event file `path`, one entry each, in order of their labels."""
    results = {}
    if not os.path.exists(path):
        return []
    with open(path, encoding='utf-8') as file:
        for line in file:
            event = json.loads(line)
            if 'testResult' not in event:
                continue
            label, result = event['id']['testResult']['label'], event['testResult']
            log = next((unquote(urlparse(output['uri']).path) for output in result.get('testActionOutput', ())
                        if output.get('name') == 'test.log'), '')
            text = ''
            if log and os.path.exists(log):
                with open(log, encoding='utf-8', errors='replace') as log_file:
                    text = log_file.read()
            passed, failed, skipped = count_cases(result.get('status') == 'PASSED', text)
            results[label] = TestResult(label, log, passed, failed, skipped, failures(text) if failed else [])
    return [results[label] for label in sorted(results)]


def read_broken_targets(path: str) -> List[str]:
    """The targets that Bazel could not build."""
    broken = set()
    if os.path.exists(path):
        with open(path, encoding='utf-8') as file:
            for line in file:
                event = json.loads(line)
                completed = event['id'].get('targetCompleted')
                if completed and not event.get('completed', {}).get('success') and 'label' in completed:
                    broken.add(completed['label'])
    return sorted(broken)
