#!/usr/bin/python3
"""tools/ci/stamps.py. tools/check runs it."""

import os
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import stamps  # noqa: E402  (the line above keeps __pycache__ out of the tree)


class StampsTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.stamps = stamps.Stamps(os.path.join(self.folder, 'passed'), kept=3)

    def put(self, key, age):
        self.stamps.put(key)
        os.utime(os.path.join(self.stamps.folder, key), (1e9 - age, 1e9 - age))

    def test_a_key_that_was_put_is_there(self):
        self.assertFalse(self.stamps.has('a'))
        self.stamps.put('a')
        self.assertTrue(self.stamps.has('a'))

    def test_a_sweep_keeps_the_newest(self):
        for age, key in enumerate('abcde'):
            self.put(key, age)
        self.stamps.sweep()
        self.assertEqual(sorted(os.listdir(self.stamps.folder)), ['a', 'b', 'c'])

    def test_a_key_that_is_used_is_no_old_one(self):
        for age, key in enumerate('abcde'):
            self.put(key, age)
        self.assertTrue(self.stamps.has('e'))
        self.stamps.sweep()
        self.assertEqual(sorted(os.listdir(self.stamps.folder)), ['a', 'b', 'e'])


if __name__ == '__main__':
    unittest.main()
