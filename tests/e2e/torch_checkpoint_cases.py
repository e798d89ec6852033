"""The behaviour of convene.checkpoint with bad input, bad disks and odd states: two ranks go through all cases; an assertion ends the job."""

import collections
import errno
import io
import logging
import mmap
import os
import pickle
import threading
import time
import types

import numpy
import torch
import torch.distributed as dist
from convene import checkpoint_copies, checkpoint_peers, checkpoint_pieces, checkpoint_source
from convene.checkpoint import Checkpoint
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
import torch_checkpoint_disk_cases
from torch_checkpoint_parts import FOLDER, Said, begun, forget_memory, new_epoch, said, state_of, words


def kinds_of_values():
    checkpoint, found = begun(None)
    assert found is None
    tied = torch.arange(6.).view(2, 3)
    state = collections.OrderedDict(a=tied, b=tied, t=tied.t(), half=torch.ones(3, dtype=torch.bfloat16), none=torch.empty(0, 4), one=torch.tensor(3),
                                    complex=torch.tensor([1 + 2j]), size=tied.shape, kind=torch.int8, text=('x', b'y', {4}), big=1 << 80)
    assert checkpoint.save(state, 1)
    kept = {key: value.clone() if torch.is_tensor(value) else value for key, value in state.items()}
    numbers = numpy.arange(3)
    assert checkpoint.save({**state, 'array': numbers, 'scalar': numbers[2]}, 2) and (begun(None)[1][1]['array'] == numbers).all()
    checkpoint, _ = begun(None)
    assert checkpoint.save(state, 1)
    tied.zero_()
    step, got = begun(None)[1]
    assert step == 1 and list(got) == list(kept) and got['a'] is got['b']
    for key, value in kept.items():
        assert torch.equal(got[key], value) and got[key].dtype == value.dtype if torch.is_tensor(value) else got[key] == value, key
    assert 'add_safe_globals' in words(lambda: checkpoint.save({'c': Checkpoint}, 2), TypeError)
    assert 'dense' in words(lambda: checkpoint.save({'s': torch.eye(3).to_sparse()}, 2), TypeError)

    class Odd:

        def __init__(self, error):
            self.error = error

        def __reduce__(self):
            raise self.error

    # An error of any kind on one rank is told to the other one.
    for error in (ZeroDivisionError, OSError):
        odd = {'odd': Odd(error)} if dist.get_rank() == 1 else {}
        words(lambda odd=odd: checkpoint.save(odd, 2), (TypeError, error)[dist.get_rank()])


def states_that_hold_themselves_and_older_ones():
    checkpoint, _ = begun(None)
    loop = {'w': torch.ones(2)}
    loop['again'] = [loop]
    assert checkpoint.save(loop, 1)
    got = begun(None)[1][1]
    assert got['again'][0] is got and got['w'][1] == 1

    class Older(pickle.Pickler):

        def persistent_id(self, obj):
            return (0, torch.float32, (2,), '(Shard(dim=0),) on ranks [0, 1]', (4,), (1,)) if torch.is_tensor(obj) else None

    index = io.BytesIO()
    Older(index, protocol=4).dump(loop['w'])
    assert 'an older Convene' in words(checkpoint_pieces._Reader(index.getvalue(), lambda piece: piece).load, ValueError)


def no_memory_for_what_comes():
    """On one rank: the other one, which hands it its copy, learns of it. No older state is loaded instead: this one is whole."""
    forget_memory()
    checkpoint, _ = begun(None)
    assert checkpoint.save(state_of(1), 1) and checkpoint.save(state_of(2), 2)
    checkpoint = Checkpoint()

    def none_left(*_arguments, **_options):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    short = types.SimpleNamespace(mmap=none_left, MAP_PRIVATE=mmap.MAP_PRIVATE)
    if dist.get_rank() == 1:
        checkpoint._look = lambda: ([], (0, 0), '')
        checkpoint_source.mmap = short
    assert 'step 2: rank 1 has no memory for ' in words(checkpoint.load, MemoryError)
    checkpoint_source.mmap = mmap
    assert checkpoint.load()[0] == 2
    # For its own copy, which its node has.
    checkpoint = Checkpoint()
    if dist.get_rank() == 1:
        checkpoint_copies.mmap = short
    assert 'step 2: rank 1 has no memory for its copy' in words(checkpoint.load, MemoryError)
    checkpoint_copies.mmap = mmap
    assert checkpoint.load()[0] == 2


