"""The tree of log files, beside the one that PyTorch's own torchrun writes with the same flags."""

import glob
import os
import re
import tempfile
import unittest

from tests.support import torch_environment
from tests.support.torch_testing import TORCHRUN_LINK, TorchTestCase, need_torch

# Each line is one write. torchrun starts Python unbuffered, where print writes word by word, and leaves two workers on one
# descriptor: their words would mix on its console (seen once in 60 runs on a busy machine, and in CI).
SCRIPT = """
import os, sys
rank = os.environ["RANK"]
sys.stdout.write(f"out of {rank}\\n")
sys.stdout.write(f"apple of {rank}\\n")
sys.stderr.write(f"err of {rank}\\n")
"""


def setUpModule():
    need_torch()


class TorchLogsTest(TorchTestCase):

    def logged(self, program, flags):
        """(relative path -> sorted lines of each file, the workers' lines on the console)."""
        directory = tempfile.mkdtemp(dir=self.directory)
        job = self.start_torch(program, "--nproc-per-node", 2, "--role", "trainer", "--rdzv-id", "id",
                               "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
                               "--log-dir", directory, *flags, self.script("script.py", SCRIPT))
        console = self.finish(job, 100)
        files = {}
        for path in glob.glob(f"{directory}/**", recursive=True):
            name = re.sub(r"^id_[^/]+", "id", os.path.relpath(path, directory))
            if os.path.isfile(path):
                with open(path, encoding="utf-8") as f:
                    files[name] = sorted(f.read().splitlines())
            else:
                files[name + "/"] = []
        return files, sorted(line for line in console.splitlines() if re.search(r" of [01]$", line))

    def check_same(self, *flags):
        theirs = self.logged(torch_environment.TORCHRUN, flags)
        ours = self.logged(TORCHRUN_LINK, flags)
        self.assertEqual(ours[0], theirs[0], f"files with {flags}")
        self.assertEqual(ours[1], theirs[1], f"console with {flags}")

    def test_redirected(self):
        self.check_same("-r", "3")

    def test_teed(self):
        self.check_same("-t", "3")

    def test_by_local_rank_filtered_and_with_a_template(self):
        self.check_same("-r", "0:1", "-t", "1:3", "--duplicate-stdout-filters", "apple",
                        "--log-line-prefix-template", "<${role_name} ${local_rank} ${rank}>")

    def test_a_directory_alone(self):
        self.check_same()


if __name__ == "__main__":
    unittest.main()
