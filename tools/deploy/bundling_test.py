#!/usr/bin/python3
"""The contents of a bundle (tools/deploy/bundle), from samples of the tools' output. tools/check runs it."""

import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
import bundling  # noqa: E402  (the line above keeps __pycache__ out of the tree)

HERE = os.path.dirname(os.path.abspath(__file__))
LDD = '''
	linux-vdso.so.1 (0x00007f6a8566a000)
	libgloo.so.0 => /lib/libgloo.so.0 (0x00007f6a85577000)
	libstdc++.so.6 => /lib/x86_64-linux-gnu/libstdc++.so.6 (0x00007f6a82800000)
	libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f6a82b00000)
	libibverbs.so.1 => /lib/x86_64-linux-gnu/libibverbs.so.1 (0x00007f6a82a77000)
	libcublasLt.so.13 => /usr/local/cuda/lib64/libcublasLt.so.13 (0x00007f6a40000000)
	libcuda.so.1 => not found
	/lib64/ld-linux-x86-64.so.2 (0x00007f6a8566c000)
'''
READELF = '''
 0x0000000000000001 (NEEDED)             Shared library: [libcudnn.so.9]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
  0x0010:   Name: GLIBC_2.4  Flags: none  Version: 8
  0x0020:   Name: GLIBC_2.34  Flags: none  Version: 6
  0x0050:   Name: GLIBCXX_3.4.9  Flags: none  Version: 3
  0x0060:   Name: GLIBCXX_3.4.30  Flags: none  Version: 2
'''


def load_script(path):
    """A Python script whose name has no ending, as a module."""
    loader = importlib.machinery.SourceFileLoader(os.path.basename(path), path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


bundle = load_script(os.path.join(HERE, 'bundle'))
find_cuda = load_script(os.path.join(HERE, 'bundled/find_cuda'))


class BundlingTest(unittest.TestCase):
    def test_neither_the_c_library_nor_cuda_is_packed(self):
        self.assertEqual(bundling.libraries_to_pack([LDD]), {
            'libgloo.so.0': '/lib/libgloo.so.0', 'libibverbs.so.1': '/lib/x86_64-linux-gnu/libibverbs.so.1',
            'libstdc++.so.6': '/lib/x86_64-linux-gnu/libstdc++.so.6'})

    def test_a_library_that_is_missing_here_is_named(self):
        with self.assertRaisesRegex(ValueError, 'libgloo.so.0 is needed'):
            bundling.libraries_to_pack(['\tlibgloo.so.0 => not found\n'])

    def test_what_the_node_should_bring_lies_behind_the_nodes_own_folders(self):
        self.assertEqual([bundling.destination(name) for name in ('libibverbs.so.1', 'libstdc++.so.6', 'libgcc_s.so.1', 'libgomp.so.1')],
                         [bundling.FALLBACK] * 4)
        self.assertEqual(bundling.destination('libgloo.so.0'), '')
        for kind, own in (('program', '$ORIGIN/../lib'), ('test', '$ORIGIN/../../lib'), ('library', '$ORIGIN')):
            folders = bundling.run_path(kind, 'libgloo.so.0' if kind == 'library' else '').split(':')
            self.assertEqual(folders[0], own)
            self.assertLess(folders.index('/usr/lib64'), folders.index(f'{own}/fallback'))

    def test_readelf_tells_what_is_needed_and_the_newest_versions_by_number(self):
        elf = bundling.parse_readelf(READELF)
        self.assertEqual(elf, bundling.Elf(['libcudnn.so.9', 'libc.so.6'], (2, 34), (3, 4, 30)))
        self.assertEqual(bundling.cuda_libraries([elf, bundling.Elf(['libcuda.so.1', 'libnccl.so.2'], (), ())]),
                         ['libcudnn.so.9', 'libnccl.so.2', 'libnvrtc.so.13'])
        self.assertEqual(bundling.version_text(elf.glibc), '2.34')

    def test_gpu_binaries_are_sorted_into_parts_and_helpers_are_left_out(self):
        query = ('cc_test rule //worker_runtime/ops/cuda:kernels_test\ncc_test rule //worker_runtime/comm/nccl:nccl_test\n'
                 'cc_binary rule //worker_runtime/ops/cuda:kernels_bench\ncc_binary rule //worker_runtime/comm/nccl:helper_main\n')
        found = bundling.gpu_binaries(query)
        self.assertEqual([(binary.label, binary.kind, binary.part) for binary in found], [
            ('//worker_runtime/comm/nccl:nccl_test', 'test', 'layouts'), ('//worker_runtime/ops/cuda:kernels_bench', 'bench', ''),
            ('//worker_runtime/ops/cuda:kernels_test', 'test', 'ops')])
        self.assertEqual(found[0].file_name, 'worker_runtime-comm-nccl-nccl_test')


class OtherNamesTest(unittest.TestCase):

    def test_torchrun_and_convened_are_the_launcher_beside_them_wherever_the_bundle_is(self):
        with tempfile.TemporaryDirectory() as folder:
            bundle.link_other_names(folder)
            for name in ('torchrun', 'convened'):
                self.assertEqual(os.readlink(os.path.join(folder, name)), 'convene')
            self.assertIn('convene', bundle.PROGRAMS)


class FindCudaTest(unittest.TestCase):
    WHEELS = {'/site/nvidia/cu13/lib': ['libcublas.so.13', 'libcublasLt.so.13'], '/site/nvidia/nccl/lib': ['libnccl.so.2']}

    def test_what_the_loader_knows_needs_no_folder(self):
        self.assertEqual(find_cuda.choose(['libnccl.so.2'], ['libnccl.so.2'], self.WHEELS), ([], []))

    def test_each_folder_of_the_wheels_is_added_once(self):
        self.assertEqual(find_cuda.choose(['libcublas.so.13', 'libcublasLt.so.13', 'libnccl.so.2'], [], self.WHEELS),
                         (['/site/nvidia/cu13/lib', '/site/nvidia/nccl/lib'], []))

    def test_a_toolkit_that_only_the_programs_know_is_added_for_what_libraries_load_by_name(self):
        with mock.patch.object(find_cuda, 'names_in', {'/usr/local/cuda/lib64': ['libcudnn.so.9', 'libnvrtc.so.13']}.get), \
                mock.patch.object(find_cuda, 'package_folders', list), mock.patch.object(find_cuda.subprocess, 'run', side_effect=OSError):
            chosen = find_cuda.choose(['libcudnn.so.9', 'libnvrtc.so.13'], find_cuda.loader_knows(''), find_cuda.folders_to_add())
        self.assertEqual(chosen, (['/usr/local/cuda/lib64'], []))

    def test_what_is_nowhere_is_named(self):
        self.assertEqual(find_cuda.choose(['libcudnn.so.9', 'libnccl.so.2'], [], self.WHEELS), (['/site/nvidia/nccl/lib'], ['libcudnn.so.9']))

    def test_ldconfig_is_read_but_a_file_that_has_gone_is_not_believed(self):
        text = '3 libs found in cache\n\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/libnccl.so.2\n\tlibcudnn.so.9 (libc6,x86-64) => /gone/libcudnn.so.9\n'
        self.assertEqual(find_cuda.loader_libraries(text, lambda path: path.startswith('/usr')), ['libnccl.so.2'])


if __name__ == '__main__':
    unittest.main()
