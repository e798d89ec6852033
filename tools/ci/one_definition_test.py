#!/usr/bin/python3
"""tools/ci/one_definition against small trees with one planted sin each. tools/check runs it."""

import os
import subprocess
import sys
import tempfile
import unittest

ONE_DEFINITION = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'one_definition')


def findings(files):
    """Runs the check on a tree of `files`; returns its exit status and {name: places}."""
    with tempfile.TemporaryDirectory() as root:
        subprocess.run(['git', 'init', '-q', root], check=True)
        for path, text in files.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), 'w', encoding='utf-8') as file:
                file.write(text)
        done = subprocess.run([sys.executable, ONE_DEFINITION, '--root', root], capture_output=True, text=True, check=False)
    if done.stderr:
        raise AssertionError(done.stderr)
    found = {}
    for line in done.stdout.splitlines()[:-1]:
        if line.startswith('  '):
            places.append(line.strip())
        else:
            places = found.setdefault(line.split(' is defined ')[0], [])
    return done.returncode, found


def within(namespace, body):
    return f'namespace {namespace} {{\n{body}\n}}  // namespace\n'


class OneDefinitionTest(unittest.TestCase):
    def expect(self, one, other, *names):
        """`one` in a/x.h and `other` in b/y.cc give findings of exactly `names`."""
        code, found = findings({'a/x.h': one, 'b/y.cc': other})
        self.assertEqual(sorted(found), sorted(names))
        self.assertEqual(code, 1 if names else 0)

    def test_two_classes_of_one_name_are_found_with_their_places(self):
        code, found = findings({'quorum/job.h': within('rdzv', '// What is to say.\nstruct Outbox {\n  int a;\n};'),
                                'store/outbox.h': '#pragma once\n' + within('rdzv', 'class Outbox final : public Base<int> {};')})
        self.assertEqual(found, {'rdzv::Outbox': ['quorum/job.h:3', 'store/outbox.h:3']})
        self.assertEqual(code, 1)

    def test_every_way_to_write_a_type_is_seen(self):
        for one, other in [('class [[nodiscard]] A {};', 'struct A {};'), ('class ABSL_LOCKABLE A {};', 'class A {};'),
                           ('enum class A : int { kB };', 'enum A { kC };'), ('union A { int a; };', 'struct alignas(64) A {};')]:
            self.expect(within('n', one), within('n', other), 'n::A')
        self.expect(within('n', 'template <typename T, class U = std::map<T, T>>\nclass A {};'), within('n', 'template <class T>\nstruct A {};'),
                    'n::template A')

    def test_a_nested_namespace_is_the_same_however_it_is_opened(self):
        self.expect(within('a::b', 'struct A {};'), within('a', within('b', 'struct A {};')), 'a::b::A')
        self.expect(within('a::b', 'struct A {};'), within('a', 'struct A {};'))

    def test_two_functions_are_one_when_their_parameters_are_of_the_same_types(self):
        self.expect(within('n', 'inline int F(const std::string& a, int b = 3) { return 1; }'),
                    within('n', 'int F(const std::string& text,\n      int) { return 2; }'), 'n::F(const std::string&, int)')
        self.expect(within('n', 'int F(int a) { return 1; }'), within('n', 'int F(char a) { return 2; }'))

    def test_what_other_files_cannot_meet_is_no_concern(self):
        for one in ['namespace {\nstruct A {};\nint F() { return 1; }\n}', 'static int F() { return 2; }', 'struct B { struct A {}; int F() { return 1; } };',
                    'void G() { struct A {}; }', 'struct A;\nint F();', '// struct A {};\nconst char* text = "struct A {};";',
                    'template <>\nstruct A<int> {};', 'struct A Make() { return {}; }']:
            self.expect(within('n', one), within('n', 'struct A {};\nint F() { return 3; }'))

    def test_members_and_constructors_are_no_functions_of_their_own(self):
        self.expect(within('n', 'A::A(int a) : a_{a}, b_(a) { Work(); }'), within('n', 'B::B(int a) : c_{a}, b_(a) { Play(); }'))
        self.expect(within('n', 'int A::F() { return 1; }\nTEST_CASE("x") {}'), within('n', 'int B::F() { return 1; }\nTEST_CASE("x") {}'))

    def test_stand_ins_for_a_foreign_library_and_a_builds_alternatives_never_meet(self):
        self.expect('int cudaFree(void*) { return 0; }', 'int cudaFree(void*) { return 1; }')
        one = within('n', 'struct A {};')
        self.assertEqual(findings({'a/x.cc': one, 'a/x_without_y.cc': one}), (0, {}))
        self.assertEqual(findings({'a/x.cc': one, 'b/x_without_y.cc': one})[0], 1)
        self.expect(within('n', 'A::A(int a)\n    : a_(a), b_(a) {}'), within('n', 'B::B(int a)\n    : c_(a), b_(a) {}'))

    def test_the_branches_of_one_file_are_its_own_affair(self):
        self.expect(within('n', '#ifdef X\nstruct A {};\n#else\nstruct A { int a; };\n#endif'), '')


if __name__ == '__main__':
    unittest.main()
