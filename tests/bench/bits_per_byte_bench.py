#!/usr/bin/env python3
"""llama-15m on this machine's manual pages, by bytes and by Llama 3's tokens, at equal bytes seen: the loss a token and bits a byte of held-out text.

usage: tests/bench/bits_per_byte_bench.py [--tokenizer PATH] [--megabytes N] [--corpus-megabytes N] [--validation-megabytes N] [--batch N]
       [--sequence N] [--seed N] [--programs BAZEL_BIN]
The tokenizer's vocabulary is cut to what the text uses (`convene data prepare --compact-vocabulary`). Without --tokenizer it is Llama 3's, which
tools/tokenizer_environment fetches. The text is that of the pages in /usr/share/man, each a document, in an order that the seed gives. A token
stands for several bytes, so the tokenizer's run has as many fewer steps; both see --megabytes of text.
Fails where the tokenizer's bits a byte are not the lower ones.
"""

import argparse
import glob
import gzip
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from typing import List, NamedTuple

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import launch_bench  # noqa: E402  (the line above keeps __pycache__ out of the tree)

LLAMA3 = os.path.expanduser('~/.cache/convene/tokenizers/vocabularies/llama3/tokenizer.model')
# llama-15m's, without its vocabulary of bytes.
SHAPE = ['--layers', '8', '--hidden-size', '384', '--ffn-size', '1024', '--heads', '8', '--kv-heads', '8', '--head-size', '48']


class Outcome(NamedTuple):
    loss: float
    bits_per_byte: float
    seconds: float


def write_corpus(folder: str, megabytes: float, seed: int) -> int:
    """The pages as JSON lines; returns the bytes of their text."""
    pages = sorted(glob.glob('/usr/share/man/man*/*.gz'))
    random.Random(seed).shuffle(pages)
    path, size = os.path.join(folder, 'manual.jsonl'), 0
    with open(path, 'w', encoding='utf-8') as file:
        for page in pages:
            with gzip.open(page, 'rt', encoding='utf-8', errors='replace') as text:
                content = text.read()
            if content.startswith('.so '):
                continue
            file.write(json.dumps({'text': content}, ensure_ascii=False) + '\n')
            size += len(content.encode())
            if size >= megabytes * 1e6:
                break
    return size


def run(command: List[str]) -> str:
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f'bits_per_byte_bench: {" ".join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}')
    return done.stdout


def train(arguments: argparse.Namespace, folder: str, data: str, steps: int) -> Outcome:
    metrics = os.path.join(folder, 'metrics.jsonl')
    started = time.monotonic()
    run([os.path.join(arguments.programs, 'worker_runtime/trainer/convene-train'), '--data', data, *SHAPE, '--steps', str(steps), '--seed',
         str(arguments.seed), '--global-batch-size', str(arguments.batch), '--micro-batch-size', str(arguments.batch), '--sequence-length',
         str(arguments.sequence), '--validation-every', '0', '--validation-fraction',
         str(arguments.validation_megabytes / arguments.corpus_megabytes), '--validation-samples', str(10**9), '--metrics-file', metrics,
         '--device', 'cpu'])
    with open(metrics, encoding='utf-8') as file:
        last = [line for line in map(json.loads, file) if 'validation_loss' in line][-1]
    return Outcome(last['validation_loss'], last['bits_per_byte'], time.monotonic() - started)


def train_on(arguments: argparse.Namespace, folder: str, text_bytes: int, name: str, tokenizer: List[str]) -> Outcome:
    data = os.path.join(folder, 'tokens.bin')
    said = run([os.path.join(arguments.programs, 'launcher/convene'), 'data', 'prepare', *tokenizer, '--output', data,
                os.path.join(folder, 'manual.jsonl')])
    found = re.search(r'([0-9,]+) tokens of a vocabulary of ([0-9,]+),', said)
    assert found is not None, said
    bytes_per_token = text_bytes / int(found[1].replace(',', ''))
    steps = max(10, round(arguments.megabytes * 1e6 / bytes_per_token / (arguments.batch * arguments.sequence)))
    outcome = train(arguments, folder, data, steps)
    print(f'{name}: vocabulary {found[2]}, {bytes_per_token:.2f} bytes a token, {steps} steps, validation loss {outcome.loss:.4f} a token, '
          f'{outcome.bits_per_byte * math.log(2):.4f} a byte, {outcome.bits_per_byte:.4f} bits a byte, {outcome.seconds:.0f} s', flush=True)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--tokenizer', default=LLAMA3)
    parser.add_argument('--programs', metavar='BAZEL_BIN', help='the folder of the programs; built where it is not given')
    parser.add_argument('--megabytes', type=float, default=2)
    parser.add_argument('--corpus-megabytes', type=float, default=20)
    parser.add_argument('--validation-megabytes', type=float, default=0.1)
    parser.add_argument('--batch', type=int, default=4)
    parser.add_argument('--sequence', type=int, default=256)
    parser.add_argument('--seed', type=int, default=1)
    arguments = parser.parse_args()
    if not os.path.exists(arguments.tokenizer):
        sys.exit(f'bits_per_byte_bench: no {arguments.tokenizer}: tools/tokenizer_environment fetches it, or give --tokenizer')
    if arguments.programs is None:
        arguments.programs = launch_bench.build('//launcher:convene', '//worker_runtime/trainer:convene-train')
    with tempfile.TemporaryDirectory() as folder:
        text_bytes = write_corpus(folder, arguments.corpus_megabytes, arguments.seed)
        by_bytes = train_on(arguments, folder, text_bytes, 'bytes', ['--tokenizer', 'byte'])
        by_tokens = train_on(arguments, folder, text_bytes, 'tokens', ['--tokenizer', arguments.tokenizer, '--compact-vocabulary'])
    share = 1 - by_tokens.bits_per_byte / by_bytes.bits_per_byte
    print(f'after {arguments.megabytes} MB of text: {by_bytes.bits_per_byte:.4f} bits a byte by bytes, {by_tokens.bits_per_byte:.4f} by tokens, '
          f'{share:.1%} less')
    return 0 if by_tokens.bits_per_byte < by_bytes.bits_per_byte else 1


if __name__ == '__main__':
    sys.exit(main())
