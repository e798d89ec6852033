"""Bazel's graph of targets, and the targets that a change reaches."""

import hashlib
import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from typing import Collection, Dict, Iterable, List, NamedTuple, Set

import changes

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
Graph = Dict[str, Set[str]]
# Files that decide how everything is built or chosen.
REACHES_ALL = ['.bazelrc', 'WORKSPACE', 'tools/bazel', 'tools/build_rules', 'tools/ci', 'worker_runtime/device/emulated/translate.py']


class Rule(NamedTuple):
    """A target, and the labels that its lists name."""
    label: str
    kind: str
    inputs: Set[str]
    sources: Set[str]
    headers: Set[str]
    macro: str = ''             # which made it; empty for a rule that stands in a BUILD file as it is
    always_links: bool = False  # its objects are linked whether somebody names their symbols or not


def read_rules() -> Dict[str, Rule]:
    """All rules of the workspace, as they stand in its BUILD files; no configuration is chosen and no external repository read."""
    command = ['bazel', 'query', '//...:*', '--output=xml', '--noimplicit_deps', '--notool_deps', '--noshow_progress']
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    # Bazel writes XML 1.1, which Python's parser does not know.
    query = ElementTree.fromstring(done.stdout.replace('version="1.1"', 'version="1.0"', 1))
    rules = {}
    for element in query.iter('rule'):
        listed = {name: {label.get('value') for part in element.iter('list') if part.get('name') == name for label in part.iter('label')}
                  for name in ('srcs', 'hdrs')}
        inputs = {inputs.get('name') for inputs in element.iter('rule-input')}
        kind = element.get('class')
        said = {part.get('name'): part.get('value') for part in element if part.tag in ('string', 'boolean')}
        rules[element.get('name')] = Rule(element.get('name'), kind, inputs, listed['srcs'] if kind.startswith('cc_') else set(), listed['hdrs'],
                                          said.get('generator_function', ''), said.get('alwayslink') == 'true')
    # A file that a rule makes stands in another rule's lists: it leads back to the rule that makes it.
    for made in query.iter('generated-file'):
        rules[made.get('name')] = Rule(made.get('name'), 'generated file', {made.get('generating-rule')}, set(), set())
    return rules


def read_graph(rules: Dict[str, Rule]) -> Graph:
    """The rules' inputs, and from each source file an edge to each header that it includes, written as in the source."""
    graph = {label: set(rule.inputs) for label, rule in rules.items()}
    for label in sorted(set().union(*graph.values())):
        path = os.path.join(ROOT, path_of(label))
        if label.startswith('//') and path.endswith(('.cc', '.h', '.cu', '.cuh')) and os.path.isfile(path):
            with open(path, encoding='utf-8') as file:
                graph[label] = set(re.findall(r'^[ \t]*#[ \t]*include[ \t]*(<[^>\n]+>|"[^"\n]+")', file.read(), re.M))
    return graph


def path_of(label: str) -> str:
    return label[2:].replace(':', '/').lstrip('/')


def package_of(label: str) -> str:
    return label.split(':')[0]


def touched(rules: Dict[str, Rule], changed: Collection[str]) -> Set[str]:
    """The targets that have one of the files `changed` in their lists."""
    return {rule.label for rule in rules.values() if any(path_of(label) in changed for label in rule.sources | rule.headers)}


def reached(graph: Graph, changed: Collection[str]) -> Set[str]:
    """The targets that depend on one of the files `changed`, however far away. A BUILD.bazel reaches each target of its package."""
    if changes.below(changed, REACHES_ALL):
        return set(graph)
    users: Graph = {}
    for label, inputs in graph.items():
        for used in inputs:
            users.setdefault(used, set()).add(label)
    packages = {'//' + os.path.dirname(path) for path in changed if os.path.basename(path) == 'BUILD.bazel'}
    labels = set(graph) | set(users)
    waiting = [label for label in labels if package_of(label) in packages or path_of(label) in changed]
    found = set(waiting)
    while waiting:
        for user in users.get(waiting.pop(), set()) - found:
            found.add(user)
            waiting.append(user)
    return found


def fifth(labels: Iterable[str], today: int) -> List[str]:
    """The labels whose package has its turn: another fifth of the packages each day. today: days since any day.
    By package, because the tests of one link much the same."""
    return [label for label in labels if int(hashlib.sha256(package_of(label).encode()).hexdigest(), 16) % 5 == today % 5]
