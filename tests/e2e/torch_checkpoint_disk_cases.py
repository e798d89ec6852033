"""The cases of convene.checkpoint with disks: full, slow, and with files of other jobs."""

import errno
import glob
import mmap
import os
import resource
import time

import torch.distributed as dist
from convene import checkpoint_copies
from convene.checkpoint import Checkpoint
from torch_checkpoint_parts import FOLDER, begun, files, forget_memory, said, state_of, words


def a_folder_that_goes():
    forget_memory()
    before = os.getcwd()
    os.chdir(FOLDER)
    checkpoint = Checkpoint('goes')
    os.chdir(before)
    checkpoint.load()
    assert checkpoint.save(state_of(1), 1)
    checkpoint.wait()
    dist.barrier()
    if dist.get_rank() == 0:
        os.rename(f'{FOLDER}/goes', f'{FOLDER}/good')
    dist.barrier()
    assert checkpoint.save(state_of(2), 2)
    checkpoint.wait()
    assert len(files('good')) == len(files('goes')) == 1, said[-1]
    # A file that cannot be removed.
    kept = files('goes')[0]
    os.unlink(kept)
    os.mkdir(kept)
    for step in range(3, 9):
        assert checkpoint.save(state_of(step), step)
        checkpoint.wait()
    assert os.path.isdir(kept) and '/step-8.' in files('goes')[-1], said[-1]


def disk():
    forget_memory()
    checkpoint, found = begun('disk')
    assert found is None
    for step in range(1, 9):
        assert checkpoint.save(state_of(step), step, to_disk=step != 7)
        checkpoint.wait()
    assert 2 <= len(files('disk')) <= 5, files('disk')
    forget_memory()
    step, state = begun('disk')[1]
    assert step == 8 and state['w'][0] == 8 and state['rank'] == dist.get_rank()
    part = files('disk')[0] + '.part'
    open(part, 'wb').close()
    begun('disk')
    assert os.path.exists(part)  # A look removes nothing: the file may be one that a job writes just now.
    newest = [name for name in files('disk') if '/step-8.' in name]
    if dist.get_rank() == 1:
        with open(newest[0], 'r+b') as out:
            out.seek(9000)
            out.write(b'?')
    dist.barrier()
    step, state = begun('disk')[1]
    assert step == 6 and state['w'][0] == 6 and 'not those that were written' in said[-1], (step, said)
    # A file that is missing on one rank: the newest that both have.
    dist.barrier()
    if dist.get_rank() == 0:
        os.unlink([name for name in files('disk') if '/step-6.' in name][0])
    dist.barrier()
    # A file that was cut.
    cut = [name for name in files('disk') if '/step-8.' in name][0]
    os.truncate(cut, 5000)
    del said[:]
    checkpoint, found = begun('disk')
    assert found[0] == 5 and [line.endswith(f'{os.path.basename(cut)} is not whole, and is not loaded') for line in said] == [True], said
    assert 'of 2 ranks' in words(lambda: begun('disk', replicated=True), ValueError)
    assert checkpoint.save(state_of(9), 9)
    checkpoint.wait()
    assert not os.path.exists(part)


def no_file_is_opened_for_what_memory_has():
    """Until a copy there is damaged."""
    forget_memory()
    checkpoint, _ = begun('unopened')
    for step in (1, 2):
        assert checkpoint.save(state_of(step), step)
    checkpoint.wait()
    opened, real = [], checkpoint_copies.Folder.copies
    checkpoint_copies.Folder.copies = lambda folder: (opened.append(1), real(folder))[1]
    assert begun('unopened')[1][0] == 2 and not opened
    # One rank's newer copy is lost: the step that memory has whole is older than the disk's.
    memory = begun('unopened')[0]._memory
    dist.barrier()
    if dist.get_rank() == 1:
        checkpoint_copies.break_copy(memory.prepare([step for _, step in memory.held()].index(2), checkpoint_copies.PAGE))
    dist.barrier()
    assert begun('unopened')[1][0] == 2 and len(opened) == 1
    forget_memory()
    assert begun('unopened')[1][0] == 2 and len(opened) == 2
    checkpoint, _ = begun('unopened')
    assert checkpoint.save(state_of(3), 3, to_disk=False) and begun('unopened')[1][0] == 3 and len(opened) == 3
    real_read = checkpoint_copies.read

    def damaged(place):
        if dist.get_rank() == 1 and not place.is_file:
            raise OSError('damaged')
        return real_read(place)

    checkpoint_copies.read = damaged
    assert begun('unopened')[1][0] == 2 and len(opened) == 4 and 'step 3 is not loaded' in said[-1]
    checkpoint_copies.read, checkpoint_copies.Folder.copies = real_read, real