def steps_and_threads():
    checkpoint, _ = begun(None)
    assert '0 to 4 are possible' in words(lambda: Checkpoint(replicas=5), ValueError) and 'whole state already' in words(
        lambda: Checkpoint(replicated=True, replicas=1), ValueError)
    Checkpoint(replicas=2)
    assert dist.get_rank() != 0 or '0 replicas instead of 2: other nodes: 0' in said[-1]
    assert 'load() comes before' in words(lambda: Checkpoint().save({}, 1), RuntimeError)
    assert checkpoint.save(state_of(5), 5) and checkpoint.save(state_of(5), 5)
    assert 'all save the same step' in words(lambda: checkpoint.save(state_of(6), 6 + dist.get_rank()), ValueError)
    assert 'a later one' in words(lambda: checkpoint.save(state_of(4), 4), ValueError)
    other = []
    with checkpoint._busy:
        thread = threading.Thread(target=lambda: other.append(words(lambda: checkpoint.save(state_of(7), 7), RuntimeError)))
        thread.start()
        thread.join()
    assert 'another thread saves' in other[0]


def memory_of_the_second_half():
    """It is taken behind the training, and what stands there stays."""
    forget_memory()
    checkpoint, _ = begun(None)
    real, taken = os.posix_fallocate, []
    os.posix_fallocate = lambda *arguments: (taken.append(threading.current_thread().name), real(*arguments))
    assert checkpoint.save(state_of(1), 1) and checkpoint.save(state_of(2), 2) and taken == ['MainThread', 'convene-checkpoint_0'], taken
    checkpoint, found = begun(None)
    assert found[0] == 2 and checkpoint.save(state_of(3), 3)
    checkpoint._prepared.result()
    os.posix_fallocate = real
    assert sorted(step for _, step in checkpoint._memory.held()) == [2, 3]


def too_little_memory():
    """On one rank: the step that all have stays, also through the saves behind it."""
    forget_memory()
    checkpoint, _ = begun(None)
    assert checkpoint.save(state_of(1), 1)
    real = checkpoint_copies.available_bytes
    for step in (2, 3):
        checkpoint_copies.available_bytes = lambda: 0 if dist.get_rank() == 1 else real()
        assert not checkpoint.save(state_of(step, 10000), step) and not checkpoint.save(state_of(step, 10000), step)
    checkpoint_copies.available_bytes = real
    assert dist.get_rank() == 0 or 'bytes more for copies, 0 are free' in said[-1]
    checkpoint, (step, state) = begun(None)
    assert step == 1 and state['w'][0] == 1 and state['rank'] == dist.get_rank()
    assert checkpoint.save(state_of(4, 30000), 4)  # another shape
    assert begun(None)[1][1]['w'].shape == (30000,)


def a_step_that_found_too_little_memory_again():
    """Both ranks have it then, in memory and on disk; of replicated states, too, whose answer is that of the rank with the copy."""
    forget_memory()
    real = checkpoint_copies.available_bytes
    for replicated in (False, True):
        checkpoint, _ = begun(f'again{replicated}', replicated=replicated)
        state = state_of(1, 50000)
        checkpoint_copies.available_bytes = lambda: 0 if dist.get_rank() != replicated else real()
        assert not checkpoint.save(state, 1)
        checkpoint_copies.available_bytes = real
        calls, tell = [], checkpoint._tell
        checkpoint._tell = lambda *arguments, tell=tell: (calls.append(1), tell(*arguments))[1]
        assert checkpoint.save(state, 1) and len(calls) == 2
        checkpoint.wait()
        assert checkpoint.save(state, 1) and len(calls) == 3  # It stands, and nobody asks whether it does.
        for step in range(2, 6):
            assert checkpoint.save(state, step)
            checkpoint._prepared.result() if checkpoint._prepared else None
            checkpoint.wait()
        calls.clear()
        assert checkpoint.save(state, 6) and len(calls) == 1
        assert begun(f'again{replicated}', replicated=replicated)[1][0] == 6
        forget_memory()


