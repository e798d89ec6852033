"""Each object of nvcc holds machine code for every card of Bazel's --define=cuda_archs, and PTX of the last: what cards.h is told.

The fields are those of the "fatbin" that nvcc embeds (cuda-fatbin-decompression, https://github.com/n-eiling/cuda-fatbin-decompression): a header
of 16 bytes with its own and the entries' size; of each entry its kind, sizes, and at byte 28 its compute capability times ten.
"""

import os
import struct
import sys
import unittest
from typing import Dict, List

ARCHS = [int(arch) for arch in sys.argv.pop(1).split(',')]
_MAGIC = struct.pack('<I', 0xBA55ED50)
_KINDS = {1: 'PTX', 2: 'machine code'}


def archs_of(data: bytes) -> Dict[str, List[int]]:
    """The cards of each kind of code, in an object's order."""
    found: Dict[str, List[int]] = {kind: [] for kind in _KINDS.values()}
    begin = data.find(_MAGIC)
    while begin >= 0:
        header_bytes, bytes_left = struct.unpack_from('<HQ', data, begin + 6)
        entry = begin + header_bytes
        end = entry + bytes_left
        while entry < end:
            kind, entry_header_bytes, code_bytes = struct.unpack_from('<H2xIQ', data, entry)
            found[_KINDS[kind]] += struct.unpack_from('<I', data, entry + 28)
            entry += entry_header_bytes + code_bytes
        begin = data.find(_MAGIC, end)
    return found


class ArchsTest(unittest.TestCase):

    def test_every_object_has_code_for_every_card_of_the_build(self) -> None:
        objects = [os.path.join(folder, name) for folder, _, names in os.walk('.') for name in names if name.endswith('.cu.o')]
        self.assertGreaterEqual(len(objects), 9)
        for path in objects:
            with self.subTest(path), open(path, 'rb') as file:
                found = archs_of(file.read())
                self.assertEqual(sorted(found['machine code']), sorted(ARCHS))
                self.assertEqual(found['PTX'], ARCHS[-1:])


if __name__ == '__main__':
    unittest.main()
