"""convene.checkpoint: a killed worker's state comes back from memory, whole and of one step on all ranks; bad input and bad disks."""

import json
import os
import re
import shutil
import unittest

from tests.support.convene_testing import CONVENED, find_program, wait_until, whole_lines
from tests.support.torch_testing import CONVENE, TorchTestCase, need_torch

RANKS = 2


def setUpModule():
    need_torch()


class TorchCheckpointTest(TorchTestCase):
    def start_script(self, flags, name, *arguments):
        packages = os.path.dirname(os.path.dirname(find_program("tools/deploy/python/convene/checkpoint.py")))
        return self.start_torch(CONVENE, "run", *flags, find_program(f"tests/e2e/{name}.py"), *arguments, PYTHONPATH=packages, PYTHONDONTWRITEBYTECODE="1",
                                log=f"{len(os.listdir(self.path('.')))}.log")

    def run_script(self, name, *arguments, restarts=0):
        text = self.finish(self.start_script(["--standalone", "--nproc-per-node", RANKS, "--max-restarts", restarts], name, *arguments), 200)
        self.assert_nothing_left()
        return text

    def results(self, folder):
        results = []
        for rank in range(RANKS):
            with open(f"{folder}/result.{rank}", encoding="ascii") as file:
                results.append(json.load(file))
        return results

    def train(self, name, *arguments):
        folder = self.path(name)
        os.mkdir(folder)
        self.run_script("torch_checkpoint_script", "--folder", folder, *arguments, restarts=2 * len(arguments))
        return self.results(folder)

    def test_killed_within_a_save_and_between_saves(self):
        """Of the step of the first death the other rank has a whole copy, the dead one has not. The files are gone before each death."""
        for whole, got in zip(self.train("whole"), self.train("dies", "--dies")):
            self.assertEqual((whole["starts"], got["starts"]), ([], [5, 8]))
            self.assertEqual(got["losses"], whole["losses"])
            self.assertEqual(got["weights"], whole["weights"])

    def start_daemon(self):
        daemon = self.start_torch(CONVENED, "--host", "127.0.0.1", "--port", 0, log="daemon.log")
        address = wait_until(lambda: re.search(r"127\.0\.0\.1:\d+", self.output(daemon)), 10, "the daemon's address").group()
        return daemon, ["--nproc-per-node", 1, "--rdzv-endpoint", address, "--rdzv-id", "states", "--max-restarts", 9]

    def test_a_lost_nodes_state_comes_from_the_other_node(self):
        """No file is written: what the new node's rank needs stands in the memory of the node that is left."""
        daemon, flags = self.start_daemon()
        folder = self.path("nodes")
        os.mkdir(folder)

        def start_node(rank):
            return self.start_script([*flags, "--nnodes", RANKS, "--node-rank", rank], "torch_checkpoint_script", "--folder", folder, "--replicas", 1)
        first, lost = start_node(0), start_node(1)
        self.wait_for_file(f"{folder}/rests", 100)
        lost.kill()
        again = start_node(1)
        for node in (first, again):
            self.finish(node, 200)
        daemon.kill()
        daemon.wait()
        for whole, got in zip(self.train("whole"), self.results(folder)):
            self.assertEqual(got["starts"], [6])
            self.assertEqual((got["losses"], got["weights"]), (whole["losses"], whole["weights"]))

    def assert_loads_are_saves(self, notes):
        saved = {0: None}
        for line in map(json.loads, whole_lines(notes)):
            if line["what"] == "save":
                saved[line["step"]] = line["digest"]
            elif line["what"] == "load" and line["step"] > 0:
                self.assertEqual(line["digest"], saved[line["step"]], line)

    def test_shards_for_another_number_of_ranks(self):
        """FSDP2 with AdamW: three nodes, two, three; from the memory of other nodes and from disk. Each load gives what was saved, bit by bit."""
        daemon, flags = self.start_daemon()
        folder = self.path("shards")
        os.mkdir(folder)
        notes = f"{folder}/notes"

        def write(name, number):
            with open(f"{folder}/{name}.new", "w", encoding="ascii") as out:
                out.write(str(number))
            os.rename(f"{folder}/{name}.new", f"{folder}/{name}")

        def noted(what, ranks):
            return [line for line in map(json.loads, whole_lines(notes)) if (line["what"], line["ranks"]) == (what, ranks)]

        def rests(ranks, step, loads):
            """The step that the last of so many loads gave, when so many ranks rest behind this step."""
            wait_until(lambda: len(noted("load", ranks)) == loads and noted("rest", ranks)[loads - 1:], 150,
                       lambda: f"{ranks} ranks at step {step}: {whole_lines(notes)[-3:]} {self.output(nodes[0])[-2000:]}")
            self.assertEqual(noted("rest", ranks)[-1]["step"], step)
            return noted("load", ranks)[-1]["step"]

        def forget(ranks, step, loads):
            """The memory of all nodes is emptied: the ranks go on from disk."""
            write("forget", len(whole_lines(notes)))
            return rests(ranks, step, loads)

        def start_node():
            return self.start_script([*flags, "--nnodes", "2:3"], "torch_reshard_script", folder, 1)

        write("go", 5)
        nodes = [start_node() for _ in range(3)]
        rests(3, 5, 1)
        os.rename(f"{folder}/states", f"{folder}/away")
        nodes.pop().kill()
        self.assertEqual(rests(2, 5, 1), 5)  # from the memory of two nodes, for there is no file
        shutil.rmtree(f"{folder}/states")
        os.rename(f"{folder}/away", f"{folder}/states")
        self.assertEqual(forget(2, 5, 2), 5)  # three ranks' files
        torn = [name for name in os.listdir(f"{folder}/states") if re.fullmatch(r"step-5\..*rank-2-of-3\.state", name)]
        with open(f"{folder}/states/{torn[0]}", "r+b") as out:
            out.seek(9000)
            out.write(b"torn")
        self.assertEqual(forget(2, 5, 3), 4)
        os.rename(f"{folder}/states", f"{folder}/away")
        nodes.append(start_node())
        self.assertEqual(rests(3, 5, 2), 5)  # two ranks' memory
        shutil.rmtree(f"{folder}/states")
        os.rename(f"{folder}/away", f"{folder}/states")
        self.assertEqual(forget(3, 5, 3), 5)  # two ranks' files
        write("go", 8)
        wait_until(lambda: noted("rest", 3)[-1]["step"] == 8, 30, "the last step")
        write("go", 0)
        for node in nodes:
            self.finish(node, 100)
        daemon.kill()
        daemon.wait()
        self.assert_loads_are_saves(notes)
        last = noted("save", 3)[-1]["weights"]
        write("go", 8)
        shutil.rmtree(f"{folder}/states")
        os.rename(notes, f"{folder}/notes of the job with deaths")
        whole = self.start_script(["--standalone"], "torch_reshard_script", folder, 0)
        wait_until(lambda: noted("rest", 1), 100, "a job of one rank without deaths")
        write("go", 0)
        self.finish(whole, 60)
        for got, wanted in zip(last, noted("save", 1)[-1]["weights"]):
            self.assertAlmostEqual(got, wanted, 4)

    def test_bad_input_and_bad_disks(self):
        text = self.run_script("torch_checkpoint_cases", self.path("."))
        self.assertEqual(text.count("is right"), 24 * RANKS, text)


if __name__ == "__main__":
    unittest.main()
