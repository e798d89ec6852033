"""OpenAI's own client (PyPI's `openai`) asks a checkpoint through `convene generate --serve`.

Needs it in the environment of tests: tools/torch_environment --libraries.
"""

import glob
import json
import os
import re
import signal
import unittest

from tests.support import torch_environment
from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase, find_program, make_text, wait_until

SCRIPT = "tests/e2e/openai_client_script.py"
TEMPLATE = "{% for message in messages %}[{{ message.content }}]{% endfor %}"


def setUpModule():
    if not glob.glob(f"{torch_environment.VENV}/lib/python3*/site-packages/openai"):
        why = f"SKIPPED: no openai in {torch_environment.VENV} (tools/torch_environment --libraries brings it)"
        print(why, flush=True)
        raise unittest.SkipTest(why)


class OpenAiClientTest(ConveneTestCase):

    def test_a_checkpoint_answers_openais_client_as_it_answers_the_command(self):
        make_text(self.path("text.txt"), 3000)
        os.mkdir(self.path("model"))
        with open(self.path("model/tokenizer.json"), "w", encoding="utf-8") as out:
            json.dump(self.bytes_alone(), out)
        with open(self.path("model/chat_template.jinja"), "w", encoding="utf-8") as out:
            out.write(TEMPLATE)
        self.finish(self.start(CONVENE_TRAIN, "--data", self.path("text.txt"), "--tokenizer", self.path("model"), "--steps", 8, "--sequence-length", 32,
                               "--layers", 2, "--hidden-size", 32, "--ffn-size", 48, "--heads", 4, "--kv-heads", 2, "--head-size", 8,
                               "--device", "cpu", "--checkpoint-dir", self.path("run"), "--token-cache-dir", self.path("cache")), 60)
        path = {"PATH": os.path.dirname(os.path.abspath(find_program(CONVENE_TRAIN))) + ":" + os.environ["PATH"]}
        model = ["generate", "--model", self.path("run"), "--device", "cpu"]
        one = [*model, "--max-new-tokens", 9, "--prompt", "the node"]
        text = self.answer(*one, **path)
        chat = self.answer(*one, "--chat", **path)
        server = self.start(CONVENE, *model, "--serve", 0, **path)
        address = wait_until(lambda: re.search(r"is served at (http://127.0.0.1:\d+/v1)", self.output(server)), 60, lambda: self.output(server)).group(1)
        said = self.finish(self.start(SCRIPT, address, "the node", prefix=[torch_environment.PYTHON]), 60)
        said = json.loads(re.search(r"^said (.*)$", said, re.MULTILINE).group(1))
        server.send_signal(signal.SIGTERM)
        self.finish(server, 30, expected_code=128 + signal.SIGTERM)
        self.assertEqual(said["model"], "run")
        self.assertEqual((said["text"], said["text_stream"], said["end"], said["text_tokens"], len(said["text_scores"])), (text, text, "length", 9, 9))
        self.assertEqual((said["chat"], said["chat_stream"], said["role"], said["chat_stream_tokens"]), (chat, chat, "assistant", 9))
        self.assertEqual([count for _, count in said["chat_scores"]], [2] * 9)
        for kind in ("text", "chat"):
            self.assertEqual(said[f"{kind}_stream_scores"], said[f"{kind}_scores"])
        self.assertEqual(len(said["sampled"]), 2)
        self.assertEqual(said["stopped"], text[:text.index(text[3])])
        self.assertIn("the id 100000, and the model has", said["refusal"])

    def answer(self, *arguments, **environment):
        """Without the line's end."""
        said = self.finish(self.start(CONVENE, *arguments, CONVENE_LOG_LEVEL="error", **environment), 60)
        return said[:-1]

    def bytes_alone(self):
        """A tokenizer.json of 256 bytes, under GPT-2's names for them."""
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in plain]
        names = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
        return {"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                "model": {"type": "BPE", "vocab": {names[byte]: byte for byte in range(256)}, "merges": []}}


if __name__ == "__main__":
    unittest.main()
