"""A worker's environment and arguments, beside those under PyTorch's own torchrun with the same flags."""

import json
import os
import subprocess
import tempfile
import unittest

from tests.support import torch_environment
from tests.support.convene_testing import find_program, free_port
from tests.support.torch_testing import CONVENE, TORCHRUN_LINK, TorchTestCase, need_torch

# Prints everything that a program can see of its launcher. It does not import torch, so that it starts at once.
PRINT_ALL = """
import json, os, sys
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as out:
    json.dump({"environment": dict(os.environ), "arguments": sys.argv[1:], "name": __name__,
               "unbuffered": sys.stdout.write_through, "executable": sys.executable,
               "path": sys.path[0]}, out)
"""
# Each flag of torchrun's own parser: its spellings, and a value that it takes (None: a switch).
PRINT_FLAGS = """
import json, torch.distributed.run
flags = []
for action in torch.distributed.run.get_args_parser()._actions:
    value = None if action.nargs == 0 else str((action.choices and list(action.choices)[0]) or action.default or 1)
    if action.option_strings:
        flags.append([action.option_strings, value])
print(json.dumps(flags))
"""
# Names of a place: each launcher has its own.
PLACES = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"}


def read_seen(directory, rank):
    with open(os.path.join(directory, str(rank)), encoding="utf-8") as f:
        return json.load(f)


def setUpModule():
    need_torch()


class TorchWorkerEnvironmentTest(TorchTestCase):

    def seen(self, program, flags, workers, **environment):
        """The answer of each worker, by rank."""
        directory = tempfile.mkdtemp(dir=self.directory)
        script = self.script("print_all.py", PRINT_ALL)
        job = self.start_torch(program, *flags, script, directory, "--of-the-script", **environment)
        self.finish(job, 100)
        return [read_seen(directory, rank) for rank in range(workers)]

    def both(self, flags, workers, **environment):
        """(torchrun's, ours) for each worker."""
        theirs = self.seen(torch_environment.TORCHRUN, flags, workers, **environment)
        ours = self.seen(TORCHRUN_LINK, flags, workers, **environment)
        return list(zip(theirs, ours))

    def check_same(self, theirs, ours, but=frozenset()):
        set_by_them, set_by_us = theirs["environment"], ours["environment"]
        missing = set(set_by_them) - set(set_by_us)
        self.assertEqual(missing, set(), "variables that torchrun sets and we do not")
        extra = {name for name in set(set_by_us) - set(set_by_them)
                 if not name.startswith("CONVENE_")}
        self.assertEqual(extra, set(), "variables that torchrun does not set")
        for name in set(set_by_them) - but:
            if not name.startswith("CONVENE_"):
                self.assertEqual(set_by_us[name], set_by_them[name], name)
        for key in ("arguments", "name", "unbuffered", "executable", "path"):
            expected = theirs[key]
            if key == "arguments":
                expected = [ours[key][0], *expected[1:]]
            self.assertEqual(ours[key], expected, key)

    def test_a_job_with_a_rendezvous(self):
        flags = ["--nproc-per-node", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
                 "--rdzv-id", "job7", "--role", "trainer", "--max-restarts", 2, "-r", 3,
                 "--log-dir", self.path("logs"), "--signals-to-handle", "SIGTERM,SIGUSR1"]
        for rank, (theirs, ours) in enumerate(self.both(flags, 2)):
            self.check_same(theirs, ours, but=PLACES)
            error_file = ours["environment"]["TORCHELASTIC_ERROR_FILE"]
            self.assertRegex(error_file, rf"/logs/job7_[^/]+/attempt_0/{rank}/error\.json$")
            self.assertRegex(theirs["environment"]["TORCHELASTIC_ERROR_FILE"],
                             rf"/logs/job7_[^/]+/attempt_0/{rank}/error\.json$")

    def test_a_static_job_has_its_store_at_the_masters_port(self):
        port = free_port()
        flags = ["--master-addr", "127.0.0.1", "--master-port", port, "--virtual-local-rank",
                 "--nproc-per-node", 2]
        for rank, (theirs, ours) in enumerate(self.both(
                flags, 2, CUDA_VISIBLE_DEVICES="5,7", OMP_NUM_THREADS="3")):
            # Alone on its node ours has a name of its own: two jobs called "none" stay apart.
            self.check_same(theirs, ours, but={"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"})
            self.assertEqual(ours["environment"]["MASTER_PORT"], str(port))
            self.assertEqual(ours["environment"]["CUDA_VISIBLE_DEVICES"], ["5", "7"][rank])

    def test_roles_of_several_nodes(self):
        def seen_on_three(program):
            directory = tempfile.mkdtemp(dir=self.directory)
            script = self.script("print_all.py", PRINT_ALL)
            port = free_port()
            nodes = [self.start_torch(program, "--nnodes", 3, "--node-rank", rank, "--master-port", port, "--role", role,
                                      "--nproc-per-node", workers, script, directory)
                     for rank, role, workers in ((2, "actor", 2), (1, "critic", 1), (0, "actor", 1))]
            for node in nodes:
                self.finish(node, 200)
            return [read_seen(directory, rank) for rank in range(4)]

        for theirs, ours in zip(seen_on_three(torch_environment.TORCHRUN), seen_on_three(TORCHRUN_LINK)):
            self.check_same(theirs, ours, but=PLACES)

    def test_one_worker_keeps_its_threads_under_convene_run_too(self):
        seen = self.seen(CONVENE, ["run", "--standalone", "--rdzv-id", "alone"], 1, OMP_NUM_THREADS=None)[0]
        self.assertNotIn("OMP_NUM_THREADS", seen["environment"])
        self.assertEqual(seen["environment"]["TORCHELASTIC_RUN_ID"], "alone")
        self.assertTrue(seen["unbuffered"])

    def test_every_flag_of_torchruns_own_parser_is_taken_in_every_spelling(self):
        listing = self.start_torch(torch_environment.PYTHON, "-c", PRINT_FLAGS)
        flags = json.loads(self.finish(listing, 100).splitlines()[-1])
        self.assertGreater(len(flags), 25)
        for spellings, value in flags:
            for spelling in spellings:
                flag = spelling if value is None else f"{spelling}={value}"
                done = subprocess.run([find_program(TORCHRUN_LINK), flag, "--help"], check=False, capture_output=True, text=True)
                self.assertEqual((flag, done.returncode, done.stderr), (flag, 0, ""))

    def test_run_path_and_module_see_what_they_see_under_torchrun(self):
        theirs, ours = self.both(["--run-path"], 1)[0]
        for key in ("name", "arguments"):
            expected = theirs[key] if key == "name" else [ours[key][0], *theirs[key][1:]]
            self.assertEqual(ours[key], expected)


if __name__ == "__main__":
    unittest.main()
