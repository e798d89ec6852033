#!/usr/bin/env python3
"""Compares our renderer with Jinja2 on random templates, and on the real ones of a folder.

usage: compare_with_jinja2.py RENDER_CASES [--first SEED] [--count N] [--templates FOLDER] [--golden FILE]

RENDER_CASES is the program //worker_runtime/data/chat/testing:render_cases. FOLDER holds *.jinja files, such as trl/chat_templates
of the wheel trl; each is rendered with many conversations. --golden writes the random cases, and those of cases.py, to FILE, with what
Jinja2 makes of them and the code with which we refuse one.
Needs jinja2. Exit status: 0 no difference.

A difference is another text or span, or an error on one side alone. What we refuse as beyond the subset is counted apart.
"""

import argparse
import collections
import glob
import json
import os
import subprocess
import sys
from typing import Any, Dict, Iterable, List, Tuple

sys.dont_write_bytecode = True
import cases  # noqa: E402
import jinja_oracle  # noqa: E402
import random_templates  # noqa: E402

Case = Dict[str, Any]


def answers(program: str, inputs: List[Case]) -> List[Case]:
    lines = ''.join(json.dumps({'template': case['template'], 'variables': case['variables']}) + '\n' for case in inputs)
    run = subprocess.run([program], input=lines, stdout=subprocess.PIPE, check=False, text=True, encoding='utf-8')
    output = [json.loads(line) for line in run.stdout.splitlines()]
    if run.returncode != 0 or len(output) != len(inputs):
        sys.exit(f'{program} ended with {run.returncode} at the case {json.dumps(inputs[len(output)])}')
    return output


def verdict(expected: Case, ours: Case) -> str:
    """'same', 'both refuse', 'lacking', or what differs."""
    if 'text' in expected and 'text' in ours:
        return 'same' if expected == ours else 'DIFFERENT'
    if 'text' in ours:
        return 'ONLY JINJA2 REFUSES'
    if ours['code'] == 'UNIMPLEMENTED':
        return 'lacking'
    return 'both refuse' if 'error' in expected else 'ONLY WE REFUSE'


def compare(program: str, inputs: Iterable[Case]) -> Tuple[collections.Counter, List[Case]]:
    counts: collections.Counter = collections.Counter()
    lacking: collections.Counter = collections.Counter()
    kept = []
    inputs = list(inputs)
    for case, ours in zip(inputs, answers(program, inputs)):
        expected = jinja_oracle.outcome(case['template'], case['variables'])
        found = verdict(expected, ours)
        counts[found] += 1
        if found == 'lacking':
            lacking[ours['error'].split(': ', 1)[-1]] += 1
        elif found.isupper():
            print(f'--- {found}: {case.get("name", "")}\n{case["template"]}\n  jinja2: {expected}\n  ours:   {ours}')
        kept.append({**case, **({'text': expected['text'], 'spans': expected['spans']} if 'text' in expected else {}),
                     **({'code': ours['code']} if 'code' in ours else {})})
    for what, count in lacking.most_common(20):
        print(f'{count:6} lacking: {what}')
    return counts, kept


def write_golden(path: str, kept: List[Case]) -> None:
    """The first line has the variables of the random templates; each other line is a case."""
    with open(path, 'w', encoding='utf-8') as file:
        file.write(json.dumps({'variables': random_templates.VARIABLES}, ensure_ascii=False) + '\n')
        for case in kept:
            if case['variables'] == random_templates.VARIABLES:
                file.write(json.dumps({key: value for key, value in case.items() if key != 'variables'}, ensure_ascii=False) + '\n')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('program')
    parser.add_argument('--first', type=int, default=1)
    parser.add_argument('--count', type=int, default=2000)
    parser.add_argument('--templates')
    parser.add_argument('--golden')
    arguments = parser.parse_args()
    inputs = [{'name': f'seed {seed}', **random_templates.case(seed)} for seed in range(arguments.first, arguments.first + arguments.count)]
    written = cases.all_cases()
    for path in sorted(glob.glob(os.path.join(arguments.templates, '*.jinja'))) if arguments.templates else []:
        with open(path, encoding='utf-8') as file:
            source = file.read()
        inputs += [{'name': f'{os.path.basename(path)}, {name}', 'template': source, 'variables': variables}
                   for name, variables in cases.conversations().items()]
    counts, kept = compare(arguments.program, written + inputs)
    print(', '.join(f'{count} {what}' for what, count in counts.most_common()))
    if arguments.golden:
        write_golden(arguments.golden, kept)
    return 1 if any(what.isupper() for what in counts) else 0


if __name__ == '__main__':
    sys.exit(main())
