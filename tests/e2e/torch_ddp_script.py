"""Data-parallel training as people write it for torchrun; nothing here knows of Convene.

With --crash-rank that worker is killed in the middle of an epoch, in the first attempt only; with --crash-when not before this file exists.
"""

import argparse
import json
import os
import signal
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

GLOBAL_BATCH = 16


def make_dataset():
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(128, 8, generator=generator)
    targets = torch.sin(inputs.sum(dim=1, keepdim=True))
    return TensorDataset(inputs, targets)


def save(path, epoch, model, optimizer):
    torch.save({"epoch": epoch, "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict()}, path + ".tmp")
    os.replace(path + ".tmp", path)


def load(path, model, optimizer):
    if not os.path.exists(path):
        return 0
    state = torch.load(path)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--result", required=True)
    parser.add_argument("--crash-rank", type=int, default=-1)
    parser.add_argument("--crash-when", default=os.path.abspath(__file__))
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    dataset = make_dataset()
    sampler = DistributedSampler(dataset, shuffle=True, seed=3)
    loader = DataLoader(dataset, batch_size=GLOBAL_BATCH // world, sampler=sampler)

    first_epoch = load(arguments.checkpoint, model, optimizer)
    for epoch in range(first_epoch, arguments.epochs):
        sampler.set_epoch(epoch)
        for step, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            if rank == arguments.crash_rank and attempt == 0 and (epoch, step) == (2, 3):
                while not os.path.exists(arguments.crash_when):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            save(arguments.checkpoint, epoch, model, optimizer)
        dist.barrier()

    with torch.no_grad():
        inputs, targets = dataset.tensors
        loss = torch.nn.functional.mse_loss(model(inputs), targets).item()
    if rank == 0:
        with open(arguments.result, "w", encoding="ascii") as out:
            json.dump({"loss": loss, "world": world, "attempt": attempt, "first_epoch": first_epoch}, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
