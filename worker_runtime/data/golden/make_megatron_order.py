#!/usr/bin/env python3
"""Writes megatron_order.txt: the samples of megatron-core's own GPTDataset, for megatron_order_test.

usage: make_megatron_order.py OUTPUT, with a Python that has torch, numpy and megatron-core (pip install --no-deps megatron-core packaging; the
file here is 0.16.1's).

Each line is a case: seed, T, samples asked for, sequences, the seed of their lengths, the longest; then what came out: the number of
samples, the FNV-1a hash of all samples' tokens in their order, and the first token of each of the first samples. Token number k of sequence
s is 1000 * s + k, so that a token tells where it comes from. Lengths come from a linear congruential generator that the test has too.
"""

import os
import sys
import tempfile

import numpy
import torch
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.utils import Split

# seed, T, samples, sequences, lengths' seed, longest
CASES = [
    (1234, 16, 10, 100, 1, 30),  # less than an epoch
    (1234, 16, 90, 100, 1, 30),  # one epoch
    (1234, 16, 100, 100, 1, 30),  # a second epoch, apart
    (1234, 16, 180, 100, 1, 30),  # a second epoch, not apart
    (0, 16, 1000, 100, 1, 30),  # many epochs
    (1, 16, 1000, 100, 1, 30),
    (4294967295, 7, 500, 33, 2, 60),
    (42, 128, 300, 10, 3, 900),  # sequences longer than a sample
    (42, 64, 40, 400, 4, 3),  # samples of many sequences, some of them empty
    (7, 33, 77, 1, 5, 800),  # one sequence
    (2024, 50, 2000, 700, 6, 200),
]


class Tokenizer:
    unique_identifiers = {'class': 'none'}
    eod = 0
    pad = -1
    vocab_size = 2**30


def lengths_of(count: int, seed: int, longest: int):
    state = seed
    lengths = []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        lengths.append((state >> 33) % (longest + 1))
    return lengths


def fnv(values, start: int = 0xcbf29ce484222325) -> int:
    hash_ = start
    for value in values:
        for byte in int(value).to_bytes(4, 'little'):
            hash_ = (hash_ ^ byte) * 0x100000001b3 % 2**64
    return hash_


def dataset_of(folder: str, case):
    seed, length, samples, sequences, lengths_seed, longest = case
    prefix = os.path.join(folder, 'x')
    builder = IndexedDatasetBuilder(prefix + '.bin', dtype=numpy.int32)
    for sequence, tokens in enumerate(lengths_of(sequences, lengths_seed, longest)):
        builder.add_document(torch.tensor([1000 * sequence + k for k in range(tokens)], dtype=torch.int32), [tokens])
    builder.finalize(prefix + '.idx')
    config = GPTDatasetConfig(random_seed=seed, sequence_length=length, blend=None, split='1', path_to_cache=os.path.join(folder, 'cache'),
                              tokenizer=Tokenizer(), reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False)
    indexed = IndexedDataset(prefix, multimodal=False, mmap=True)
    indices = numpy.arange(sequences, dtype=numpy.int32)
    return GPTDataset(indexed, prefix, indices, samples, Split.train, config)


def line_of(case) -> str:
    with tempfile.TemporaryDirectory() as folder:
        dataset = dataset_of(folder, case)
        hash_ = 0xcbf29ce484222325
        firsts = []
        for index in range(len(dataset)):
            text, _ = dataset._query_document_sample_shuffle_indices(index)
            hash_ = fnv(text, hash_)
            firsts.append(int(text[0]))
        return ' '.join(map(str, [*case, len(dataset), hash_, *firsts[:4]]))


def main() -> None:
    with open(sys.argv[1], 'w', encoding='utf-8') as file:
        for case in CASES:
            file.write(line_of(case) + '\n')


if __name__ == '__main__':
    main()
