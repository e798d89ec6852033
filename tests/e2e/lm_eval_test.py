"""EleutherAI's lm-evaluation-harness measures a model through `convene generate --serve`, as transformers does.

Needs it in the environment of tests: tools/torch_environment --transformers and --libraries.
"""

import json
import os
import re
import signal
import unittest

from tests.support import tokenizer_environment, torch_environment
from tests.support.convene_testing import find_program, wait_until
from tests.support.torch_testing import CONVENE, TorchTestCase, need_torch

SCRIPT = "tests/e2e/lm_eval_script.py"
TRAIN = "worker_runtime/trainer/convene-train"


def setUpModule():
    need_torch()
    if not os.path.exists(torch_environment.LM_EVAL):
        why = f"SKIPPED: no lm_eval in {torch_environment.LM_EVAL} (tools/torch_environment --libraries brings it)"
        print(why, flush=True)
        raise unittest.SkipTest(why)


class LmEvalTest(TorchTestCase):
    def script_says(self, *arguments):
        return self.finish(self.start_torch(torch_environment.PYTHON, find_program(SCRIPT), *arguments, PYTHONPATH=torch_environment.LM_EVAL), 300)

    def measured(self, folder, work):
        path = os.path.dirname(os.path.abspath(find_program(TRAIN))) + ":" + os.environ["PATH"]
        server = self.start(CONVENE, "generate", "--model", folder, "--device", "cpu", "--serve", 0, "--batch-size", 2, PATH=path)
        said = wait_until(lambda: re.search(r"is served at (http://127.0.0.1:\d+/v1)", self.output(server)), 60, lambda: self.output(server))
        os.mkdir(self.path(work))
        lines = self.script_says("ask", said.group(1), folder, self.path(work)).splitlines()
        server.send_signal(signal.SIGTERM)
        self.finish(server, 30, expected_code=128 + signal.SIGTERM)
        return json.loads([line for line in lines if line.startswith('{"scores"')][0])

    def check(self, measured, most):
        self.assertEqual(measured["scores"], 10)
        self.assertTrue(measured["same"])
        self.assertLess(measured["farthest"], most)

    def test_a_tiny_model_is_measured_as_by_transformers(self):
        self.script_says("make", self.path("tiny"))
        self.check(self.measured(self.path("tiny"), "work"), 1e-4)

    def test_a_real_model_is_measured_as_by_transformers(self):
        model = tokenizer_environment.vocabulary("smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
        if not model:
            self.skipTest(f"SKIPPED: no SmolLM2 in {tokenizer_environment.CACHE} (tools/tokenizer_environment fetches it)")
        self.finish(self.start(CONVENE, "checkpoint", "import", model, "--output", self.path("imported")), 120)
        self.finish(self.start(CONVENE, "checkpoint", "export", self.path("imported"), "--format", "hf", "--tokenizer", model,
                               "--output", self.path("smollm2")), 120)
        measured = self.measured(self.path("smollm2"), "work")
        self.check(measured, 1e-4)
        self.assertLess(measured["bits"], 2)


if __name__ == "__main__":
    unittest.main()