def memory_for_what_all_ranks_need():
    """And no more: a rank that comes late finds its share, and so does a rank with the whole state."""
    real, late = checkpoint_copies.available_bytes, Checkpoint._prepare
    Checkpoint._prepare = lambda *arguments: (time.sleep(0.2 * dist.get_rank()), late(*arguments))
    for room, sizes in ((18 << 20, (1 << 20, 1 << 20)), (25 << 20, (10 << 18, 0))):
        forget_memory()
        checkpoint_copies.available_bytes = lambda room=room: room - 512 * os.stat(os.environ['CONVENE_MEMORY']).st_blocks
        checkpoint, _ = begun(None)
        for step in (1, 2, 3):
            assert checkpoint.save(state_of(step, sizes[dist.get_rank()]), step), (step, said[-1:])
    # For two halves there is too little: the second one is not begun.
    forget_memory()
    checkpoint_copies.available_bytes = lambda: 10 << 20
    checkpoint, _ = begun(None)
    assert checkpoint.save(state_of(1, 1 << 20), 1) and checkpoint._prepared is None
    checkpoint_copies.available_bytes = lambda: 7 << 20  # room for one rank
    assert not checkpoint.save(state_of(2, 1 << 20), 2) and 'the ranks of this node need ' in said[-1]
    checkpoint_copies.available_bytes, Checkpoint._prepare = real, late
    assert checkpoint.save(state_of(3, 1 << 20), 3) and begun(None)[1][0] == 3


def states_of_other_folders():
    forget_memory()
    first, _ = begun('first')
    assert first.save(state_of(1000), 1000)
    second, found = begun('second')
    assert found is None and second.save(state_of(1), 1)
    assert 'another Checkpoint of this process has saved' in words(lambda: first.save(state_of(1001), 1001), RuntimeError)
    # New workers, within and behind the first stage.
    new_epoch()
    assert begun('first')[1][0] == 1000 and begun('second')[1][0] == 1 and second.save(state_of(2), 2)
    # Another name for the folder at each start: the memory counts. A state that another stage, or another program of
    # this start, has looked at or saved does not.
    new_epoch()
    assert begun('named by the clock')[1][0] == 2 and 'saved for another folder' in said[-1]
    third, found = begun('third')
    assert found is None and third.save(state_of(1), 1) and begun('third program')[1] is None
    new_epoch()
    assert begun('third')[1][0] == 1 and begun('third program')[1] is None
    # Two at once.
    model, _ = begun('model')
    other, _ = begun('other')
    assert model.save(state_of(1), 1) and model.save(state_of(2), 2)
    words(lambda: other.save(state_of(1), 1), RuntimeError)
    assert Checkpoint(f'{FOLDER}/model').load()[0] == 2 and model.save(state_of(3), 3)  # A look does no harm.
    late, _ = begun('late')
    assert model.save(state_of(4), 4)
    words(lambda: late.save(state_of(1), 1), RuntimeError)
    # The same folder by another way.
    if dist.get_rank() == 0:
        os.symlink(f'{FOLDER}/model', f'{FOLDER}/way')
    dist.barrier()
    new_epoch()
    before = len(said)
    assert begun('way')[1][0] == 4 and len(said) == before
    # A folder without any state, and states of another number of ranks in memory.
    forget_memory()
    wide, _ = begun('wide')
    wide._owned = (dist.get_rank(), 4)
    assert wide.save(state_of(1), 1)
    new_epoch()
    assert 'there is one of 4 ranks' in words(lambda: begun('elsewhere'), ValueError)
    forget_memory()


def a_copy_of_an_older_build():
    forget_memory()
    checkpoint, _ = begun(None)
    real = checkpoint_copies.seal_copy
    checkpoint_copies.seal_copy = lambda window, header, index, _saver: real(window, header, index)
    assert checkpoint.save(state_of(1), 1)
    checkpoint_copies.seal_copy = real
    assert begun('newer')[1][0] == 1


