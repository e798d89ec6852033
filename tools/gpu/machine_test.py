#!/usr/bin/python3
"""Which GPUs gpu_check uses, and what it learns of the machine, without a GPU. tools/check runs it."""

import os
import subprocess
import sys
import unittest
from unittest import mock

sys.dont_write_bytecode = True
import gpu_check  # noqa: E402  (the line above keeps __pycache__ out of the tree)
import machine  # noqa: E402


class MachineTest(unittest.TestCase):
    def test_what_does_not_answer_in_time_ends_nothing_without_a_word(self):
        with mock.patch.object(machine.subprocess, 'run', side_effect=subprocess.TimeoutExpired('x', 1)):
            self.assertEqual(machine.needed_libraries(['/bin/sh'], {}), ({}, ['sh']))
            with self.assertRaisesRegex(RuntimeError, 'find_cuda'):
                machine.environment('/bundle', '0')

    def test_the_gpus_that_this_process_was_given_are_the_ones_that_are_used(self):
        def seen(given, *arguments):
            found = subprocess.CompletedProcess([], 0, '/cuda\n', '')
            with mock.patch.dict(os.environ, {'CUDA_VISIBLE_DEVICES': given}), mock.patch.object(machine.subprocess, 'run', return_value=found) as run:
                gpus = gpu_check.parse_arguments(['ops', *arguments]).gpu
                variables = machine.environment('/bundle', gpus)
                machine.smi(machine.first_gpu(gpus), 'name')
                return variables['CUDA_VISIBLE_DEVICES'], variables.get('CUDA_DEVICE_ORDER'), run.call_args.args[0][2]
        with mock.patch.dict(os.environ):
            os.environ.pop('CUDA_DEVICE_ORDER', None)
            self.assertEqual(seen('5'), ('5', None, '5'))
            self.assertEqual(seen('GPU-8932f937,GPU-1'), ('GPU-8932f937,GPU-1', None, 'GPU-8932f937'))
            self.assertEqual(seen('5', '--gpu', '2,3'), ('2,3', 'PCI_BUS_ID', '2'))
            self.assertEqual(seen(''), ('0', 'PCI_BUS_ID', '0'))

    def test_pytorch_keeps_its_own_library_path(self):
        ours = {'LD_LIBRARY_PATH': '/cuda', 'CUDA_VISIBLE_DEVICES': '0'}
        with mock.patch.dict(os.environ, {'LD_LIBRARY_PATH': '/theirs'}):
            self.assertEqual(machine.torch_environment(ours), {'LD_LIBRARY_PATH': '/theirs', 'CUDA_VISIBLE_DEVICES': '0'})
        with mock.patch.dict(os.environ):
            os.environ.pop('LD_LIBRARY_PATH', None)
            self.assertEqual(machine.torch_environment(ours), {'CUDA_VISIBLE_DEVICES': '0'})


if __name__ == '__main__':
    unittest.main()
