"""A worker of an ordinary job: meets the others by env:// and adds up their ranks over gloo."""

import os

import torch
import torch.distributed as dist

dist.init_process_group('gloo')
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
world = dist.get_world_size()
assert total.item() == world * (world + 1) // 2, total
dist.barrier()
print(f'rank {dist.get_rank()} of {world} on port {os.environ["MASTER_PORT"]} ok', flush=True)
dist.destroy_process_group()
