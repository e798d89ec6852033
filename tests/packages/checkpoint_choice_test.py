"""The keepers of states and the places that states are read from: every small job, and every way in which its nodes are lost."""

import importlib.util
import itertools
import unittest

from tests.support.convene_testing import find_program

SPEC = importlib.util.spec_from_file_location('checkpoint_choice', find_program('tools/deploy/python/convene/checkpoint_choice.py'))
choice = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(choice)


def lost(held, nodes, gone):
    """The copies that are left when nodes are lost and empty ones took their places."""
    return [choice.Held({}, {}) if node in gone else of_rank for node, of_rank in zip(nodes, held)]


class CheckpointChoiceTest(unittest.TestCase):

    def test_keepers_are_other_nodes(self):
        for count, workers, replicas in itertools.product(range(1, 9), (1, 2, 3), range(5)):
            nodes = [rank // workers for rank in range(count * workers)]
            kept = choice.keepers(nodes, replicas)
            self.assertEqual(len(kept), min(replicas, count - 1))
            for of_copy in kept:
                self.assertEqual(sorted(of_copy), list(range(len(nodes))))  # each rank keeps one
            for rank, node in enumerate(nodes):
                self.assertEqual(len({node, *(nodes[of_copy[rank]] for of_copy in kept)}), 1 + len(kept))
        self.assertEqual(choice.keepers([0, 0, 1, 1, 2, 2, 3, 3], 1), [[4, 5, 6, 7, 0, 1, 2, 3]])
        self.assertEqual(choice.keepers([1, 0, 1, 0], 1), [[1, 0, 3, 2]])  # ranks in any order
        with self.assertRaisesRegex(ValueError, 'as many workers on each node'):
            choice.keepers([0, 0, 1], 1)

    def test_places_in_a_memory(self):
        self.assertEqual(choice.places(['m', 'm', 'n', 'n', None, None], [1, 0, 0, 3, 0, 0]), [1, 0, 0, 3, 0, 0])
        # The ranks of one worker; another memory's ranks keep theirs.
        self.assertEqual(choice.places(['m', 'n', 'm', 'n', 'm'], [5, 1, 5, 0, 2]), [0, 1, 1, 0, 2])

    def test_a_state_outlives_as_many_nodes_as_it_has_copies(self):
        """And is loaded by as many ranks as there are: the ranks of the nodes that are left, or those of empty nodes, too."""
        for count, workers, replicas in itertools.product(range(2, 6), (1, 2), (1, 2)):
            nodes = [rank // workers for rank in range(count * workers)]
            kept, state = choice.keepers(nodes, replicas), (1, 7, len(nodes))
            on_node = [{state: {owner for owner in range(len(nodes)) if node in (nodes[owner], *(nodes[of_copy[owner]] for of_copy in kept))}}
                       for node in nodes]
            held = [choice.Held(copies, {}) for copies in on_node]
            for gone in itertools.chain.from_iterable(itertools.combinations(range(count), many) for many in range(count + 1)):
                for left in (lost(held, nodes, gone), [of_rank for node, of_rank in zip(nodes, held) if node not in gone]):
                    chosen = choice.choose_state(left, None, ())
                    self.assertTrue(chosen is not None or len(gone) > len(kept))
                    for owner, readers in enumerate(chosen[1] if chosen else ()):
                        for rank, of_rank in enumerate(left):
                            giver = choice.giver(readers, rank)
                            self.assertIn(owner, left[giver].in_memory[state])
                            self.assertTrue(giver == rank or owner not in of_rank.in_memory.get(state, ()))

    def test_a_generation_is_newer_than_all_that_its_ranks_see_and_no_other_epochs(self):
        seen = 0
        for epochs in ((1, 2, 3), (1, 2)):  # of one run, then of the next one in the same folder
            before = seen
            for epoch in epochs:
                apart = choice.next_generation(before, epoch)  # by ranks that see nothing of this run
                seen = choice.next_generation(seen, epoch)
                self.assertGreater(apart, before)
                self.assertNotEqual(choice.next_generation(before, epoch + 1), apart)
        self.assertGreater(choice.next_generation(6, 0), 6)  # of an older version, and without an agent
        self.assertGreater(choice.next_generation(seen, 0), seen)
        # Two disjoint halves of the ranks, each of which sees what both had before.
        self.assertLess(choice.next_generation(seen, 7), choice.next_generation(seen, 8))

    def test_the_newest_whole_state_is_chosen_from_all_places(self):
        old, new = (1, 4, 2), (2, 1, 2)
        first, second = choice.Held({old: {0}, new: {0}}, {old: {0}}), choice.Held({old: {1}}, {new: {1}})
        self.assertEqual(choice.choose_state([first, second], 2, ()), (new, [([0], []), ([], [1])]))
        self.assertEqual(choice.choose_state([first, second], 2, {new}), (old, [([0], [0]), ([1], [])]))
        self.assertIsNone(choice.choose_state([first, second], 2, {new, old}))
        self.assertIsNone(choice.choose_state([first, choice.Held({}, {})], 2, ()))
        # The ranks have changed nodes.
        self.assertEqual(choice.choose_state([choice.Held({old: {1}}, {}), choice.Held({old: {0}}, {})], 2, ()), (old, [([1], []), ([0], [])]))
        # Of another number of ranks: only where it is wanted, and whole, and never together with copies of this number.
        three = (3, 1, 3)
        held = [choice.Held({three: {0, 1}, old: {0, 1}}, {}), choice.Held({}, {three: {2}})]
        self.assertEqual(choice.choose_state(held, None, ()), (three, [([0], []), ([0], []), ([], [1])]))
        self.assertEqual(choice.choose_state(held, 2, ())[0], old)
        self.assertEqual(choice.choose_state([held[0], choice.Held({}, {(3, 2, 3): {2}})], None, ())[0], old)

    def test_memory_is_read_before_the_disk_and_own_copies_before_others(self):
        self.assertEqual([choice.giver(([1, 3], [0, 2]), rank) for rank in range(4)], [1, 1, 1, 3])
        self.assertEqual([choice.giver(([], [0, 2]), rank) for rank in range(4)], [0, 2, 2, 2])


if __name__ == '__main__':
    unittest.main()
