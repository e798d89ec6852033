"""Data-parallel training that keeps its state by convene.checkpoint after each step.

With --dies rank 1 is killed twice: in the first attempt within the save of step 6, in the second behind the save of step 8.
With --replicas 1 nothing is written to disk; in the first life rank 1 rests behind the save of step 6, until its node is killed.
"""

import argparse
import json
import os
import shutil
import signal
import time

import torch
import torch.distributed as dist
from convene.checkpoint import Checkpoint
from torch.nn.parallel import DistributedDataParallel

STEPS = 9


def die(folder):
    """No file is left to load from."""
    shutil.rmtree(os.path.join(folder, 'states'))
    os.kill(os.getpid(), signal.SIGKILL)


def die_within_save(folder):
    """At the third tensor that is copied, when the other rank's copy stands."""
    copy, left = torch.Tensor.copy_, [3]

    def copy_or_die(self, *arguments):
        left[0] -= 1
        if left[0] == 0:
            while not os.path.exists(os.path.join(folder, 'stands')):
                time.sleep(0.01)
            die(folder)
        return copy(self, *arguments)

    torch.Tensor.copy_ = copy_or_die


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--folder', required=True)
    parser.add_argument('--dies', action='store_true')
    parser.add_argument('--replicas', type=int, default=0)
    arguments = parser.parse_args()
    dist.init_process_group('gloo')
    rank = dist.get_rank()
    attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT']) if arguments.dies else 2
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(rank)

    checkpoint = Checkpoint(None if arguments.replicas else os.path.join(arguments.folder, 'states'), replicas=arguments.replicas)
    first, losses, starts = 0, {}, []
    found = checkpoint.load()
    if found is not None:
        first, state = found
        model.module.load_state_dict(state['model'])
        optimizer.load_state_dict(state['optimizer'])
        losses, starts = state['losses'], state['starts'] + [first]
        torch.set_rng_state(state['random'])
    for step in range(first + 1, STEPS + 1):
        inputs = torch.randn(16, 8)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), torch.sin(inputs.sum(dim=1, keepdim=True)))
        loss.backward()
        optimizer.step()
        losses[step] = loss.item()
        if (attempt, step, rank) == (0, 6, 1):
            die_within_save(arguments.folder)
        assert checkpoint.save({'model': model.module.state_dict(), 'optimizer': optimizer.state_dict(), 'losses': losses,
                                'starts': starts, 'random': torch.get_rng_state()}, step)
        if (attempt, step) == (0, 6):
            open(os.path.join(arguments.folder, 'stands'), 'w', encoding='ascii').close()
        if arguments.replicas and not starts and (step, rank) == (6, 1):
            checkpoint.wait()
            open(os.path.join(arguments.folder, 'rests'), 'w', encoding='ascii').close()
            time.sleep(600)
        if (attempt, step) == (1, 8):
            checkpoint.wait()
            dist.barrier()
            if rank == 1:
                die(arguments.folder)
    checkpoint.wait()
    weights = sum(p.double().sum().item() for p in model.parameters())
    with open(os.path.join(arguments.folder, f'result.{rank}'), 'w', encoding='ascii') as out:
        json.dump({'starts': starts, 'losses': losses, 'weights': weights}, out)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
