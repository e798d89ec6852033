#!/usr/bin/env python3
"""Writes the small files of other programs that foreign_formats_test reads and convert_test writes again, with these programs' own code.

usage: make_foreign_files.py FOLDER, with a Python that has torch, numpy, megatron-core and datatrove (the files here are those of
megatron-core 0.16.1 and datatrove 0.10.1).

The documents are [5, 4, 3], none, [2], [N, 1] with N = 49999 in two bytes, 128255 in four; of nanotron's the first and third tokens count.
"""

import os
import sys

import numpy
import torch
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder


def documents(largest: int):
    return [[5, 4, 3], [], [2], [largest, 1]]


def megatron(prefix: str, dtype, largest: int) -> None:
    builder = IndexedDatasetBuilder(prefix + '.bin', dtype=dtype)
    for tokens in documents(largest):
        builder.add_document(torch.tensor(tokens, dtype=torch.int64), [len(tokens)])
    builder.finalize(prefix + '.idx')


def nanotron(folder: str, name: str, token_size: int, largest: int) -> None:
    file = TokenizedFile(folder, name, save_loss_metadata=True, tokenizer_name_or_path='gpt2', save_final_metadata=True,
                         token_size=token_size)
    for tokens in documents(largest):
        file.write(tokens, numpy.array([(i % 2 == 0) for i in range(len(tokens))]))
    file.close()


def main() -> None:
    folder = sys.argv[1]
    megatron(os.path.join(folder, 'megatron16'), numpy.uint16, 49999)
    megatron(os.path.join(folder, 'megatron32'), numpy.int32, 128255)
    nanotron(folder, 'nanotron16.ds', 2, 49999)
    nanotron(folder, 'nanotron32.ds', 4, 128255)


if __name__ == '__main__':
    main()
