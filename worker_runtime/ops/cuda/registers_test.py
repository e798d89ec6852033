"""The registers of the kernels whose geometry counts on them (launch_geometry.h, RowsResidentThreads), as ptxas gave them out.

A compiler that takes other numbers fails here: measure the kernel's speed (kernels_bench), then write the new numbers into
registers.txt.
"""

import re
import subprocess
import unittest
from typing import Dict

FOLDER = 'worker_runtime/ops/cuda'


def registers(ptxas: str) -> Dict[str, int]:
    """Of each kernel for sm_90 by its name, such as "RowsInRegisters<float, 1>"."""
    text = subprocess.run(['c++filt'], input=ptxas, check=True, capture_output=True, text=True).stdout
    found = re.findall(r"Compiling entry function '(.*?)' for 'sm_90'.*?Used (\d+) registers", text, re.DOTALL)
    found = [(name.split('::cuda::', 1)[1].replace('(anonymous namespace)::', '', 1), count) for name, count in found]
    return {name.split('(', 1)[0].replace('convene::worker::', ''): int(count) for name, count in found}


class RegistersTest(unittest.TestCase):

    def test_ptxas_gives_the_kernels_the_registers_that_their_geometry_counts_on(self) -> None:
        with open(f'{FOLDER}/_objs/kernels_objects/rms_norm_backward.cu.ptxas.txt', encoding='utf-8') as file:
            used = registers(file.read())
        if not used:
            self.skipTest('SKIPPED: built without machine code for sm_90')
        with open(f'{FOLDER}/registers.txt', encoding='utf-8') as file:
            golden = dict(line.rsplit(' ', 1) for line in file.read().splitlines() if not line.startswith('#'))
        self.assertEqual(used, {name: int(count) for name, count in golden.items()})


if __name__ == '__main__':
    unittest.main()
