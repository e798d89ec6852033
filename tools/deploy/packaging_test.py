#!/usr/bin/python3
"""What stands in the .deb and the wheel (packaging_rules.py), and the flags that a LaunchConfig becomes. tools/check runs it."""

import os
import subprocess
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
import bundling  # noqa: E402  (the line above keeps __pycache__ out of the tree)
import packaging_rules as rules  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'python'))
from convene import errors  # noqa: E402
from convene.config import DefaultLogsSpecs, LaunchConfig, Std, flags_of  # noqa: E402

BUILT = rules.Version('0.1.0', '0123456789abcdef', 1700000000, 321, changed=False, released=False)


class VersionTest(unittest.TestCase):

    def test_a_tagged_commit_is_the_release(self):
        version = BUILT._replace(released=True)
        self.assertEqual((version.python(), version.debian()), ('0.1.0', '0.1.0'))

    def test_any_other_commit_comes_before_it_and_is_named(self):
        self.assertEqual((BUILT.python(), BUILT.debian()), ('0.1.0.dev321+g0123456789ab', '0.1.0~dev321+g0123456789ab'))

    def test_changed_files_are_no_release(self):
        version = BUILT._replace(released=True, changed=True)
        self.assertEqual((version.python(), version.debian()), ('0.1.0.dev321+g0123456789ab.changed', '0.1.0~dev321+g0123456789ab.changed'))


class DebTest(unittest.TestCase):

    def test_the_control_file_is_one_paragraph_that_tells_the_device(self):
        text = rules.control(BUILT, 'amd64', 'libc6 (>= 2.34)', 4096, ['libcublas.so.13'])
        self.assertIn('Package: convene\nVersion: 0.1.0~dev321+g0123456789ab\nArchitecture: amd64\n', text)
        self.assertIn('\nDepends: libc6 (>= 2.34)\n', text)
        self.assertIn('libcublas.so.13', text)
        self.assertNotIn('\n\n', text)
        self.assertIn('on CPUs', rules.control(BUILT, 'amd64', '', 1, []))

    def test_only_a_program_that_needs_cuda_looks_where_its_toolkit_is(self):
        self.assertEqual(rules.debian_run_path(bundling.Elf(['libc.so.6'], (), ())), '$ORIGIN/../lib/convene')
        self.assertEqual(rules.debian_run_path(bundling.Elf(['libnccl.so.2'], (), ())), '$ORIGIN/../lib/convene:/usr/local/cuda/lib64')

    def test_a_manual_page_keeps_lines_that_look_like_commands_of_roff(self):
        page = rules.man_page('convene', 'a launcher', '2026-11-23', {'run': "--flag\n.x\n'y \\n\n"})
        self.assertIn('.SH run\n.nf\n\\-\\-flag\n\\&.x\n\\&\'y \\en\n.fi\n', page)


class WheelTest(unittest.TestCase):
    OLD = bundling.Elf(['libc.so.6', 'libgloo.so.0'], (2, 4, 9), ())
    NEW = bundling.Elf(['libm.so.6', 'libstdc++.so.6', 'libcublas.so.13', 'libodd.so.1'], (2, 34), (3, 4, 30))

    def test_the_tag_is_the_oldest_platform_with_the_c_library_and_libstdcxx_that_all_files_need(self):
        self.assertEqual(rules.platform_tag([self.OLD, self.NEW], 'x86_64'), 'manylinux_2_35_x86_64')
        self.assertEqual(rules.platform_tag([self.OLD, self.NEW._replace(glibc=(2, 38))], 'x86_64'), 'manylinux_2_38_x86_64')
        self.assertEqual(rules.platform_tag([self.OLD], 'x86_64'), 'manylinux_2_31_x86_64')
        with self.assertRaisesRegex(ValueError, '3.4.99'):
            rules.platform_tag([self.NEW._replace(glibcxx=(3, 4, 99))], 'x86_64')

    def test_what_nobody_brings_is_named(self):
        self.assertEqual(rules.unmet([self.OLD, self.NEW], ['libgloo.so.0']), ['libodd.so.1'])

    def test_the_machines_own_drivers_come_before_the_wheels(self):
        for kind, lib in (('convene', '$ORIGIN/../libexec/convene/lib'), ('convene-train', '$ORIGIN/lib')):
            folders = rules.wheel_run_path(kind).split(':')
            self.assertEqual(folders[0], lib)
            self.assertLess(folders.index('/usr/lib64'), folders.index(f'{lib}/fallback'))
        self.assertEqual([rules.of_the_wheel(name) for name in ('libstdc++.so.6', 'libgcc_s.so.1', 'libgomp.so.1')], [False, False, True])

    def test_cuda_comes_only_when_it_is_asked_for(self):
        self.assertIn("Requires-Dist: nvidia-cublas<14,>=13; extra == 'cuda'\n", rules.wheel_metadata(BUILT, 'words', ['libcublas.so.13']))
        self.assertNotIn('nvidia', rules.wheel_metadata(BUILT, 'words', []))

    def test_the_record_has_each_file_and_itself(self):
        self.assertEqual(rules.record([('a', b'')], 'RECORD'), 'a,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\nRECORD,,\n')


