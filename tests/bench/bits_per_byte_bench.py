#!/usr/bin/env python3
"""llama-15m on this machine's manual pages, by bytes and by a real tokenizer, at equal bytes seen: bits a byte of the held-out text.

usage: tests/bench/bits_per_byte_bench.py [--tokenizer PATH] [--megabytes N] [--corpus-megabytes N] [--validation-megabytes N] [--batch N]
       [--sequence N] [--seed N] [--trainer CONVENE_TRAIN]
Without --tokenizer it is GPT-2's, which tools/tokenizer_environment fetches. The text is that of the pages in /usr/share/man, each a document, in
an order that the seed gives. A token stands for several bytes, so the tokenizer's run has as many fewer steps; both see --megabytes of text.
Fails where the tokenizer's bits a byte are not the lower ones.
"""

import argparse
import glob
import gzip
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import launch_bench  # noqa: E402  (the line above keeps __pycache__ out of the tree)

GPT2 = os.path.expanduser('~/.cache/convene/tokenizers/vocabularies/gpt2/gpt2.tiktoken')
# llama-15m's, without its vocabulary of bytes.
SHAPE = ['--layers', '8', '--hidden-size', '384', '--ffn-size', '1024', '--heads', '8', '--kv-heads', '8', '--head-size', '48']


class Outcome(NamedTuple):
    steps: int
    loss: float
    bits_per_byte: float
    seconds: float


def write_corpus(folder: str, megabytes: float, seed: int) -> None:
    """The pages as JSON lines."""
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


def train(arguments: argparse.Namespace, folder: str, tokenizer: str, steps: int, validation_samples: int) -> Outcome:
    metrics = os.path.join(folder, 'metrics.jsonl')
    command = [arguments.trainer, '--data', os.path.join(folder, 'manual.jsonl'), '--tokenizer', tokenizer, *SHAPE, '--steps', str(steps),
               '--seed', str(arguments.seed), '--token-cache-dir', os.path.join(folder, 'tokens'), '--global-batch-size', str(arguments.batch),
               '--micro-batch-size', str(arguments.batch), '--sequence-length', str(arguments.sequence), '--validation-every', '0',
               '--validation-fraction', str(arguments.validation_megabytes / arguments.corpus_megabytes), '--validation-samples',
               str(validation_samples), '--metrics-file', metrics, '--device', 'cpu']
    started = time.monotonic()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f'bits_per_byte_bench: {" ".join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}')
    with open(metrics, encoding='utf-8') as file:
        last = [line for line in map(json.loads, file) if 'validation_loss' in line][-1]
    return Outcome(steps, last['validation_loss'], last['bits_per_byte'], time.monotonic() - started)


def train_on(arguments: argparse.Namespace, folder: str, tokenizer: str) -> Outcome:
    # The loss a token and the bits a byte of any model tell how many bytes a token has.
    probe = train(arguments, folder, tokenizer, 1, 64)
    bytes_per_token = probe.loss / math.log(2) / probe.bits_per_byte
    steps = max(10, round(arguments.megabytes * 1e6 / bytes_per_token / (arguments.batch * arguments.sequence)))
    outcome = train(arguments, folder, tokenizer, steps, 10**9)
    print(f'{tokenizer}: {bytes_per_token:.2f} bytes a token, {steps} steps, validation loss {outcome.loss:.4f} a token, '
          f'{outcome.bits_per_byte:.4f} bits a byte, {outcome.seconds:.0f} s', flush=True)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--tokenizer', default=GPT2)
    parser.add_argument('--trainer', help='convene-train; built where it is not given')
    parser.add_argument('--megabytes', type=float, default=2)
    parser.add_argument('--corpus-megabytes', type=float, default=20)
    parser.add_argument('--validation-megabytes', type=float, default=0.1)
    parser.add_argument('--batch', type=int, default=4)
    parser.add_argument('--sequence', type=int, default=256)
    parser.add_argument('--seed', type=int, default=1)
    arguments = parser.parse_args()
    if not os.path.exists(arguments.tokenizer):
        sys.exit(f'bits_per_byte_bench: no {arguments.tokenizer}: tools/tokenizer_environment fetches it, or give --tokenizer')
    if arguments.trainer is None:
        programs = launch_bench.build('//worker_runtime/trainer:convene-train')
        arguments.trainer = os.path.join(programs, 'worker_runtime/trainer/convene-train')
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(folder, arguments.corpus_megabytes, arguments.seed)
        by_bytes = train_on(arguments, folder, 'byte')
        by_tokens = train_on(arguments, folder, arguments.tokenizer)
    print(f'bits a byte after {arguments.megabytes} MB: {by_bytes.bits_per_byte:.4f} by bytes, {by_tokens.bits_per_byte:.4f} by the tokenizer')
    return 0 if by_tokens.bits_per_byte < by_bytes.bits_per_byte else 1


if __name__ == '__main__':
    sys.exit(main())
