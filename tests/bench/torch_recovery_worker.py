"""The peer of recovery_bench: a PyTorch DDP program of about llama-tiny's size that saves and resumes, for torchrun to restart.

usage: torchrun ... torch_recovery_worker.py CHECKPOINT METRICS; one JSON line a step: {"step": N, "epoch": restarts}.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HIDDEN = 64
LAYERS = 8
BATCH_TOKENS = 256  # a rank and a step, as recovery_bench gives convene-train


class Block(torch.nn.Module):
    """A transformer block of llama-tiny's sizes, by PyTorch's own layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(HIDDEN, 16, 3 * HIDDEN, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        return self.layer(x)


def main():
    checkpoint, metrics = sys.argv[1:3]
    torch.set_num_threads(1)
    dist.init_process_group('gloo')
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Embedding(256, HIDDEN), *[Block() for _ in range(LAYERS)], torch.nn.Linear(HIDDEN, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        model.load_state_dict(state['model'])
        optimizer.load_state_dict(state['optimizer'])
        first = state['step']
    parallel = DistributedDataParallel(model)
    tokens = torch.randint(0, 256, (BATCH_TOKENS // 32, 33))
    for step in range(first + 1, 100000):
        optimizer.zero_grad()
        logits = parallel(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if dist.get_rank() != 0:
            continue
        if step % 5 == 0:
            torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'step': step}, checkpoint + '.tmp')
            os.replace(checkpoint + '.tmp', checkpoint)
        with open(metrics, 'a', encoding='utf-8') as out:
            out.write(json.dumps({'step': step, 'epoch': int(os.environ['TORCHELASTIC_RESTART_COUNT'])}) + '\n')


main()
