"""Two rarer services of torchrun's to unmodified PyTorch programs: the file timer, and a store that the worker of rank 0 serves itself."""

import unittest

from tests.support.torch_testing import CONVENE, TorchTestCase, need_torch

TIMED = """
import os, signal, time
import torch.distributed.elastic.timer as timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"], signal.SIGKILL))

def stuck_in_the_second_step():
    time.sleep(120)

for step in range(2):
    with timer.expires(after=60 if step == 0 else 1, scope="a step"):
        print(f"rank {os.environ['RANK']} step {step}", flush=True)
        if step == 1 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            stuck_in_the_second_step()
        time.sleep(0.1)
"""

# As programs do that make their own store and know nothing of an agent's.
OWN_STORE = """
import datetime, os
from torch.distributed import TCPStore
assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False"
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, is_master=rank == 0,
                 timeout=datetime.timedelta(seconds=60))
store.set(f"rank{rank}", "here")
store.wait([f"rank{other}" for other in range(size)])
import torch.distributed as dist
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
dist.barrier()
print(f"rank {rank} of {size} met the others", flush=True)
"""


def setUpModule():
    need_torch()


class TorchTimerTest(TorchTestCase):

    def test_a_worker_whose_timer_is_over_is_killed_told_of_and_started_again(self):
        run = self.start_torch(CONVENE, "run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, self.script("timed.py", TIMED),
                               TORCHELASTIC_ENABLE_FILE_TIMER="1")
        text = self.finish(run, 120)
        self.assertRegex(text, r'process \d+: its timer "a step" is over')
        self.assertRegex(text, r'rank 1 \(pid \d+\) failed: its timer "a step" is over \(torch.distributed.elastic.timer\)')
        self.assertEqual(text.count("rank 1 step 1"), 2, text)
        self.assert_nothing_left()

    def test_without_the_variable_there_is_no_timer(self):
        script = self.script("none.py", "import os\nassert 'TORCHELASTIC_TIMER_FILE' not in os.environ\n")
        self.finish(self.start_torch(CONVENE, "run", "--standalone", script), 60)

    def test_a_path_that_cannot_be_used_is_said_before_anything_starts(self):
        run = self.start_torch(CONVENE, "run", "--standalone", self.script("none.py", "print('started')\n"),
                               TORCHELASTIC_ENABLE_FILE_TIMER="1", TORCHELASTIC_TIMER_FILE=self.data)
        text = self.finish(run, 20, expected_code=64)
        self.assertIn(f"{self.data} is there already and is no FIFO", text)
        self.assertNotIn("started", text)

    def test_the_worker_of_rank_0_serves_the_store_where_it_is_not_to_be_shared(self):
        script = self.script("own_store.py", OWN_STORE)
        run = self.start_torch(CONVENE, "run", "--standalone", "--nproc-per-node", 2, script, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        text = self.finish(run, 120)
        self.assertIn("rank 0 of 2 met the others", text)
        self.assertIn("rank 1 of 2 met the others", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
