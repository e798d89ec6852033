"""The peer of fsdp_bench: the Llama of torch_model.py under FSDP2 (fully_shard of each block and of the whole), one process a rank, gloo, on the CPU.

usage: torchrun ... torch_fsdp_worker.py '{"layers": 8, ..., "micro_batch_size": 2, "steps": 8, "data": "text.txt", ...}'
Rank 0 prints one JSON line: seconds and mean loss of each step.
"""

import json
import os
import sys
import time

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.dont_write_bytecode = True
from torch_model import Llama  # noqa: E402  (the line above keeps __pycache__ out of the tree)


def batches(c, rank):
    """Windows of the text, other ones on each rank."""
    with open(c['data'], 'rb') as file:
        tokens = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(c['seed'] + rank)
    length = c['sequence_length'] + 1
    while True:
        starts = torch.randint(0, len(tokens) - length, (c['micro_batch_size'],), generator=generator)
        yield torch.stack([tokens[start:start + length] for start in starts]).to(torch.int64)


def main():
    c = json.loads(sys.argv[1])
    distributed.init_process_group('gloo')
    mesh = init_device_mesh('cpu', (distributed.get_world_size(),))
    torch.manual_seed(c['seed'])
    model = Llama(c)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=c['learning_rate'], betas=(0.9, 0.95), weight_decay=0.1)
    data = batches(c, distributed.get_rank())
    seconds, losses = [], []
    for _ in range(c['steps']):
        started = time.perf_counter()
        tokens = next(data)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        distributed.all_reduce(mean)
        losses.append(mean.item() / distributed.get_world_size())
        seconds.append(time.perf_counter() - started)
    if distributed.get_rank() == 0:
        print(json.dumps({'step_seconds': seconds, 'losses': losses}), flush=True)
    distributed.barrier()
    os._exit(0)  # seen with PyTorch 2.15: gloo's threads may abort a process that ends in order


main()
