"""Where convene.checkpoint keeps copies: the choice of halves in every order of deeds and deaths, torn copies, files, and the memory that is free."""

import importlib.util
import itertools
import mmap
import os
import shutil
import tempfile
import unittest
from unittest import mock

from tests.support.convene_testing import find_program

SPEC = importlib.util.spec_from_file_location('checkpoint_copies', find_program('tools/deploy/python/convene/checkpoint_copies.py'))
copies = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(copies)
RANKS = 2


def lives(held, loaded, step, rest):
    """After each save, of which any ranks are done or torn (then all begin anew) or refused: the states that stand. All orders of `rest` saves."""
    if rest == 0:
        return
    keep = [copies.newest_common(filter(None, of_rank) for of_rank in held), loaded]
    for fates in itertools.product(('done', 'torn', 'refused'), repeat=RANKS):
        after = [list(of_rank) for of_rank in held]
        for of_rank, fate in zip(after, fates):
            if fate != 'refused':
                of_rank[copies.half_to_write(of_rank, keep)] = (1, step) if fate == 'done' else None
        yield fates, held, after
        yield from lives(after, copies.newest_common(filter(None, of_rank) for of_rank in after) if 'torn' in fates else loaded, step + 1, rest - 1)


class CheckpointCopiesTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def test_a_file_that_another_writer_has_removed_is_no_error(self):
        folder = copies.Folder(self.folder, 0, 2)
        folder.write((3, 7), self.copy(copies.PAGE * 3))
        folder.remove([(3, 6), (3, 7)])
        self.assertEqual(folder.written(), [])

    def test_a_process_that_a_worker_starts_leaves_the_workers_memory_alone(self):
        worker = {'CONVENE_MEMORY': 'm'}
        child = dict(worker)  # started before the worker's Checkpoint: a rank of its own, as mp.spawn makes them
        self.assertEqual(copies.worker_memory(worker, 7), 'm')
        self.assertEqual(copies.worker_memory(worker, 7), 'm')
        self.assertEqual(copies.worker_memory(child, 8), 'm')
        self.assertEqual(copies.worker_memory(dict(worker), 9), '')
        self.assertEqual(copies.worker_memory({}, 7), '')
        self.assertEqual(copies.worker_memory({**worker, 'CONVENE_MEMORY': 'that of a job within the worker'}, 9), 'that of a job within the worker')

    def copy(self, size, index=b'index', name=(3, 7)):
        window = mmap.mmap(-1, size)
        begin = copies.data_offset(len(index))
        window[begin:size] = bytes(range(256)) * ((size - begin) // 256)
        copies.seal_copy(window, copies.Header(*name, 0, 2, len(index), begin, size - begin), index)
        return window

    def test_a_step_that_all_have_stands_until_a_newer_one_does(self):
        count = 0
        for fates, before, after in lives([[None, None]] * RANKS, None, 1, 4):
            was, now = (copies.newest_common(filter(None, of_rank) for of_rank in held) for held in (before, after))
            self.assertGreaterEqual(now or (0, 0), was or (0, 0), (fates, before, after))
            self.assertTrue(now is not None and now > (was or (0, 0)) or set(fates) != {'done'}, (fates, before, after))
            count += 1
        self.assertEqual(count, 9 + 9**2 + 9**3 + 9**4)

    def test_the_newest_step_that_all_have(self):
        self.assertEqual(copies.newest_common([[(1, 5), (1, 4)], [(1, 4), (1, 3)]]), (1, 4))
        self.assertEqual(copies.newest_common([[(2, 1), (1, 4)], [(1, 4), (2, 1)]]), (2, 1))
        self.assertIsNone(copies.newest_common([[(1, 5)], [(1, 4)]]))

    def test_a_loaded_state_is_kept_that_other_ranks_have_on_disk_only(self):
        self.assertEqual(copies.half_to_write([(1, 4), (1, 5)], [None, (1, 5)]), 0)
        self.assertEqual(copies.half_to_write([(1, 4), (1, 5)], [None, (1, 4)]), 1)
        self.assertEqual(copies.half_to_write([(2, 1), (1, 5)], [None, None]), 1)

    def test_memory_that_a_node_still_needs(self):
        """By this save, each rank in its own half, and with the other halves."""
        here = [((100, 0), [(0, 0), (1, 4)]), ((7, 30), [(1, 4), (1, 3)]), ((0, 0), [(0, 0), (0, 0)])]
        self.assertEqual(copies.still_needed(here, [(1, 4), None]), (130, 137))

    def test_the_folder_of_a_copy(self):
        self.assertEqual(len({copies.ANY_FOLDER, copies.folder_number(None), copies.folder_number('/a'), copies.folder_number('/b')}), 4)
        self.assertEqual(copies.folder_number(''), copies.folder_number(None))
        fd = os.memfd_create('memory')
        memory = copies.Memory(f'/proc/{os.getpid()}/fd/{fd}', 0, 1)
        saver, later = copies.User(copies.folder_number('/a'), 1), copies.User(copies.folder_number('/b'), 2)
        for half, savers in ((0, []), (1, [saver])):
            copies.seal_copy(memory.reserve(half, 2 * copies.PAGE), copies.Header(1, half, 0, 1, 1, 2 * copies.PAGE, 0), b'i', *savers)
        places = memory.copies()
        self.assertEqual([(place.folder, place.user) for place in places], [(copies.ANY_FOLDER, (copies.ANY_FOLDER, 0)), (saver.folder, saver)])
        memory.mark(places, later)
        self.assertEqual([(place.folder, place.user) for place in memory.copies()], [(copies.ANY_FOLDER, later), (saver.folder, later)])
        os.close(fd)

    def test_a_copy_is_of_another_program_where_that_has_used_it_in_this_epoch(self):
        own = copies.User(7, 3)
        for used, is_of_another in (((7, 3), False), ((8, 3), True), ((8, 2), False), ((copies.ANY_FOLDER, 3), False)):
            self.assertEqual(copies.is_of_another(copies.User(*used), own), is_of_another, used)

    def test_one_memory_by_two_names(self):
        fd, other = os.memfd_create('memory'), os.memfd_create('memory')
        copy = os.dup(fd)
        found = [copies.identity(f'/proc/{os.getpid()}/fd/{number}') for number in (fd, copy, other)]
        self.assertEqual(found[0], found[1])
        self.assertNotEqual(found[0], found[2])
        self.assertIsNone(copies.identity(''))
        for number in (fd, copy, other):
            os.close(number)

    def test_a_folder_that_is_gone(self):
        folder = copies.Folder(f'{self.folder}/states', 0, 2)
        os.rmdir(f'{self.folder}/states')
        folder.remove_parts()
        folder.remove_replaced((2, 5))
        self.assertEqual((folder.written(), folder.copies()), ([], []))
        folder.write((3, 7), self.copy(copies.PAGE * 3))
        self.assertEqual(folder.written(), [(3, 7)])

    def test_files_that_cannot_be_removed(self):
        folder = copies.Folder(self.folder, 0, 2)
        for name in ('step-7.generation-3.rank-0-of-2.state', 'step-7.generation-3.rank-0-of-2.state.part'):
            os.mkdir(f'{self.folder}/{name}')
        folder.remove_parts()
        folder.remove([(3, 7)])
        self.assertEqual(folder.written(), [(3, 7)])

    def test_files(self):
        names = [(1, step) for step in range(1, 7)]
        self.assertEqual(copies.files_to_remove(names, [(1, 2), None], 3), [(1, 1), (1, 3)])
        self.assertEqual(copies.files_to_remove(names[:3], [None, None], 3), [])

    def test_files_of_another_number_of_ranks(self):
        """They stay until a state replaces them that is newer in each way."""
        self.assertFalse(copies.is_replaced((1, 5), None))
        wholes = ((1, 5), (2, 3), (2, 4), (2, 5), (3, 4))
        for old, replaced_by in (((1, 5), [(2, 5)]), ((2, 3), [(2, 4), (2, 5), (3, 4)])):
            self.assertEqual([whole for whole in wholes if copies.is_replaced(old, whole)], replaced_by)
        three, two = copies.Folder(self.folder, 2, 3), copies.Folder(self.folder, 0, 2)
        for folder, name in ((three, (1, 5)), (three, (1, 6)), (two, (1, 4)), (two, (2, 5))):
            folder.write(name, self.copy(copies.PAGE * 3, name=name))
        for name in ('step-4.generation-1.rank-0-of-3.state.part', 'step-4.generation-1.rank-0-of-3.other'):
            with open(os.path.join(self.folder, name), 'wb'):
                pass
        os.mkdir(os.path.join(self.folder, 'step-3.generation-1.rank-1-of-3.state'))  # It cannot be removed, and holds up nothing.
        two.remove_replaced(None)
        self.assertEqual(three.written(), [(1, 5), (1, 6)])
        two.remove_replaced((2, 5))
        self.assertEqual((three.written(), two.written()), ([(1, 6)], [(1, 4), (2, 5)]))
        self.assertEqual([name for name in os.listdir(self.folder) if 'step-4' in name and '-of-3' in name], ['step-4.generation-1.rank-0-of-3.other'])

    def test_a_copy_without_its_seal_is_none(self):
        path = os.path.join(self.folder, 'memory')
        window = self.copy(3 * copies.PAGE)
        for name, deed, is_whole in (('whole', lambda: None, True), ('broken', lambda: copies.break_copy(window), False),
                                     ('another index', lambda: window.__setitem__(copies.PAGE, 0), False)):
            deed()
            with open(path, 'wb') as out:
                out.write(window)
            fd = os.open(path, os.O_RDONLY)
            self.assertEqual(copies.find(fd, 0) is not None, is_whole, name)
            self.assertIsNone(copies.find(fd, 2 * copies.PAGE), name)
            os.close(fd)

    def test_memory_is_found_by_the_next_worker(self):
        fd = os.memfd_create('memory')
        path = f'/proc/{os.getpid()}/fd/{fd}'
        index = b'one'
        for rank in (0, 1):
            window = copies.Memory(path, rank, 2).reserve(1, 2 * copies.PAGE)
            copies.seal_copy(window, copies.Header(1, 5, rank, 2, len(index), 2 * copies.PAGE, 0), index)
        memory = copies.Memory(path, 1, 2)
        self.assertEqual(memory.held(), [None, (1, 5)])
        self.assertEqual([place.header.owner for place in memory.copies()], [0, 1])
        self.assertEqual(copies.read(memory.copies()[1])[copies.PAGE:copies.PAGE + 3], index)
        memory.reserve(1, 2 * copies.PAGE)
        self.assertEqual(memory.held(), [None, None])
        os.close(fd)

    def test_a_file_that_was_cut_or_changed_is_not_read(self):
        folder = copies.Folder(f'{self.folder}/states', 0, 2)
        folder.write((3, 7), self.copy(8 * copies.PAGE))
        self.assertEqual(folder.written(), [(3, 7)])
        place, = folder.copies()
        self.assertEqual(copies.read(place)[2 * copies.PAGE + 5], 5)
        with open(place.path, 'r+b') as out:
            out.seek(5 * copies.PAGE)
            out.write(b'other')
        with self.assertRaisesRegex(OSError, 'not those that were written'):
            copies.read(place)
        os.truncate(place.path, 7 * copies.PAGE)
        self.assertEqual(folder.copies(), [])

    def test_free_memory_by_the_machine_and_the_control_groups(self):
        def write(path, text):
            os.makedirs(os.path.dirname(f'{self.folder}/{path}'), exist_ok=True)
            with open(f'{self.folder}/{path}', 'w', encoding='ascii') as out:
                out.write(text)

        def free():
            return copies.available_bytes(f'{self.folder}/proc', f'{self.folder}/cgroup')
        write('proc/meminfo', 'MemTotal: 9 kB\nMemAvailable: 100 kB\n')
        self.assertEqual(free(), 102400)
        write('proc/self/cgroup', '0::/a/b\n')
        for name, limit in (('a', '50000'), ('a/b', 'max')):
            write(f'cgroup/{name}/memory.max', limit)
            write(f'cgroup/{name}/memory.current', '20000')
            write(f'cgroup/{name}/memory.stat', 'file 9\nactive_file 400\ninactive_file 600\n')
        self.assertEqual(free(), 31000)
        write('cgroup/a/memory.current', '90000')
        self.assertEqual(free(), 0)

    def test_guests_have_windows_of_their_own(self):
        fd = os.memfd_create('memory')
        path = f'/proc/{os.getpid()}/fd/{fd}'
        places = list(itertools.product((0, 1), range(copies.MOST_GUESTS + 1), copies.HALVES))  # local rank, guest, half
        for number, (rank, guest, half) in enumerate(places):
            window = copies.Memory(path, rank, 2).reserve(half, 2 * copies.PAGE, guest)
            copies.seal_copy(window, copies.Header(1, number, rank, 2, 1, 2 * copies.PAGE, 0), b'i')
        memory = copies.Memory(path, 1, 2)
        for guest in range(copies.MOST_GUESTS + 1):
            self.assertEqual(memory.held(guest), [(1, places.index((1, guest, half))) for half in copies.HALVES])
        self.assertEqual(sorted(place.header.step for place in memory.copies()), list(range(len(places))))
        self.assertEqual({place.is_file for place in memory.copies()}, {False})
        os.close(fd)

    def test_too_little_memory_leaves_the_copy(self):
        fd = os.memfd_create('memory')
        memory = copies.Memory(f'/proc/{os.getpid()}/fd/{fd}', 0, 2)
        for guest, room in ((0, 6), (1, 3)):  # of a guest there is to be as much for each worker
            window = memory.reserve(0, 2 * copies.PAGE, guest)
            copies.seal_copy(window, copies.Header(1, 5, 0, 1, 1, 2 * copies.PAGE, 0), b'i')
            with mock.patch.object(copies, 'available_bytes', lambda: 6 * copies.PAGE):
                with self.assertRaisesRegex(OSError, 'bytes more are needed for copies'):
                    memory.reserve(0, (room + 3) * copies.PAGE, guest)
                self.assertEqual(memory.held(guest), [(1, 5), None])
                memory.reserve(0, (room + 2) * copies.PAGE, guest)
        os.close(fd)


if __name__ == '__main__':
    unittest.main()
