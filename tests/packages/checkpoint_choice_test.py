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
    return [choice.Held(set(), set()) if node in gone else of_rank for node, of_rank in zip(nodes, held)]


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

    def test_a_state_outlives_as_many_nodes_as_it_has_copies(self):
        for count, workers, replicas in itertools.product(range(2, 6), (1, 2), (1, 2)):
            nodes = [rank // workers for rank in range(count * workers)]
            kept, owners = choice.keepers(nodes, replicas), range(len(nodes))
            on_node = [{((1, 7), owner) for owner in owners if node in (nodes[owner], *(nodes[of_copy[owner]] for of_copy in kept))} for node in nodes]
            held = [choice.Held(copies, set()) for copies in on_node]
            for gone in itertools.chain.from_iterable(itertools.combinations(range(count), many) for many in range(count + 1)):
                left = lost(held, nodes, gone)
                chosen = choice.choose_state(left, owners, ())
                self.assertTrue(chosen is not None or len(gone) > len(kept))
                for owner, source in enumerate(chosen[1] if chosen else ()):
                    self.assertIn(((1, 7), owner), left[source].in_memory)
                    self.assertTrue(source == owner or nodes[owner] in gone)

    def test_the_newest_whole_state_is_chosen_from_all_places(self):
        old, new = (1, 4), (2, 1)
        memory = choice.Held({(old, 0), (new, 0)}, {old})
        self.assertEqual(choice.choose_state([memory, choice.Held({(old, 1)}, {new})], (0, 1), ()), (new, [0, None]))
        self.assertEqual(choice.choose_state([memory, choice.Held({(old, 1)}, {new})], (0, 1), {new}), (old, [0, 1]))
        self.assertIsNone(choice.choose_state([memory, choice.Held({(old, 1)}, {new})], (0, 1), {new, old}))
        self.assertIsNone(choice.choose_state([memory, choice.Held(set(), set())], (0, 1), ()))
        # The ranks have changed nodes; a state that all ranks share has one owner.
        self.assertEqual(choice.choose_state([choice.Held({(old, 1)}, set()), choice.Held({(old, 0)}, set())], (0, 1), ()), (old, [1, 0]))
        self.assertEqual(choice.choose_state([choice.Held(set(), set()), memory], (0, 0), ()), (new, [1, 1]))


if __name__ == '__main__':
    unittest.main()
