"""Unmodified PyTorch against our store: the same cases against PyTorch's own server prove the cases themselves."""

import os
import subprocess
import unittest

from tests.support import torch_environment
from tests.support.convene_testing import ConveneTestCase, find_program
from tests.support.torch_testing import need_torch

STORE_MAIN = "rendezvous/store/testing/store_main"
HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "store_cases.py")
WORKER = os.path.join(HERE, "gloo_worker.py")
# As store_main does, it prints its port and serves until its standard input ends.
TORCH_SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


# The place of PyTorch's libraries; no warnings among the output; no pool of threads for each of a dozen processes.
ENVIRONMENT = {"LD_LIBRARY_PATH": torch_environment.torch_environment()["LD_LIBRARY_PATH"],
               "TORCH_CPP_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}


def setUpModule():
    need_torch()


class TorchStoreTest(ConveneTestCase):

    def start_torch(self, program, *arguments, log, **environment):
        return self.start(f"{torch_environment.VENV}/bin/{program}", *arguments, log=log, **ENVIRONMENT, **environment)

    def start_server(self, *command):
        """Returns the port that it prints; it ends with this test's end of its standard input."""
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  env={**os.environ, **ENVIRONMENT})
        self.addCleanup(server.wait, 30)
        self.addCleanup(server.stdin.close)
        self.addCleanup(server.stdout.close)
        return int(server.stdout.readline())

    def start_our_server(self):
        # Three threads: most wake-ups then go from one to another, whatever machine this is.
        return self.start_server(find_program(STORE_MAIN), "3")

    def test_clients_find_what_they_expect(self):
        cases = self.start_torch("python", CASES, self.start_our_server(), log="cases.log")
        print(self.finish(cases, 240))

    def test_pytorchs_own_server_agrees_with_the_cases(self):
        port = self.start_server(f"{torch_environment.VENV}/bin/python", "-c", TORCH_SERVER)
        cases = self.start_torch("python", CASES, port, log="cases.log")
        self.finish(cases, 240)

    def test_workers_meet_through_it_by_the_environment(self):
        port = self.start_our_server()
        # By `env`: the fixture keeps these names from what it starts.
        workers = [
            self.start("/usr/bin/env", f"RANK={rank}", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}",
                       "TORCHELASTIC_USE_AGENT_STORE=True", f"{torch_environment.VENV}/bin/python", WORKER, log=f"worker{rank}.log",
                       **ENVIRONMENT) for rank in range(2)
        ]
        for rank, worker in enumerate(workers):
            self.assertIn(f"rank {rank} of 2 on port {port} ok", self.finish(worker, 120))

    def test_two_stock_torchrun_nodes_meet_through_it(self):
        port = self.start_our_server()
        nodes = [
            self.start_torch("torchrun", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d",
                             f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=stock", "--rdzv-conf=is_host=0",
                             "--local-addr=127.0.0.1", WORKER, log=f"node{node}.log") for node in range(2)
        ]
        text = "".join(self.finish(node, 180) for node in nodes)
        for rank in range(4):
            self.assertRegex(text, f"rank {rank} of 4 on port .* ok")


if __name__ == "__main__":
    unittest.main(verbosity=2)