class PlacesTest(unittest.TestCase):
    """Each command that packs looks at its places before it builds."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(f'{self.folder}/bin')
        for tool in ('bazel', 'patchelf', 'strip', 'readelf', 'ldd', 'dpkg-deb', 'dpkg-shlibdeps'):
            with open(f'{self.folder}/bin/{tool}', 'w', encoding='utf-8') as file:
                file.write(f'#!/bin/sh\necho called > {self.folder}/{tool}\nexit 1\n')
            os.chmod(f'{self.folder}/bin/{tool}', 0o755)

    def run_command(self, command, *arguments):
        """The end of stderr, and whether it began to build."""
        path = f'{self.folder}/bin:/usr/bin:/bin'
        here = os.path.dirname(os.path.abspath(__file__))
        done = subprocess.run([f'{here}/{command}', '--without-cuda', *arguments], check=False, capture_output=True, text=True, cwd=self.folder,
                              env={**os.environ, 'PATH': path})
        self.assertEqual(done.returncode, 1)
        return done.stderr, os.path.exists(f'{self.folder}/bazel')

    def test_a_place_that_cannot_be_is_refused_before_the_build(self):
        with open(f'{self.folder}/file', 'w', encoding='utf-8'):
            pass
        for command, *arguments in (('wheel', '--output-dir', 'file/x'), ('deb', '--output-dir', 'file'), ('bundle', '--output', 'file/x.tar.gz')):
            error, built = self.run_command(command, *arguments)
            self.assertIn(f'no file can be made in the folder {self.folder}/file', error)
            self.assertFalse(built)
        error, built = self.run_command('bundle', '--output', 'bin')
        self.assertIn('is a folder: name a file', error)
        self.assertFalse(built)

    def test_a_folder_that_is_absent_is_made_before_the_build(self):
        for command, *arguments in (('wheel', '--output-dir', 'w/x'), ('deb', '--output-dir', 'd/x'), ('bundle', '--output', 'b/x/convene.tar.gz')):
            error, built = self.run_command(command, *arguments)
            self.assertIn('the build failed', error)
            self.assertTrue(built)
            self.assertTrue(os.path.isdir(f'{self.folder}/{command[0]}/x'))

    def test_a_missing_tool_is_told_before_the_build(self):
        for tool in ('patchelf', 'dpkg-shlibdeps'):
            os.remove(f'{self.folder}/bin/{tool}')
        here = os.path.dirname(os.path.abspath(__file__))
        for command in ('wheel', 'deb', 'bundle'):
            done = subprocess.run([sys.executable, f'{here}/{command}', '--without-cuda'], check=False, capture_output=True, text=True, cwd=self.folder,
                                  env={**os.environ, 'PATH': f'{self.folder}/bin'})
            self.assertIn('no patchelf', done.stderr)
            self.assertFalse(os.path.exists(f'{self.folder}/bazel'))


class FlagsTest(unittest.TestCase):

    def flags(self, **fields):
        words = flags_of(LaunchConfig(**{'min_nodes': 1, 'max_nodes': 2, 'nproc_per_node': 4, **fields}))
        return ' '.join(words)

    def test_nodes_workers_and_where_they_meet(self):
        self.assertEqual(self.flags(rdzv_endpoint='h:1', run_id='r', max_restarts=5, role='trainer', rdzv_configs={'join_timeout': 9},
                                    signals_to_handle=''),
                         '--nnodes=1:2 --nproc-per-node=4 --role=trainer --max-restarts=5 --rdzv-backend=c10d --rdzv-endpoint=h:1 '
                         '--rdzv-conf=join_timeout=9 --rdzv-id=r')

    def test_a_static_job_meets_at_its_first_node(self):
        text = self.flags(rdzv_backend='static', rdzv_endpoint='[::1]:29500', rdzv_configs={'rank': 1, 'timeout': 900})
        self.assertIn('--rdzv-backend=static --master-addr=[::1] --master-port=29500 --node-rank=1 --rdzv-conf=timeout=900', text)
        with self.assertRaisesRegex(ValueError, 'host:port'):
            self.flags(rdzv_backend='static', rdzv_endpoint='h')

    def test_output_and_the_rest(self):
        text = self.flags(logs_specs=DefaultLogsSpecs('logs', Std.ALL, {1: Std.ERR, 0: Std.OUT}, {3, 0}), numa_options='node', local_addr='me',
                          duplicate_stderr_filters=['a,b', 'c'], virtual_local_rank=True, shutdown_timeout=0)
        self.assertIn('--log-dir=logs --redirects=3 --tee=0:1,1:2 --local-ranks-filter=0,3', text)
        self.assertIn('--local-addr=me --numa-binding=node', text)
        self.assertIn('--duplicate-stderr-filters=a,,b,c --shutdown-timeout=0 --virtual-local-rank', text)

    def test_a_value_that_begins_with_a_dash_is_no_flag(self):
        words = flags_of(LaunchConfig(1, 1, 1, duplicate_stdout_filters=['--a'], log_line_prefix_template='- x ', run_id='-7', role='-r',
                                      rdzv_configs={'-k': 1}, rdzv_endpoint='-h:1', logs_specs=DefaultLogsSpecs('-logs')))
        self.assertEqual([word for word in words if not word.startswith('--')], [])
        self.assertTrue({'--duplicate-stdout-filters=--a', '--log-line-prefix-template=- x ', '--rdzv-id=-7', '--log-dir=-logs'} <= set(words))

    def test_a_config_of_an_older_pytorch_lacks_fields(self):
        old = types.SimpleNamespace(min_nodes=1, max_nodes=1, nproc_per_node=1, role='x', max_restarts=0, rdzv_backend='c10d', rdzv_endpoint='',
                                    rdzv_configs={}, rdzv_timeout=-1, run_id='', local_addr=None)
        self.assertEqual(flags_of(old), '--nnodes=1:1 --nproc-per-node=1 --role=x --max-restarts=0 --rdzv-backend=c10d'.split())

    def test_what_no_flag_can_say_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'logs_specs is a dict'):
            self.flags(logs_specs={})
        with self.assertRaisesRegex(ValueError, 'min_nodes 3'):
            self.flags(min_nodes=3)


class FailureTest(unittest.TestCase):
    FIRST = {'rank': 5, 'local_rank': 1, 'host': 'node3', 'pid': 7, 'exit_code': 0, 'signal': 9, 'why': 'killed by SIGKILL', 'error_file': '',
             'error': ''}

    def test_a_killed_worker_has_minus_its_signal(self):
        rank, failure = errors.failure_of({'first_failure': self.FIRST})
        self.assertEqual((rank, failure.exitcode, failure.error_file, failure.message), (5, -9, '<N/A>', 'killed by SIGKILL'))
        self.assertEqual(str(errors.ChildFailedError('train', {rank: failure})),
                         'train failed: rank 5 (local rank 1, pid 7) on node3: killed by SIGKILL')

    def test_a_record_on_another_machine_is_told_by_its_first_lines(self):
        first = {**self.FIRST, 'signal': 0, 'exit_code': 1, 'error_file': '/nowhere/error.json', 'error': 'ValueError: x'}
        _, failure = errors.failure_of({'first_failure': first})
        self.assertEqual((failure.exitcode, failure.message, failure.error_file_data), (1, 'ValueError: x', {}))

    def test_any_record_is_read_for_what_it_has(self):
        for record, told in ((b'{"message": {"message": "E: x", "extraInfo": {"py_callstack": "Traceback\\nE: x\\n", "timestamp": "7"}}}',
                              ('Traceback\nE: x', 7)),
                             (b'{"message": "E: x", "timestamp": 8}', ('E: x', 8)),
                             (b'{"message": {"extraInfo": null}}', ('its first lines', 0)),
                             (b'{"message": {"message": "E: y", "extraInfo": {"timestamp": "soon"}}}', ('E: y', 0)),
                             (b'\xff no json', ('its first lines', 0)), (b'[]', ('its first lines', 0))):
            with tempfile.NamedTemporaryFile() as file:
                file.write(record)
                file.flush()
                _, failure = errors.failure_of({'first_failure': {**self.FIRST, 'error_file': file.name, 'error': 'its first lines'}})
                self.assertEqual((failure.message, failure.timestamp), told)

    def test_a_job_may_end_without_a_failed_worker(self):
        self.assertIsNone(errors.failure_of({'first_failure': None}))


if __name__ == '__main__':
    unittest.main()
