#!/usr/bin/python3
"""tools/ci/tidy against small trees with one planted sin each. tools/check runs it."""

import os
import subprocess
import sys
import tempfile
import unittest

TIDY = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'tidy')

# A tree without a finding; each test adds to it.
CLEAN = {
    'BUILD.bazel': '',
    'agent/README.md': 'The agent. tools/run.sh starts it.\n',
    'agent/BUILD.bazel': 'cc_library(name = "core", srcs = ["core.cc"], hdrs = ["core.h"])\n',
    'agent/core.h': '// The agent.\nint Answer();\n',
    'agent/core.cc': '#include "agent/core.h"\n// std::mutex, sleep_for( and exit( in a comment are fine.\n'
                     'int Answer() { return Parse("exit(1) std::mutex"); }\n',
    'tools/run.sh': '#!/bin/sh\n',
}


def tidy(extra):
    """Runs tidy on CLEAN plus `extra`; returns its exit status and (path, line, rule) of each finding."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in {**CLEAN, **extra}.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), 'w') as file:
                file.write(text)
        done = subprocess.run([sys.executable, TIDY, '--root', root], capture_output=True, text=True)
    if done.stderr:
        raise AssertionError(done.stderr)
    findings = []
    for line in done.stdout.splitlines()[:-1]:
        path, number, rest = line.split(':', 2)
        findings.append((path, int(number), rest[rest.rindex('[') + 1:-1]))
    return done.returncode, findings


def core(body):
    return {'agent/core.cc': '#include "agent/core.h"\n' + body}


class TidyTest(unittest.TestCase):
    def expect(self, extra, *findings):
        code, found = tidy(extra)
        self.assertEqual(found, list(findings))
        self.assertEqual(code, 1 if findings else 0)

    def test_a_clean_tree_has_no_findings(self):
        self.expect({})

    def test_forbidden_words_are_found_on_their_line(self):
        for rule, line in [
                ('sleep', 'std::this_thread::sleep_for(x);'), ('sleep', 'usleep(5);'), ('sleep', '::sleep(1);'), ('sleep', 'absl::SleepFor(x);'),
                ('wall-clock', 'absl::Now();'), ('wall-clock', 'auto t = std::chrono::system_clock::now();'),
                ('mutex', 'absl::Mutex m;'), ('mutex', 'std::mutex m;'), ('mutex', '#include <mutex>'), ('mutex', 'std::lock_guard l(m);'),
                ('thread', 'std::thread t(f);'), ('exit', 'exit(1);'), ('exit', 'std::abort();'),
                ('using-namespace', 'using namespace std;'), ('reserved-name', '#define _CORE_H'), ('reserved-name', 'struct __Core;'),
                ('open-end', '// TO' + 'DO: later')]:
            with self.subTest(line=line):
                self.expect(core('\n' + line + '\n'), ('agent/core.cc', 3, rule))

    def test_lookalikes_are_not_found(self):
        for line in ['_exit(1);', 'Sleep(1);', 'OnSleep(1);', 'std::thread::hardware_concurrency();', 'timer.sleep(1);',
                     'using namespace std::chrono_literals;', 'worker_exit(3);', 'child.exit(3);', "int n = 1'000; // std::mutex",
                     'auto t = R"(exit(1) " std::mutex)";', 'const char* s = "a\\"exit(1)";']:
            with self.subTest(line=line):
                self.expect(core(line + '\n'))

    def test_only_a_test_may_not_sleep_on_the_real_clock(self):
        build = {'agent/BUILD.bazel': '["core.cc", "core.h", "core_test.cc"]'}
        self.expect({**build, 'agent/core_test.cc': 'void T() { Clock::Real().SleepFor(x); }\n'}, ('agent/core_test.cc', 1, 'test-sleep'))
        self.expect({**build, 'agent/core_test.cc': 'void T() { clock.SleepFor(x); }\n', **core('void T() { Clock::Real().SleepFor(x); }\n')})

    def test_the_base_may_do_what_others_may_not(self):
        base = {'tools/base/BUILD.bazel': '["mutex.h", "clock.cc"]', 'tools/base/README.md': ''}
        self.expect({**base, 'tools/base/mutex.h': '// Mutex.\n#include <mutex>\n', 'tools/base/clock.cc': 'int a = usleep(1);\n'})
        self.expect({**base, 'tools/base/mutex.h': '// Mutex.\n', 'tools/base/clock.cc': 'std::mutex m;\n'}, ('tools/base/clock.cc', 1, 'mutex'))

    def test_a_function_may_have_70_lines_and_no_more(self):
        for header in ['int F() {', 'Agent::Agent(int a) : a_{a}, b_(2) {', 'template <typename T, class U>\nauto F(T t) -> U {',
                       'namespace a::b {\nclass [[nodiscard]] C : public B {\n public:\n  int F() const override {', 'TEST_CASE("a {") {']:
            closing = '}\n' * header.count('{\n') + '}\n'
            line = 1 + len(header.splitlines())
            with self.subTest(header=header):
                self.expect(core(header + '\n' + 'if (x) { y(); }\n' * 68 + closing))
                self.expect(core(header + '\n' + 'if (x) { y(); }\n' * 69 + closing), ('agent/core.cc', line, 'function-length'))

    def test_a_long_table_class_or_namespace_is_no_function(self):
        self.expect(core('const std::vector<Row> kRows = {\n' + '{Make(1), 2},\n' * 99 + '};\n'))
        self.expect(core('namespace a {\nstruct S {\n' + 'int F() { return 1; }\n' * 99 + '};\n}  // namespace a\n'))
        self.expect(core('enum class E {\n' + 'kA,\n' * 99 + '};\n'))

    def test_a_long_python_function_is_found(self):
        self.expect({'tools/run.sh': '#!/usr/bin/python3\ndef f():\n' + '    x = 1\n' * 70}, ('tools/run.sh', 2, 'function-length'))

    def test_long_files_and_lines_are_found(self):
        self.expect(core('int a;\n' * 600), ('agent/core.cc', 600, 'file-length'))
        self.expect(core('// ' + 'a' * 158 + '\n'), ('agent/core.cc', 2, 'line-length'))

    def test_sources_and_build_files_must_agree(self):
        self.expect({'agent/lost.cc': ''}, ('agent/lost.cc', 1, 'dead-source'))
        self.expect({'agent/deep/lost.cc': ''}, ('agent/deep/lost.cc', 1, 'dead-source'))
        self.expect({'agent/BUILD.bazel': 'cc_library(srcs = ["core.cc", "gone.cc"], hdrs = glob(["*.h"]))'},
                    ('agent/BUILD.bazel', 1, 'missing-source'))
        self.expect({'agent/BUILD.bazel': 'genrule(outs = ["made.h"], srcs = ["core.cc", "core.h"])\n# "comment.cc"'})

    def test_a_script_nobody_mentions_is_found(self):
        self.expect({'tools/lost': '#!/bin/sh\n'}, ('tools/lost', 1, 'dead-script'))

    def test_a_document_names_tests_that_exist(self):
        tests = {'agent/BUILD.bazel': '["core.cc", "core.h", "core_test", "core_test.cc", "run_test.py"]',
                 'agent/core_test.cc': 'TEST_CASE("it goes on") {}\nTEST_CASE(\n    "a long name that is "\n    "broken in two") {}\n',
                 'agent/run_test.py': 'def test_it(self):\n    pass\n'}
        self.expect({**tests, 'NEWS.md': '`//agent:core_test` "it goes on", "a long name that is broken in two"; `//agent:core_test` "test_it"\n'})
        self.expect({**tests, 'NEWS.md': '\n`//agent:core_test` "it goes on", "it stops"\n'}, ('NEWS.md', 2, 'named-test'))
        self.expect({**tests, 'NEWS.md': '`//agent:gone_test` "it goes on"\n'}, ('NEWS.md', 1, 'named-test'))

    def test_a_sentence_names_its_subject(self):
        for comment in ['// What is stale goes.', '// A queue. Those in it wait.', '// A queue.\n// Who waits\n// is served.', '// (One that fails ends.)',
                        '// Two kinds:\n// - Whoever asks.\n// - others', '/* Which key. */', 'int a;  // All that is left.']:
            with self.subTest(comment=comment):
                _, found = tidy(core('\n' + comment + '\n'))
                self.assertEqual([rule for _, _, rule in found], ['subject'])
        self.expect(core('// A queue.\n// It is full. What\n// waits is lost.\n'), ('agent/core.cc', 3, 'subject'))
        self.expect({'tools/run.sh': '#!/bin/sh\n# Whatever comes is read.\n'}, ('tools/run.sh', 2, 'subject'))
        self.expect({'tools/run.sh': '#!/usr/bin/python3\n"""Reads.\n\nThose beyond are lost."""\n'}, ('tools/run.sh', 4, 'subject'))
        self.expect({'NEWS.md': 'It is\nfaster. What was slow is gone.\n'}, ('NEWS.md', 2, 'subject'))

    def test_questions_quotations_and_tables_may_begin_with_a_pronoun(self):
        for comment in ['// What is stale?', '// Which nodes\n// wait? All of them.', '// "What" is a word.', '// The one\n// who asks; What, too.',
                        'const char* s = "// What is text.";', '// Those_, WhatEver: names.']:
            with self.subTest(comment=comment):
                self.expect(core(comment + '\n'))
        self.expect({'NEWS.md': '# What is new\n\n| What | Why |\n\n> What he said.\n\n```\nWhat code.\n```\n'})

    def test_headers_and_folders_introduce_themselves(self):
        self.expect({'agent/core.h': '#pragma once\n'}, ('agent/core.h', 1, 'header-comment'))
        self.expect({'launcher/BUILD.bazel': ''}, ('launcher/BUILD.bazel', 1, 'readme'))
        self.expect({'worker_runtime/ops/cpu/BUILD.bazel': '', 'agent/testing/BUILD.bazel': ''})


if __name__ == '__main__':
    unittest.main()
