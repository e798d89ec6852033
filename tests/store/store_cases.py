"""The expectations of an unmodified PyTorch client of any TCPStore server.

usage: store_cases.py PORT    (in an environment with PyTorch; torch_store_test.py starts it, against our server and PyTorch's own)
"""

import multiprocessing
import sys
import threading
import time
import unittest
from datetime import timedelta

from torch.distributed import DistError, DistStoreError, PrefixStore, TCPStore

LONG = timedelta(seconds=60)
SHORT = timedelta(milliseconds=50)
PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 0


class Cases:
    """Run once with each kind of client; each test has a space of keys for itself."""

    use_libuv = True

    def connect(self, **options):
        return TCPStore('127.0.0.1', PORT, is_master=False, timeout=LONG, use_libuv=self.use_libuv, **options)

    def setUp(self):
        self.raw = self.connect()
        self.space = self.id()
        self.store = PrefixStore(self.space, self.raw)

    def other(self):
        return PrefixStore(self.space, self.connect())

    def in_thread(self, work):
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.addCleanup(thread.join, 60)
        return thread

    def test_what_one_client_sets_another_gets(self):
        for value in (b'', b'v', bytes(range(256)), b'x' * 100000):
            self.store.set('k', value)
            self.assertTrue(self.store.check(['k']))  # has an answer: the set is done
            self.assertEqual(self.other().get('k'), value)

    def test_a_value_of_eight_mebibytes_travels_whole(self):
        value = b'0123456789abcdef' * (1 << 19)
        self.store.set('large', value)
        self.assertEqual(self.store.get('large'), value)

    def test_add_counts_from_zero_in_decimal_text(self):
        self.assertEqual(self.store.add('n', 5), 5)
        self.assertEqual(self.other().add('n', -7), -2)
        self.assertEqual(self.store.get('n'), b'-2')
        self.store.set('n', '40')
        self.assertEqual(self.store.add('n', 2), 42)

    def test_add_reads_as_far_as_the_number_goes_and_wraps(self):
        self.store.set('n', ' 7x')
        self.assertEqual(self.store.add('n', 1), 8)
        self.store.set('n', str(2**63 - 1))
        self.assertEqual(self.store.add('n', 2), -2**63 + 1)

    def test_check_wants_all_of_its_keys(self):
        self.assertFalse(self.store.check(['a']))
        self.store.set('a', '')
        self.assertTrue(self.store.check(['a']))
        self.assertFalse(self.store.check(['a', 'b']))

    def test_a_wait_ends_when_the_last_key_comes(self):
        other = self.other()

        def write():
            other.set('a', '')
            other.set('b', '')

        self.in_thread(write)
        self.store.wait(['a', 'b'], LONG)
        self.assertTrue(self.store.check(['a', 'b']))

    def test_a_client_is_as_good_as_new_after_each_time_out(self):
        for i in range(10):
            with self.assertRaises(DistStoreError):
                self.store.wait(['never'], SHORT)
            self.assertEqual(self.store.add('after', 1), i + 1)
        self.store.set_timeout(SHORT)
        with self.assertRaises(DistStoreError):
            self.store.get('never')
        self.store.set('never', 'late')
        self.assertEqual(self.store.get('never'), b'late')

    def test_compare_set_in_its_four_cases(self):
        self.assertEqual(self.store.compare_set('k', 'token', 'new'), b'token')
        self.assertFalse(self.store.check(['k']))
        self.assertEqual(self.store.compare_set('k', '', 'first'), b'first')
        self.assertEqual(self.store.compare_set('k', 'wrong', 'second'), b'first')
        self.assertEqual(self.store.compare_set('k', 'first', 'second'), b'second')

    def test_append_creates_and_extends(self):
        self.store.append('k', 'ab')
        self.store.append('k', 'cd')
        self.assertEqual(self.store.get('k'), b'abcd')

    def test_many_values_in_one_request(self):
        keys = [f'k{i}' for i in range(2000)]
        self.store.multi_set(keys, [str(i) * 9 for i in range(2000)])
        self.assertEqual(self.store.multi_get(keys[::-1]), [str(i).encode() * 9 for i in range(1999, -1, -1)])

    def test_multi_get_waits_for_what_is_missing(self):
        other = self.other()
        self.in_thread(lambda: other.multi_set(['a', 'b'], ['1', '2']))
        self.assertEqual(self.store.multi_get(['b', 'a']), [b'2', b'1'])

    def test_delete_key_and_the_number_of_keys(self):
        before = self.store.num_keys()
        self.store.set('a', '')
        self.store.set('b', '')
        self.assertEqual(self.store.num_keys(), before + 2)
        self.assertTrue(self.store.delete_key('a'))
        self.assertFalse(self.store.delete_key('a'))
        self.assertEqual(self.store.num_keys(), before + 1)
        self.assertFalse(self.store.check(['a']))

    def test_list_keys_names_them_without_the_slash(self):
        self.store.set('listed', '')
        self.assertIn(f'{self.space}/listed', self.raw.list_keys())

    def check_barrier(self, connect, key):
        """`connect` makes the stores; processes and not threads: PyTorch's barrier holds Python's lock."""
        others = 5

        def enter():
            store = connect()
            if store.add(f'{key}/entering', 1) == others:
                store.set(f'{key}/all entering', '')
            store.barrier(key, others + 1, LONG)
            store.add(f'{key}/passed', 1)

        context = multiprocessing.get_context('fork')
        processes = [context.Process(target=enter, daemon=True) for _ in range(others)]
        for process in processes:
            process.start()
        store = connect()
        store.wait([f'{key}/all entering'], LONG)
        self.assertEqual(store.add(f'{key}/passed', 0), 0)
        store.barrier(key, others + 1, LONG)
        for process in processes:
            process.join(60)
            self.assertEqual(process.exitcode, 0)
        self.assertEqual(store.add(f'{key}/passed', 0), others)

    def test_a_barrier_by_add_and_wait_lets_all_go_together(self):
        self.check_barrier(self.other, 'meet')

    def test_the_barrier_request_lets_all_go_together(self):
        self.check_barrier(self.connect, self.space)  # a PrefixStore has no use for the request

    def test_a_barrier_that_nobody_joins_times_out(self):
        for i, (store, key) in enumerate([(self.store, 'alone'), (self.raw, self.space + 'alone')]):
            with self.assertRaises(DistError):
                store.barrier(key, 2, SHORT)
            self.assertEqual(self.store.add('after', 1), i + 1)

    def test_a_clone_talks_to_the_same_store(self):
        clone = self.raw.clone()
        clone.set(self.space + 'clone', 'v')
        self.assertEqual(self.raw.get(self.space + 'clone'), b'v')

    def test_prefixes_nest(self):
        inner = PrefixStore('inner', self.store)
        inner.set('k', 'v')
        self.assertEqual(self.raw.get(f'{self.space}/inner/k'), b'v')

    def test_workers_that_announce_themselves_are_counted(self):
        # Joins in 'init/', the one key without a slash; only the process that hosts the server waits for it.
        self.connect(world_size=1, wait_for_workers=True)

    def test_sixty_four_clients_at_once(self):
        failures = []

        def work(rank):
            try:
                store = self.other()
                store.set(f'rank/{rank}', str(rank))
                for _ in range(20):
                    store.add('counter', 1)
                values = store.multi_get([f'rank/{peer}' for peer in range(64)])
                self.assertEqual(values, [str(peer).encode() for peer in range(64)])
                for peer in range(0, 64, 7):
                    self.assertEqual(store.get(f'rank/{peer}'), str(peer).encode())
            except Exception as error:  # pylint: disable=broad-except  # any failure of a thread is the test's
                failures.append(f'{rank}: {error}')

        for thread in [self.in_thread(lambda rank=rank: work(rank)) for rank in range(64)]:
            thread.join(60)
        self.assertEqual(failures, [])
        self.assertEqual(self.store.add('counter', 0), 64 * 20)