def ranks_that_a_worker_made():
    """They have its LOCAL_RANK."""
    forget_memory()
    local_rank = os.environ['LOCAL_RANK']
    os.environ['LOCAL_RANK'] = '0'
    checkpoint, _ = begun('spawned')
    assert all(checkpoint.save(state_of(step), step) for step in (1, 2))
    checkpoint.wait()
    dist.barrier()
    assert len(checkpoint._memory.copies()) == 4
    for forget in (dist.barrier, forget_memory):
        forget()
        step, state = begun('spawned')[1]
        assert step == 2 and state['rank'] == dist.get_rank()
    checkpoint, _ = begun('spawned same', replicated=True)
    assert checkpoint.save({'w': torch.ones(3)}, 1) and checkpoint._held == [[(checkpoint._generation, 1), None], [None, None]][dist.get_rank()]
    os.environ['LOCAL_RANK'] = local_rank


def a_newer_life_goes_first():
    """Of an older step, after an older state was loaded."""
    forget_memory()
    checkpoint, _ = begun(None)
    checkpoint.save(state_of(10), 10)
    checkpoint.save(state_of(11), 11)
    checkpoint, found = begun(None)
    assert found[0] == 11 and checkpoint.save(state_of(3), 3)
    assert begun(None)[1][0] == 3


def shards():
    forget_memory()
    mesh = init_device_mesh('cpu', (2,))
    whole = torch.arange(30.).view(10, 3)
    state = {'p': distribute_tensor(whole, mesh, [Shard(0)]), 'q': distribute_tensor(whole[:3], mesh, [Shard(0)])}
    checkpoint, _ = begun('shards')
    assert checkpoint.save(state, 1)
    like = {'x': distribute_tensor(torch.zeros(4), mesh, [Shard(0)])}
    checkpoint = Checkpoint(f'{FOLDER}/shards')
    got = checkpoint.load(like=like)[1]
    assert got['p'].placements == (Shard(0),) and torch.equal(got['p'].full_tensor(), whole) and torch.equal(got['q'].full_tensor(), whole[:3])
    assert 'torch.distributed.checkpoint' in words(lambda: checkpoint.load(like={'x': distribute_tensor(whole, mesh, [Replicate()])}), ValueError)
    assert 'load(like=state)' in words(checkpoint.load, ValueError)
    # As it is laid out at the same place today, in pieces of both ranks; a plain tensor gets all of them.
    other = init_device_mesh('cpu', (2, 1), mesh_dim_names=('copies', 'shards'))
    today = {'p': distribute_tensor(torch.zeros(10, 3), mesh, [Shard(1)]), 'q': distribute_tensor(torch.zeros(3, 3), other, [Replicate(), Shard(0)])}
    got = checkpoint.load(like=today)[1]
    assert got['p'].placements == (Shard(1),) and torch.equal(got['p'].full_tensor(), whole)
    assert got['q'].device_mesh == other and torch.equal(got['q'].to_local(), whole[:3])
    assert checkpoint.save(got, 2)
    got = checkpoint.load(like={**state, 'p': torch.zeros(10, 3)})[1]
    assert torch.equal(got['p'], whole) and got['q'].placements == (Shard(0),) and torch.equal(got['q'].full_tensor(), whole[:3])
    got = checkpoint.load(like={**state, 'p': distribute_tensor(torch.zeros(10, 3), DeviceMesh('cpu', [1, 0]), [Shard(0)])})[1]  # the ranks have changed places
    assert torch.equal(got['p'].to_local(), whole[:5] if dist.get_rank() == 1 else whole[5:])
    assert 'was saved with shape (10, 3)' in words(lambda: checkpoint.load(like={'p': torch.zeros(9, 3)}), ValueError)
    assert 'full_tensor()' in words(lambda: checkpoint.save({'p': DTensor.from_local(whole, mesh, [Partial()])}, 3), TypeError)


def pieces_alone():
    # Empty tensors all begin nowhere, and are not one.
    assert len(checkpoint_pieces.Plan({'a': torch.empty(0, 3), 'b': torch.empty(0, 3)}).tensors) == 2
    # A copy is damaged by the time that a rank hands parts of it over.
    source = checkpoint_source.Source(lambda word: [word], None, 0, 1, [], {})

    def damaged(_owner):
        raise OSError('the file is damaged')

    source._open = damaged
    need = checkpoint_pieces.Need(0, checkpoint_pieces.Piece(0, torch.float32, (1,)), (0,), (1,))
    assert 'damaged' in words(source._hand_over(None, [{0: [need]}]), OSError)


