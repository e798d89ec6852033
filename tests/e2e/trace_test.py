"""--trace: one file of what all ranks did, which follows the rules of Chrome's Trace Event Format.

Perfetto's own trace processor is not asked, because no package brings it: PyPI's perfetto downloads it. So this checks what it demands of such a
file, to the nanosecond: it leaves out a slice that reaches over the end of the one in which it began, and all that begins before 0.
"""

import collections
import decimal
import json
import os
import re
import unittest

from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase

MICROBATCHES = 4


def end_of(event):
    return event["ts"] + event["dur"]


class TraceTest(ConveneTestCase):

    def train(self, ranks, *flags, code=0, **changes):
        arguments = {"steps": 6, "checkpoint_dir": None, "checkpoint_every": None, "validation_every": 0, "pp_size": 2,
                     "trace_file": self.path("trace.json"), **changes}
        return self.finish(self.start(CONVENE, "run", "--standalone", "--nproc-per-node", str(ranks), CONVENE_TRAIN,
                                      *self.train_arguments(**arguments), *flags), 60, code)

    def slices(self):
        """{(rank, thread's name): its slices by time}, and {rank: its names}."""
        with open(self.path("trace.json"), encoding="utf-8") as file:
            events = json.load(file, parse_float=decimal.Decimal)["traceEvents"]
        self.assertEqual({event["ph"] for event in events}, {"M", "X"})
        names = collections.defaultdict(dict)
        for event in events:
            if event["ph"] == "M":
                names[event["pid"]][(event["name"], event.get("tid"))] = list(event["args"].values())[0]
        threads = collections.defaultdict(list)
        for event in events:
            if event["ph"] == "X":
                for time in (event["ts"], event["dur"]):
                    self.assertGreaterEqual(time, 0)
                    self.assertEqual(time % decimal.Decimal("0.001"), 0)
                threads[event["pid"], names[event["pid"]]["thread_name", event["tid"]]].append(event)
        for slices in threads.values():
            slices.sort(key=lambda event: (event["ts"], -event["dur"]))
        return threads, names

    def assert_nested(self, slices):
        """Each slice of a thread lies within another one or behind it."""
        open_until = []
        for event in slices:
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            if open_until:
                self.assertLessEqual(end_of(event), open_until[-1], event)
            open_until.append(end_of(event))

    def test_the_passes_of_a_pipeline_are_shown_on_one_clock(self):
        # All ranks watch step 4, too, for their table.
        text = self.train(4, "--trace", "steps=5:6", "--comm-log")
        self.assertIn("trace of steps 5 to 6: ", text)
        self.assertIn("communication of 3 steps", text)
        threads, names = self.slices()
        self.assertEqual([names[rank]["process_name", None] for rank in sorted(names)],
                         ["rank 0: pp 0, dp 0", "rank 1: pp 0, dp 1", "rank 2: pp 1, dp 0", "rank 3: pp 1, dp 1"])
        passes = {}
        for (rank, thread), slices in threads.items():
            self.assert_nested(slices)
            if thread == "steps":
                self.assertEqual([event["name"] for event in slices], ["step 5", "step 6"])
            if thread == "communication":
                sums = [event["args"] for event in slices if event["name"] == "dp reduce_scatter"]
                self.assertEqual({(call["axis"], call["ranks"]) for call in sums}, {("dp", 2)})
                self.assertGreater(min(call["bytes"] for call in sums), 0)
            if thread == "compute":
                passes[rank] = [event for event in slices if "microbatch" in event["args"]]
        for rank, of_rank in passes.items():
            chunk = rank // 2
            for kind in ("forward", "backward"):
                names_of_kind = [event["name"] for event in of_rank if event["name"].startswith(kind)]
                self.assertEqual(names_of_kind, 2 * [f"{kind} mb {i} chunk {chunk}" for i in range(MICROBATCHES)])
            # The pass holds its arithmetic.
            of_pass = [event for event in threads[rank, "compute"] if event["name"] == "MatMul" and
                       of_rank[0]["ts"] <= event["ts"] and end_of(event) <= end_of(of_rank[0])]
            self.assertGreater(len(of_pass), 0)
        # On one node all clocks are one, so a clock's error is all that can be wrong: a micro batch is on the second stage after the first.
        inexact = 0
        for rank in range(4):
            exact = re.fullmatch(r"clock exact to ([\d.]+) us", names[rank]["process_labels", None])
            inexact = max(inexact, decimal.Decimal(exact[1]))
        for first, second in ((0, 2), (1, 3)):
            for kind, before, after in (("forward", first, second), ("backward", second, first)):
                ends = [end_of(event) for event in passes[before] if event["name"].startswith(kind)]
                begins = [event["ts"] for event in passes[after] if event["name"].startswith(kind)]
                for end, begin in zip(ends, begins):
                    self.assertLess(end, begin + 2 * inexact + decimal.Decimal("0.002"))

    def test_a_long_trace_is_cut_and_says_so(self):
        self.train(1, "--trace", "steps=1:90", steps=90, pp_size=1, layers=2, global_batch_size=32)
        threads, names = self.slices()
        calls = len(threads[0, "compute"])
        self.assertRegex(names[0]["process_labels", None], r"^clock exact to 0.0 us, \d+ calls left out for want of room$")
        self.assertGreater(calls, 50000)
        self.assertLessEqual(calls, 100000)
        self.assertEqual(len(threads[0, "steps"]), 90)

    def test_what_is_traced_changes_no_result(self):
        losses = []
        for flags in ((), ("--trace", "steps=1:6", "--profile", "--comm-log")):
            changes = {} if flags else {"trace_file": None}
            text = self.train(2, *flags, log_every=1, **changes)
            losses.append(re.findall(r"step (\d)/6  loss ([\d.]+)  grad ([\d.]+)", text))
        self.assertEqual(len(losses[0]), 6)
        self.assertEqual(losses[0], losses[1])

    def test_a_file_that_cannot_be_written_is_refused_before_the_first_step(self):
        text = self.train(2, "--trace", "steps=2:3", code=64, trace_file=self.path("no/such/folder/trace.json"))
        self.assertIn("trace_file: give one in a folder that can be written to", text)
        self.assertNotIn("step 1/", text)

    def test_steps_that_a_checkpoint_has_are_not_traced_again(self):
        saved = {"checkpoint_dir": self.path("checkpoints"), "checkpoint_every": 3}
        self.train(2, **{**saved, "trace_file": None, "steps": 3})
        text = self.train(2, "--trace", "steps=2:5", **saved)
        self.assertIn("trace of steps 4 to 5: ", text)
        text = self.train(2, "--trace", "steps=2:5", **{**saved, "steps": 8})
        self.assertIn("no trace: the steps to 5 were done before", text)
        self.assertEqual([name for name in os.listdir(self.path(".")) if name.endswith(".tmp")], [])


if __name__ == "__main__":
    unittest.main()