class LibuvCases(Cases, unittest.TestCase):
    use_libuv = True

    def test_a_queue_gives_its_items_in_order(self):
        self.assertEqual(self.store.queue_len('q'), 0)
        self.store.queue_push('q', 'one')
        self.store.queue_push('q', 'two')
        self.assertEqual(self.store.queue_len('q'), 2)
        self.assertTrue(self.store.check(['q']))
        self.assertEqual(self.store.queue_pop('q'), b'one')
        self.assertEqual(self.store.queue_pop('q', block=False), b'two')
        with self.assertRaisesRegex(DistError, 'empty'):
            self.store.queue_pop('q', block=False)
        self.assertFalse(self.store.check(['q']))

    def test_a_blocking_pop_waits_for_an_item(self):
        other = self.other()
        self.in_thread(lambda: other.queue_push('q', 'late'))
        self.assertEqual(self.store.queue_pop('q'), b'late')

    def test_a_blocking_pop_times_out_and_loses_nothing(self):
        impatient = self.other()
        impatient.set_timeout(SHORT)
        with self.assertRaises(DistError):
            impatient.queue_pop('q')
        self.store.queue_push('q', 'item')
        self.assertEqual(self.store.queue_pop('q', block=False), b'item')

    def test_a_wait_for_a_queue_takes_no_item_from_others(self):
        self.store.queue_push('q', 'item')
        self.store.wait(['q'])
        time.sleep(1.5)  # the store keeps the item for this client for a second
        self.assertEqual(self.other().queue_pop('q', block=False), b'item')


class LegacyCases(Cases, unittest.TestCase):
    use_libuv = False

    def test_the_client_itself_refuses_queues(self):
        with self.assertRaises(NotImplementedError):
            self.store.queue_push('q', 'item')


if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1], verbosity=2)
