"""Shared by tests of unmodified PyTorch programs: their environment, or the line that says why they are skipped."""

import os
import subprocess
import unittest

from tests.support import torch_environment
from tests.support.convene_testing import ConveneTestCase, find_program, wait_until

CONVENE = "launcher/convene"
TORCHRUN_LINK = "launcher/torchrun"  # our program under that name


def need_torch():
    """For setUpModule. One look at the disk: importing torch takes seconds."""
    if os.path.exists(torch_environment.TORCHRUN):
        return
    why = f"SKIPPED: no PyTorch in {torch_environment.VENV} (tools/torch_environment makes it)"
    print(why, flush=True)
    raise unittest.SkipTest(why)


class TorchTestCase(ConveneTestCase):
    """Programs started in the virtual environment, as if a person had activated it."""

    def start_torch(self, program, *arguments, **environment):
        """CONVENE_TRANSFORMERS names the folder of another transformers than the environment's, as tools/nightly does: it comes first."""
        variables = {"PATH": f"{torch_environment.VENV}/bin:{os.environ['PATH']}",
                     "LD_LIBRARY_PATH": torch_environment.torch_environment()["LD_LIBRARY_PATH"],
                     "XDG_CACHE_HOME": self.path("cache"),
                     **environment}
        if os.environ.get("CONVENE_TRANSFORMERS"):
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ["CONVENE_TRANSFORMERS"], environment.get("PYTHONPATH")]))
        return self.start(program, *arguments, **variables)

    def lock(self):
        """Flags of a node behind a locked door: a certificate of a CA of this test, and a join token."""
        subprocess.run([find_program("tools/certs"), self.path("ca"), "127.0.0.1"], check=True, capture_output=True, timeout=60)
        token = self.path("token")
        with open(token, "w", encoding="ascii", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
            file.write("Xz3Vq0k7sT1mN8bYw5Jr2aPfL9dH4eGc\n")
        return ["--tls-cert", self.path("ca/127.0.0.1/cert.pem"), "--tls-key", self.path("ca/127.0.0.1/key.pem"), "--tls-ca", self.path("ca/ca.pem"),
                "--join-token-file", token]

    def script(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.path(name)

    def wait_for_file(self, path, timeout_s=60):
        wait_until(lambda: os.path.exists(path), timeout_s, path)