def a_sharded_model():
    """FSDP2 with its optimizer: a new process loads the shards, and trains on as this one does."""
    forget_memory()
    mesh = init_device_mesh('cpu', (2,))

    def begin():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 3))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(model, optimizer, steps):
        for step in steps:
            optimizer.zero_grad()
            model(torch.full((4, 6), 0.1 * step + dist.get_rank())).square().sum().backward()
            optimizer.step()
        return [p.full_tensor().detach() for p in model.parameters()]

    checkpoint, _ = begun(None)
    model, optimizer = begin()
    train(model, optimizer, (1, 2))
    assert checkpoint.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict()}, 2)
    want = train(model, optimizer, (3, 4))
    model, optimizer = begin()
    step, got = Checkpoint().load(like=model.state_dict())
    model.load_state_dict(got['model'])
    optimizer.load_state_dict(got['optimizer'])
    assert step == 2 and all(map(torch.equal, want, train(model, optimizer, (3, 4))))


def a_copy_for_another_node_is_cut_short():
    """Twice: the whole one that stood there stays."""
    forget_memory()
    checkpoint, _ = begun(None)
    checkpoint._peers = checkpoint_peers.Peers(dist.new_group(backend='gloo'), checkpoint._memory, [[1, 0]])

    def kept(step):
        assert checkpoint.save(state_of(step), step)
        checkpoint.wait()
        return sorted(step for _, step in filter(None, checkpoint._memory.held(1)))

    def cut(_group, _window, size, _to, _source, reserve):
        assert reserve(size) is not None
        raise RuntimeError('the connection broke')

    assert kept(1) == [1] and kept(2) == [1, 2]
    real, checkpoint_peers.exchange = checkpoint_peers.exchange, cut
    assert kept(3) == [2] and kept(4) == [2] and 'step 4 is not on other nodes: the connection broke' in said[-1]
    checkpoint_peers.exchange = real
    assert kept(5) == [2, 5]


def one_copy_for_all_ranks():
    forget_memory()
    checkpoint, _ = begun('same', replicated=True)
    assert checkpoint.save({'w': torch.ones(3)}, 1) and checkpoint.save({'w': torch.ones(3)}, 2, to_disk=False)
    checkpoint.wait()
    # Only rank 0 looks at the state, and all hear of it.
    assert ('dense', 'the state of rank 0')[dist.get_rank()] in words(lambda: checkpoint.save({'s': torch.eye(3).to_sparse()}, 3), TypeError)
    assert begun('same', replicated=True)[1][0] == 2
    assert os.listdir(f'{FOLDER}/same') == [f'step-1.generation-{checkpoint._generation}.rank-0-of-1.state'] and len(checkpoint._memory.copies()) == 2
    forget_memory()
    assert begun('same', replicated=True)[1][0] == 1


def without_an_agent():
    path = os.environ.pop('CONVENE_MEMORY')
    checkpoint, _ = begun('alone')
    assert checkpoint.save(state_of(1), 1) and checkpoint.save(state_of(2), 2)
    checkpoint.wait()
    assert begun('alone')[1][0] == 2
    os.environ['CONVENE_MEMORY'] = path


CASES = (kinds_of_values, states_that_hold_themselves_and_older_ones, no_memory_for_what_comes, steps_and_threads, memory_of_the_second_half, too_little_memory,
         a_step_that_found_too_little_memory_again, memory_for_what_all_ranks_need, states_of_other_folders, a_copy_of_an_older_build,
         ranks_that_a_worker_made, *torch_checkpoint_disk_cases.CASES, a_newer_life_goes_first, shards, pieces_alone, a_sharded_model,
         a_copy_for_another_node_is_cut_short, one_copy_for_all_ranks, without_an_agent)


def main():
    logging.getLogger('convene.checkpoint').addHandler(Said())
    dist.init_process_group('gloo')
    for case in CASES:
        case()
        print(f'rank {dist.get_rank()}: {case.__name__} is right', flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
