"""FSDP2 training on the same global batch with any number of ranks, that keeps its state by convene.checkpoint after each step.

Rank 0 notes a digest of the whole state at each save and at each load. In the folder: `go` is the step that the ranks go to and rest behind, until it is a
later one; 0 ends the job. A number in `forget` that has grown empties the memory of all nodes, and loads once more, from the disk.
"""

import hashlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from convene.checkpoint import Checkpoint
from torch.distributed.fsdp import fully_shard

FOLDER, REPLICAS = sys.argv[1], int(sys.argv[2])


def note(what, **values):
    if dist.get_rank() == 0:
        with open(f'{FOLDER}/notes', 'a', encoding='ascii') as out:
            out.write(json.dumps({'what': what, 'ranks': dist.get_world_size(), **values}) + '\n')


def agreed(name):
    """The number in a file of the folder, as rank 0 reads it: all ranks go the same way."""
    path = f'{FOLDER}/{name}'
    number = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0 and os.path.exists(path):
        with open(path, encoding='ascii') as file:
            number += int(file.read() or 0)
    dist.broadcast(number, 0)
    return int(number)


class Training:

    def __init__(self):
        torch.manual_seed(1)
        # With three ranks, ten rows are 4, 4 and 2, and of two rows the third rank has none.
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
        fully_shard(self.model[0])
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.losses = torch.zeros(100)

    def step(self, step):
        ranks, rank = dist.get_world_size(), dist.get_rank()
        batch = torch.randn(12, 6, generator=torch.Generator().manual_seed(step))
        self.optimizer.zero_grad()
        loss = (self.model(batch[rank::ranks]) - batch[rank::ranks, :2].sin()).square().sum() * ranks / 12
        loss.backward()
        self.optimizer.step()
        dist.all_reduce(loss)
        self.losses[step] = loss.item() / ranks

    def state(self):
        return {'model': self.model.state_dict(), 'optimizer': self.optimizer.state_dict(), 'losses': self.losses}

    def take(self, state):
        self.model.load_state_dict(state['model'])
        self.optimizer.load_state_dict(state['optimizer'])
        self.losses.copy_(state['losses'])

    def digest(self):
        """Of all that the state has, as it would be without shards."""
        whole = hashlib.sha256(self.losses.numpy().tobytes())
        slots = [value for state in self.optimizer.state.values() for _, value in sorted(state.items())]
        for tensor in [*self.model.parameters(), *slots]:
            whole.update((tensor.full_tensor() if hasattr(tensor, 'full_tensor') else tensor).detach().numpy().tobytes())
        return whole.hexdigest()


def load(checkpoint):
    training = Training()
    found = checkpoint.load(like=training.model.state_dict())
    if found is not None:
        training.take(found[1])
    note('load', step=found[0] if found else 0, digest=training.digest())
    return training, found[0] if found else 0


def main():
    dist.init_process_group('gloo')
    checkpoint = Checkpoint(f'{FOLDER}/states', replicas=REPLICAS)
    training, step = load(checkpoint)
    forgotten, rested = agreed('forget'), -1
    while (goal := agreed('go')) != 0:
        if (wanted := agreed('forget')) > forgotten:
            forgotten, rested = wanted, -1
            os.truncate(os.environ['CONVENE_MEMORY'], 0)
            dist.barrier()
            checkpoint = Checkpoint(f'{FOLDER}/states')
            training, step = load(checkpoint)
        elif step < goal:
            step += 1
            training.step(step)
            note('save', step=step, digest=training.digest(), weights=[p.full_tensor().double().sum().item() for p in training.model.parameters()])
            assert checkpoint.save(training.state(), step)
            checkpoint.wait()
        else:
            if step != rested:
                note('rest', step=step)
            rested = step
            time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