def files_of_another_number_of_ranks():
    """They go when all of today's ranks have a newer state on disk, and not before."""
    forget_memory()
    folder = f'{FOLDER}/others'
    window = mmap.mmap(-1, 2 * checkpoint_copies.PAGE)
    checkpoint_copies.seal_copy(window, checkpoint_copies.Header(1, 5, dist.get_rank(), 3, 1, 2 * checkpoint_copies.PAGE, 0), b'i')
    checkpoint_copies.Folder(folder, dist.get_rank(), 3).write((1, 5), window)
    old, newer = (f'{folder}/step-{step}.generation-1.rank-{dist.get_rank()}-of-3.state' for step in ('5', '9'))
    os.link(old, newer + '.part')
    dist.barrier()
    checkpoint = Checkpoint(folder)
    assert checkpoint.load(like={}) is None
    real = checkpoint_copies.Folder.write
    for step, fails in ((6, dist.get_rank() == 1), (7, False), (8, False)):
        checkpoint_copies.Folder.write = full_disk_error if fails else real
        assert checkpoint.save(state_of(step), step)
        if fails:
            words(checkpoint.wait, OSError)
        else:
            checkpoint.wait()
        dist.barrier()
        assert os.path.exists(old) == (step < 8), step  # Of step 6 one rank has no file; 7 is known to all at the next save.
    checkpoint_copies.Folder.write = real
    assert os.path.exists(newer + '.part')
    for step in (9, 10):
        assert checkpoint.save(state_of(step), step)
        checkpoint.wait()
        dist.barrier()
    assert not os.path.exists(newer + '.part')


def full_disk_error(*_arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def a_slow_disk():
    """Saves come faster than the disk takes them: none is lost."""
    forget_memory()
    checkpoint, _ = begun('slow')
    real = checkpoint_copies.Folder.write
    checkpoint_copies.Folder.write = lambda *arguments: (time.sleep(0.03), real(*arguments))
    begin = len(said)
    for step in range(1, 13):
        assert checkpoint.save(state_of(step), step)
    checkpoint.wait()
    checkpoint_copies.Folder.write = real
    assert not [line for line in said[begin:] if 'not on disk' in line], said[begin:]
    assert checkpoint.save(state_of(13), 13, to_disk=False) and checkpoint.save(state_of(13), 13)
    checkpoint.wait()
    forget_memory()
    assert begun('slow')[1][0] == 13


def full_disk():
    forget_memory()
    checkpoint, _ = begun('full')
    assert checkpoint.save(state_of(1), 1) and checkpoint.save(state_of(2), 2)
    checkpoint.wait()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limit[1]))
    assert checkpoint.save(state_of(3), 3)
    assert 'step 3 is not on disk: [Errno 27]' in words(checkpoint.wait, OSError)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert 'step 3 is not on disk: ' in said[-1] and not glob.glob(f'{FOLDER}/full/*rank-{dist.get_rank()}-*.part'), said
    assert begun('full')[1][0] == 3  # memory has it
    forget_memory()
    checkpoint, found = begun('full')
    assert found[0] == 2
    # The disk has room again.
    real, checkpoint_copies.Folder.write = checkpoint_copies.Folder.write, full_disk_error
    assert checkpoint.save(state_of(3), 3) and 'step 3 is not on disk' in words(checkpoint.wait, OSError)
    checkpoint_copies.Folder.write = real
    assert checkpoint.save(state_of(3), 3)
    checkpoint.wait()
    forget_memory()
    assert begun('full')[1][0] == 3


CASES = (a_folder_that_goes, disk, no_file_is_opened_for_what_memory_has, files_of_another_number_of_ranks, a_slow_disk, full_disk)
