#!/usr/bin/python3
"""The targets that a change reaches, in a small graph. tools/check runs it."""

import sys
import unittest

sys.dont_write_bytecode = True
import targets  # noqa: E402  (the line above keeps __pycache__ out of the tree)
from targets import Rule  # noqa: E402

RULES = {rule.label: rule for rule in [
    Rule('//a:lib', 'cc_library', {'//a:lib.cc', '//a:lib.h'}, {'//a:lib.cc'}, {'//a:lib.h'}),
    Rule('//b:lib', 'cc_library', {'//b:lib.cc', '//a:lib'}, {'//b:lib.cc'}, set()),
    Rule('//b:lib_test', 'cc_test', {'//b:lib_test.cc', '//b:lib', '//b:golden.txt'}, {'//b:lib_test.cc'}, set()),
    Rule('//proto:generate', 'genrule', {'//proto:wire.proto'}, set(), set()),
    Rule('//proto:wire.pb.cc', 'generated file', {'//proto:generate'}, set(), set()),
    Rule('//proto:wire', 'cc_library', {'//proto:wire.pb.cc'}, {'//proto:wire.pb.cc'}, set()),
    Rule('//c:lone_test', 'cc_test', {'//c:lone_test.cc'}, {'//c:lone_test.cc'}, set()),
]}
GRAPH = {label: rule.inputs for label, rule in RULES.items()}


def rules_reached(*changed):
    return sorted(targets.reached(GRAPH, changed) & RULES.keys())


class ReachedTest(unittest.TestCase):

    def test_a_file_touches_its_own_targets_only(self):
        self.assertEqual(targets.touched(RULES, ['a/lib.h']), {'//a:lib'})
        self.assertEqual(targets.touched(RULES, ['README.md']), set())

    def test_a_file_reaches_all_that_depends_on_it(self):
        self.assertEqual(rules_reached('a/lib.h'), ['//a:lib', '//b:lib', '//b:lib_test'])
        self.assertEqual(rules_reached('b/lib.cc'), ['//b:lib', '//b:lib_test'])
        self.assertEqual(rules_reached('b/golden.txt'), ['//b:lib_test'])
        self.assertEqual(rules_reached('a/README.md'), [])
        self.assertIn('//proto:wire', rules_reached('proto/wire.proto'))

    def test_a_build_file_reaches_its_package_and_what_depends_on_it(self):
        self.assertEqual(rules_reached('a/BUILD.bazel'), ['//a:lib', '//b:lib', '//b:lib_test'])
        self.assertEqual(rules_reached('c/BUILD.bazel'), ['//c:lone_test'])

    def test_what_decides_how_all_is_built_reaches_all(self):
        for path in ('.bazelrc', 'tools/bazel/gpu.bzl', 'tools/ci/check.py'):
            self.assertEqual(rules_reached(path), sorted(RULES), path)

    def test_each_package_has_its_turn_once_in_five_days(self):
        labels = [f'//folder{number}:{name}' for number in range(40) for name in ('one', 'two')]
        days = [targets.fifth(labels, today) for today in range(5)]
        self.assertEqual(sorted(sum(days, [])), sorted(labels))
        for labels_of_day in days:
            self.assertEqual(len({label.split(':')[0] for label in labels_of_day}) * 2, len(labels_of_day), 'a package as a whole')


if __name__ == '__main__':
    unittest.main()
