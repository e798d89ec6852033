"""A small part of parity.py, and strings whose ids are known; skips without the originals (tools/tokenizer_environment fetches them)."""

import os
import struct
import subprocess
import unittest

from tests.support import tokenizer_environment
from tests.support.convene_testing import find_program

HERE = os.path.dirname(os.path.abspath(__file__))
ENCODE = "worker_runtime/tokenizer/testing/encode_main"
VOCABULARIES = {"llama3": "llama3", "qwen": "qwen", "gpt2": "gpt2", "o200k": "o200k", "tekken": "tekken_240911", "deepseek": "deepseek_v4",
                "mistral_v1": "mistral_v1"}
# Each string is a trap: whole pieces, normalisation, capitals, digits, spaces at the end, marks, characters cut into bytes.
STRINGS = [
    (" jeho", [101503], [502, 2636, 78], [11223, 8873], [55225], [22437], [49135], [28705, 25769]),
    ("cafe\u0301", [936, 1897, 54939], [924, 58858], [66, 8635, 136, 223], [66, 6903, 13430], [3173, 3070, 1204, 1129], [69, 15702, 17793],
     [7913, 1512, 28949]),
    ("I'LL I'll", [40, 6, 4178, 358, 3358], [40, 6, 4086, 358, 3278], [40, 6, 3069, 314, 1183], [40, 6, 7454, 17291],
     [1073, 1039, 23947, 1362, 7534], [43, 9, 3699, 342, 5922], [315, 28742, 5292, 315, 28742, 584]),
    ("a  b   ", [64, 220, 293, 262], [64, 220, 293, 262], [64, 220, 275, 220, 220, 220], [64, 220, 287, 271], [1097, 1032, 1289, 1293],
     [67, 223, 291, 361], [264, 28705, 287, 2287]),
    ("a \n\n b", [64, 4815, 293], [64, 4710, 293], [64, 220, 628, 275], [64, 1202, 287], [1097, 1032, 1267, 1289], [67, 1004, 291],
     [264, 28705, 13, 13, 287]),
    ("a  1", [64, 220, 220, 16], [64, 220, 220, 16], [64, 220, 352], [64, 220, 220, 16], [1097, 1032, 1032, 1049], [67, 262, 19],
     [264, 259, 28740]),
    ("🦙", [9468, 99, 247], [149955], [8582, 99, 247], [4103, 99, 247], [1240, 1159, 1166, 1153], [3574, 102, 250], [28705, 243, 162, 169, 156]),
    ("///\n/x", [15735, 11009], [15374, 10776], [20379, 198, 14, 87], [73672, 14, 87], [95172, 1047, 1120], [835, 4253, 27684],
     [1954, 13, 28748, 28744]),
    ("  hello", [220, 24748], [220, 23811], [220, 23748], [220, 40617], [1032, 52528], [223, 44388], [259, 6312, 28709]),
]


def setUpModule():
    if not tokenizer_environment.vocabulary("llama3/tokenizer.model") or not os.path.exists(tokenizer_environment.PYTHON):
        why = f"SKIPPED: no tokenizers of others in {tokenizer_environment.CACHE} (tools/tokenizer_environment fetches them)"
        print(why, flush=True)
        raise unittest.SkipTest(why)


def encode(vocabulary, texts):
    data = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    output = subprocess.run([find_program(ENCODE), "encode", vocabulary], input=data, stdout=subprocess.PIPE, check=True, timeout=120).stdout
    ids, at = [], 0
    while at < len(output):
        count, = struct.unpack_from("<I", output, at)
        ids.append(list(struct.unpack_from(f"<{count}i", output, at + 4)))
        at += 4 + 4 * count
    return ids


class ParityTest(unittest.TestCase):

    def test_strings_with_known_ids(self):
        for column, (name, folder) in enumerate(VOCABULARIES.items(), 1):
            path = tokenizer_environment.vocabulary(folder)
            if not path:
                print(f"SKIPPED: no vocabulary {folder}")
                continue
            with self.subTest(name):
                self.assertEqual(encode(path, [row[0] for row in STRINGS]), [row[column] for row in STRINGS])

    def test_a_slice_of_random_texts(self):
        # One of each kind: loading an original takes seconds. tools/nightly compares all.
        command = [tokenizer_environment.PYTHON, "-B", os.path.join(HERE, "parity.py"), "--megabytes", "0.2", find_program(ENCODE),
                   tokenizer_environment.VOCABULARIES, "llama3", "tekken_240911", "deepseek_v4", "mistral_v3", "j2"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=280)
        print(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
