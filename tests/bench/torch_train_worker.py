"""The peer of train_bench: a Llama in PyTorch, written as its users would, one process on the CPU, fp32.

usage: torch_train_worker.py '{"layers": 8, ...}'   (train_bench.py's Case as JSON)
Prints one JSON line: the seconds of each step, the last loss, the peak memory.
"""

import json
import resource
import sys
import time

import torch
from torch import nn

sys.dont_write_bytecode = True
from torch_model import Llama  # noqa: E402  (the line above keeps __pycache__ out of the tree)


def main():
    c = json.loads(sys.argv[1])
    torch.manual_seed(1)
    torch.set_num_threads(c['threads'])
    model = Llama(c)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    loss_of = torch.compile(model) if c['compile'] else model
    tokens = torch.randint(0, 256, (c['micro_batch_size'], c['sequence_length'] + 1))
    seconds = []
    for _ in range(c['steps']):
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        last_loss = loss.item()
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({'step_seconds': seconds, 'loss': last_loss, 'peak_bytes': peak}))


main()
