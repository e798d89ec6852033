"""Parts of the cases of convene.checkpoint: what its log has said, states, and the deeds between two lives of a job."""

import glob
import logging
import os
import sys

import torch
import torch.distributed as dist
from convene.checkpoint import Checkpoint

FOLDER = sys.argv[1]
said = []


class Said(logging.Handler):

    def emit(self, record):
        said.append(record.getMessage())


def words(call, kind):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f'no {kind.__name__}')


def state_of(step, size=1000):
    return {'w': torch.full((size,), float(step)), 'rank': dist.get_rank(), 'nested': [{'step': step, 'b': torch.tensor([True, False])}]}


def begun(name, *arguments, **options):
    checkpoint = Checkpoint(name and os.path.join(FOLDER, name), *arguments, **options)
    return checkpoint, checkpoint.load()


def forget_memory():
    """The machine was lost: nothing stands but the disk."""
    dist.barrier()
    if dist.get_rank() == 0:
        os.truncate(os.environ['CONVENE_MEMORY'], 0)
    dist.barrier()


def new_epoch():
    dist.barrier()
    os.environ['CONVENE_EPOCH'] = str(int(os.environ['CONVENE_EPOCH']) + 1)


def files(name):
    return sorted(glob.glob(f'{FOLDER}/{name}/*rank-{dist.get_rank()}-of-2.state'))
