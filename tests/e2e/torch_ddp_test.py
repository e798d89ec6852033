"""An unmodified PyTorch program, data parallel over gloo: one, two and four nodes, a worker killed in the middle, the same loss."""

import json
import re
import socket
import unittest

from tests.support.convene_testing import find_program
from tests.support.torch_testing import CONVENE, TORCHRUN_LINK, TorchTestCase, need_torch

SCRIPT = "tests/e2e/torch_ddp_script.py"
# The script kills one worker. The other restarts are spare: once in some 150 runs another worker died of a fatal
# signal (Python's faulthandler reported it), which none of our programs sends. The test prints such a death, with all
# output, and the job recovers from it as well.
RESTARTS = 3


def setUpModule():
    need_torch()


def free_port():
    """A port that the kernel just gave out: nodes have to agree on it beforehand."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class TorchDdpTest(TorchTestCase):
    _whole = None  # the uninterrupted run's result, once for all

    def train(self, name, commands, crash_rank=-1):
        """Runs the script by one command a node; the result that rank 0 wrote."""
        result = self.path(f"{name}.json")
        script = [find_program(SCRIPT), "--checkpoint", self.path(f"{name}.pt"), "--result", result,
                  "--crash-rank", crash_rank]
        nodes = [self.start_torch(program, *arguments, *script, log=f"{name}.{i}.log")
                 for i, (program, *arguments) in enumerate(commands)]
        output = "".join(self.finish(node, 200) for node in nodes)
        self.assert_nothing_left()
        killed = re.findall(r"rank \d+ \(pid \d+\) failed: killed by .*", output)
        planned = [line for line in killed if "SIGKILL" in line]
        self.assertEqual(len(planned), int(crash_rank >= 0), output)
        others = [line for line in killed if line not in planned]
        if others:
            print(f"NOTE {name}: besides the planned one: {others}\n{output}", flush=True)
        with open(result, encoding="ascii") as f:
            return {**json.load(f), "other_deaths": others}

    def whole(self):
        if TorchDdpTest._whole is None:
            TorchDdpTest._whole = self.train("whole", [[TORCHRUN_LINK]])
        return TorchDdpTest._whole

    def check_recovered(self, result, world):
        whole = self.whole()
        self.assertEqual(whole["attempt"], 0)
        self.assertEqual(whole["world"], 1)
        self.assertEqual(result["world"], world)
        if not result["other_deaths"]:
            self.assertEqual(result["attempt"], 1)
            self.assertEqual(result["first_epoch"], 2, "goes on from the checkpoint of epoch 1")
        # The same batches whatever the world's size; sums in another order.
        self.assertAlmostEqual(result["loss"], whole["loss"], places=5)

    def test_one_node_under_convene_run(self):
        self.check_recovered(self.train("one", [[
            CONVENE, "run", "--nproc-per-node", 2, "--max-restarts", RESTARTS]], crash_rank=1), 2)

    def test_two_static_nodes_under_the_name_torchrun(self):
        port = free_port()
        self.check_recovered(self.train("two", [[
            TORCHRUN_LINK, "--nnodes", 2, "--nproc_per_node", 1, "--node_rank", rank,
            "--master_addr", "127.0.0.1", "--master_port", port, "--max_restarts", RESTARTS]
            for rank in (0, 1)], crash_rank=1), 2)

    def test_two_nodes_behind_a_locked_door(self):
        port, lock = free_port(), self.lock()
        self.check_recovered(self.train("locked", [[
            CONVENE, "run", "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "locked", *lock, "--max-restarts", RESTARTS]
            for _ in range(2)], crash_rank=1), 2)

    def test_four_nodes_meet_at_an_endpoint(self):
        port = free_port()
        self.check_recovered(self.train("four", [[
            CONVENE, "run", "--nnodes", 4, "--rdzv-backend", "c10d", "--rdzv-endpoint",
            f"127.0.0.1:{port}", "--rdzv-id", "four", "--max-restarts", RESTARTS]
            for _ in range(4)], crash_rank=2), 4)


if __name__ == "__main__":
    unittest.main()
