#!/usr/bin/python3
"""Tokenizers on one thread: ours beside Hugging Face's tokenizers, tiktoken and SentencePiece, over real vocabularies.

usage: tests/bench/tokenizer_bench.py [--megabytes 5] [--rounds 5] [NAME...]
Needs tools/tokenizer_environment. The rivals run in turns over the same real texts of this machine (documentation and code, then one text of
many scripts); both sides are asked for the ids of the same documents, and give the same number of tokens. Prints medians, ratios, and for each
vocabulary the time of words of 1 and of 10 MB, which must grow like the length.
"""

import argparse
import os
import statistics
import struct
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, 'tests/support'))
sys.path.insert(0, os.path.join(ROOT, 'tests/tokenizers'))
import tokenizer_environment  # noqa: E402  (the lines above found the way)

NAMES = ['gpt2_json', 'gpt2', 'llama3', 'o200k', 'qwen', 'tekken_240911', 'deepseek_v4', 'mistral_v3', 'j2']


def in_environment() -> None:
    """Goes on in the originals' Python, on one thread."""
    if sys.prefix == os.path.dirname(os.path.dirname(tokenizer_environment.PYTHON)):
        return
    if not tokenizer_environment.has_programs():
        sys.exit('tokenizer_bench: no tokenizers of others here: run tools/tokenizer_environment')
    environment = {**os.environ, 'RAYON_NUM_THREADS': '1', 'TOKENIZERS_PARALLELISM': 'false', 'OMP_NUM_THREADS': '1'}
    os.execve(tokenizer_environment.PYTHON, [tokenizer_environment.PYTHON, *sys.argv], environment)


def records(documents) -> bytes:
    return b''.join(struct.pack('<I', len(document)) + document for document in documents)


def ours(program: str, vocabulary: str, documents):
    """Seconds and tokens."""
    output = subprocess.run([program, 'bench', vocabulary], input=records(documents), stdout=subprocess.PIPE, check=True).stdout.split()
    return float(output[2]), int(output[1])


def theirs(original, documents):
    begin = time.perf_counter()
    tokens = sum(len(original.encode(document)) for document in documents)
    return time.perf_counter() - begin, tokens


def corpora(size: int):
    from texts import real_texts, sentence  # pylint: disable=import-outside-toplevel
    import random  # pylint: disable=import-outside-toplevel
    rng = random.Random(1)
    documents, done = [], 0
    for document in real_texts(rng):
        if b'\0' not in document and done < size:
            text = document.decode('utf-8', errors='replace').encode()
            documents.append(text)
            done += len(text)
    scripts, done = [], 0
    while done < size / 5:
        scripts.append(''.join(sentence(rng) for _ in range(50)).encode())
        done += len(scripts[-1])
    return {'documentation and code': documents, 'random words of many scripts': scripts}


def main() -> int:
    in_environment()
    from originals import originals  # pylint: disable=import-outside-toplevel
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('names', nargs='*', default=NAMES)
    parser.add_argument('--megabytes', type=float, default=5)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--program', default='')
    arguments = parser.parse_intermixed_args()
    program = arguments.program
    if not program:
        subprocess.run(['bazel', 'build', '//worker_runtime/tokenizer/testing:encode_main'], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
        bazel_bin = subprocess.run(['bazel', 'info', 'bazel-bin'], cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL).stdout.strip()
        program = os.path.join(bazel_bin, 'worker_runtime/tokenizer/testing/encode_main')
    table = originals(tokenizer_environment.VOCABULARIES)
    texts = corpora(int(arguments.megabytes * 1e6))
    print(f'load {os.getloadavg()[0]:.1f}; MB/s of one thread, medians of {arguments.rounds}')
    for name in arguments.names:
        original = table[name][1]()
        for kind, documents in texts.items():
            size = sum(map(len, documents))
            seconds = [], []
            for _ in range(arguments.rounds):
                mine, count = ours(program, original.vocabulary, documents)
                other, expected = theirs(original, documents)
                if count != expected:
                    sys.exit(f'tokenizer_bench: {name}: {count} tokens, but the original makes {expected}')
                seconds[0].append(mine)
                seconds[1].append(other)
            mine, other = statistics.median(seconds[0]), statistics.median(seconds[1])
            print(f'{name:14} {kind:29} ours {size / mine / 1e6:7.2f}   {original.program:13} {size / other / 1e6:6.2f}   ratio {other / mine:6.2f}',
                  flush=True)
        words = [ours(program, original.vocabulary, [b'ab' * (length // 2)])[0] for length in (1_000_000, 10_000_000)]
        print(f'{name:14} one word of 1 MB: {words[0]:.2f} s, of 10 MB: {words[1]:.2f} s', flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
