"""Static jobs on two nodes: unmodified PyTorch scripts that name the store in each way that works under torchrun."""

import unittest

from tests.support.convene_testing import free_port
from tests.support.torch_testing import TORCHRUN_LINK, TorchTestCase, need_torch

# Names the store in one of three forms; with a third argument rank 1 then fails once, when that file says that rank 0 is done.
SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist

host, port, rank, world = (os.environ[x] for x in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"))
rank, world = int(rank), int(world)
form = sys.argv[1]
if form == "store":
    store = dist.TCPStore(host, int(port), world, is_master=rank == 0)
    store.add("sum", rank + 1)
    store.set(f"added{rank}", "")
    store.wait([f"added{other}" for other in range(world)])
    total = int(store.get("sum"))
else:
    place = {} if form == "env://" else {"rank": rank, "world_size": world}
    dist.init_process_group("gloo", init_method=form, **place)
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    total = total.item()
    # As PyTorch asks: without it the end of the interpreter may find one of gloo's threads at work and abort.
    dist.destroy_process_group()
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"attempt {attempt} rank {rank} total {total}", flush=True)
if len(sys.argv) > 2 and attempt == "0":
    if rank == 1:
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
        sys.exit(3)
    open(sys.argv[2], "w").close()
"""


def setUpModule():
    need_torch()


class TorchStaticTest(TorchTestCase):

    def check_forms(self, forms, place, attempts, **environment):
        """Two nodes, the first one last."""
        script = self.script("form.py", SCRIPT)
        for form in forms:
            port = free_port()
            flags = [flag.format(port=port) for flag in place]
            fail = [self.path(f"done.{port}")] * (attempts - 1)
            nodes = [(rank, self.start_torch(TORCHRUN_LINK, "--nnodes", 2, "--node-rank", rank, *flags, "--max-restarts", 1,
                                             script, form.format(port=port), *fail, **environment)) for rank in (1, 0)]
            for rank, node in nodes:
                text = self.finish(node, 200)
                for attempt in range(attempts):
                    # Each attempt has a store of its own: nothing is counted twice.
                    self.assertIn(f"attempt {attempt} rank {rank} total 3\n", text, form)
            self.assert_nothing_left()

    def test_each_form_finds_the_store_and_a_fresh_one_after_a_restart(self):
        self.check_forms(["store", "tcp://localhost:{port}", "env://"],
                         ["--master-addr", "localhost", "--master-port", "{port}"], attempts=2)

    def test_a_place_written_as_an_endpoint_whatever_the_variable_says(self):
        self.check_forms(["tcp://localhost:{port}"], ["--rdzv-endpoint", "localhost:{port}"], attempts=1,
                         TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

    def test_behind_a_locked_door_too(self):
        self.check_forms(["store", "tcp://127.0.0.1:{port}", "env://"],
                         ["--master-addr", "127.0.0.1", "--master-port", "{port}", *self.lock()], attempts=2)


if __name__ == "__main__":
    unittest.main()
