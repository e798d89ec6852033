#!/usr/bin/python3
"""tools/trace_picture.py, on a trace of two ranks that is written here. tools/check runs it."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

TOOLS = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, TOOLS)
import trace_picture  # noqa: E402: from beside this file

THREADS = ['steps', 'compute', 'communication']


def traced(*slices):
    """Of (rank, thread, name, begin, duration, facts), in ms."""
    events = [{'ph': 'M', 'name': 'process_name', 'pid': rank, 'args': {'name': f'rank {rank}: pp <{rank}>'}} for rank in (0, 1)]
    events += [{'ph': 'M', 'name': 'thread_name', 'pid': rank, 'tid': i + 1, 'args': {'name': name}} for rank in (0, 1) for i, name in enumerate(THREADS)]
    events += [{'ph': 'X', 'pid': rank, 'tid': THREADS.index(thread) + 1, 'name': name, 'ts': 1000 * begin, 'dur': 1000 * length, 'args': facts}
               for rank, thread, name, begin, length, facts in slices]
    return {'traceEvents': events}


STEP = traced((0, 'steps', 'step 7', 0, 60, {}), (1, 'steps', 'step 7', 0, 86, {}), (1, 'steps', 'step 8', 86, 900, {}),
              (0, 'compute', 'forward mb 2 chunk 0', 0, 43, {'microbatch': 2, 'chunk': 0}), (0, 'compute', 'MatMul', 1, 20, {}),
              (1, 'compute', 'pp recv', 0, 43, {'axis': 'pp', 'bytes': 8, 'ranks': 2}), (1, 'compute', 'AdamW', 43, 1, {}),
              (1, 'compute', 'AdamW', 45, 0.01, {}),
              (1, 'compute', 'backward mb 2 chunk 1', 46, 60, {'microbatch': 2, 'chunk': 1}),
              (1, 'communication', 'dp <reduce>', 43, 8.6, {'axis': 'dp', 'bytes': 8, 'ranks': 2}))


class TracePictureTest(unittest.TestCase):

    def test_a_step_has_its_passes_waits_and_communication_in_their_place(self):
        drawn = trace_picture.draw(STEP, 7)
        bars = re.findall(r'x="([\d.]+)" y="\d+" width="([\d.]+)" height="(\d+)" fill="(#\w+)"><title>(.*?), ', drawn)
        # A call within a pass, and one that is narrower than a line, are not drawn; what reaches over the step's end is cut.
        self.assertEqual(bars, [('120.0', '430.0', '20', trace_picture.FORWARD, 'forward mb 2 chunk 0'),
                                ('120.0', '430.0', '20', trace_picture.WAIT, 'pp recv'),
                                ('550.0', '10.0', '20', trace_picture.OTHER, 'AdamW'),
                                ('580.0', '400.0', '20', trace_picture.BACKWARD, 'backward mb 2 chunk 1'),
                                ('550.0', '86.0', '10', trace_picture.COMMUNICATION, 'dp &lt;reduce&gt;')])
        self.assertEqual(re.findall(r'>([FB]\d)<', drawn), ['F2', 'B2'])
        self.assertIn('step 7: 86 ms', drawn)
        self.assertIn('rank 1: pp &lt;1&gt;', drawn)

    def test_a_step_that_was_not_traced_is_told_in_one_line(self):
        with tempfile.NamedTemporaryFile('w', suffix='.json') as file:
            json.dump(STEP, file)
            file.flush()
            for name, step, words in ((file.name, '9', 'the trace has no step 9'), (file.name + '.no', '7', 'No such file')):
                done = subprocess.run([os.path.join(TOOLS, 'trace_picture.py'), name, step], capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stdout), (1, ''))
                self.assertRegex(done.stderr, rf'^trace_picture.py: .*{words}.*\n$')


if __name__ == '__main__':
    unittest.main()
