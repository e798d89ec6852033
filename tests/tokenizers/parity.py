#!/usr/bin/env python3
"""Compares our tokenizers with the programs that the vocabularies come from, on real and random texts.

usage: parity.py PROGRAM VOCABULARIES [--megabytes N] [--seed N] [NAME...]
PROGRAM is //worker_runtime/tokenizer/testing:encode_main. Runs in the environment of tools/tokenizer_environment. Prints the seed, for
each vocabulary a line, and of what differs the shortest text. Exit status: 0 all ids and texts are equal, 1 something differs.
"""

import argparse
import random
import struct
import subprocess
import sys
import time
from typing import List

from originals import Original, originals
from texts import texts

LIMIT_S = 3600


def _records(items: List[bytes]) -> bytes:
    return b''.join(struct.pack('<I', len(item)) + item for item in items)


def _run(program: str, action: str, vocabulary: str, data: bytes) -> bytes:
    done = subprocess.run([program, action, vocabulary], input=data, capture_output=True, check=False, timeout=LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f'parity: {program} {action} {vocabulary}: {done.stderr.decode(errors="replace")}')
    return done.stdout


def our_ids(program: str, vocabulary: str, documents: List[bytes], action: str = 'encode') -> List[List[int]]:
    output = memoryview(_run(program, action, vocabulary, _records(documents)))
    results, at = [], 0
    while at < len(output):
        count, = struct.unpack_from('<I', output, at)
        results.append(list(struct.unpack_from(f'<{count}i', output, at + 4)))
        at += 4 + 4 * count
    return results


def our_texts(program: str, vocabulary: str, ids: List[List[int]]) -> List[str]:
    data = b''.join(struct.pack(f'<I{len(each)}i', len(each), *each) for each in ids)
    output, results, at = _run(program, 'decode', vocabulary, data), [], 0
    while at < len(output):
        size, = struct.unpack_from('<I', output, at)
        results.append(output[at + 4:at + 4 + size].decode('utf-8'))
        at += 4 + size
    return results


def _shortest(program: str, original: Original, document: bytes) -> bytes:
    """A part of the document that still differs, by cutting pieces off while it does."""
    size = len(document) // 2
    while size > 0 and len(document) * (len(document) // size) < 10**7:
        parts = [document[:begin] + document[begin + size:] for begin in range(0, len(document), size)]
        found = our_ids(program, original.vocabulary, parts)
        differing = [part for part, ids in zip(parts, found) if ids != original.encode(part)]
        if differing:
            document = differing[0]
        size = min(size if differing else size // 2, len(document) // 2 or size // 2)
    return document


def compare(program: str, original: Original, documents: List[bytes], seed: int) -> List[str]:
    """The differences, in words."""
    complaints = []
    expected = [original.encode(document) for document in documents]
    found = our_ids(program, original.vocabulary, documents)
    wrong = [i for i, ids in enumerate(expected) if found[i] != ids]
    if wrong:
        smallest = min(wrong, key=lambda i: len(documents[i]))
        short = _shortest(program, original, documents[smallest])
        complaints.append(f'{len(wrong)} of {len(documents)} texts get other ids; for example {short!r}: {original.encode(short)} expected, '
                          f'{our_ids(program, original.vocabulary, [short])[0]} found')
    rng = random.Random(seed)
    id_lists = expected + [[rng.randrange(original.vocabulary_size) for _ in range(rng.randint(0, 8))] for _ in range(20000)]
    decoded = our_texts(program, original.vocabulary, id_lists)
    wrong = [i for i, ids in enumerate(id_lists) if decoded[i] != original.decode(ids)]
    if wrong:
        ids = id_lists[min(wrong, key=lambda i: len(id_lists[i]))]
        complaints.append(f'{len(wrong)} of {len(id_lists)} lists of ids get other texts; for example {ids[:20]}: {original.decode(ids)[:200]!r} '
                          f'expected, {our_texts(program, original.vocabulary, [ids])[0][:200]!r} found')
    return complaints


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('program')
    parser.add_argument('vocabularies')
    parser.add_argument('names', nargs='*')
    parser.add_argument('--megabytes', type=float, default=10)
    parser.add_argument('--seed', type=int, default=int(time.time()))
    arguments = parser.parse_intermixed_args()
    table = originals(arguments.vocabularies)
    names = arguments.names or list(table)
    unknown = [name for name in names if name not in table]
    if unknown:
        print(f'parity: no vocabulary {", ".join(unknown)} here; there are {", ".join(table)}')
        return 64
    documents = list(texts(int(arguments.megabytes * 1e6), arguments.seed))
    print(f'seed {arguments.seed}: {len(documents)} texts of {sum(map(len, documents)):,} bytes', flush=True)
    failures = 0
    for name in names:
        complaints = compare(arguments.program, table[name][1](), documents, arguments.seed)
        failures += bool(complaints)
        print(f'{name}: ' + ('; '.join(complaints) or 'equal'), flush=True)
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
