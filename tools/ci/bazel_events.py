"""Reads what Bazel says of a `bazel test` (its build event file) and what the tests printed."""

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


class TestResult(NamedTuple):
    label: str
    log: str  # path; empty where there is none
    passed: int
    failed: int
    skipped: List[str]  # the SKIPPED lines


def count_cases(ok: bool, output: str):
    """(passed, failed, SKIPPED lines) of a test binary's output; a binary that says nothing counts as one case."""
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
            results[label] = TestResult(label, log, *count_cases(result.get('status') == 'PASSED', text))
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
