"""`convene generate` as a person uses it: a text, a file of texts, lines of stdin, and mistakes."""

import base64
import gzip
import json
import math
import os
import re
import signal
import subprocess
import unittest
import urllib.error
import urllib.request

from tests.support import tokenizer_environment
from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase, make_text, wait_until


class GenerateTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        make_text(self.path("text.txt"), 4000)
        shape = ["--layers", 2, "--hidden-size", 32, "--ffn-size", 48, "--heads", 4, "--kv-heads", 2, "--head-size", 8, "--vocabulary-size", 256]
        self.finish(self.start(CONVENE_TRAIN, "--data", self.path("text.txt"), "--steps", 3, "--sequence-length", 32, *shape,
                               "--device", "cpu", "--checkpoint-dir", self.path("run"), "--token-cache-dir", self.path("cache")), 60)
        self.model = ["--model", self.path("run"), "--tokenizer", "byte", "--device", "cpu", "--max-new-tokens", 9]

    def generate(self, *arguments, stdin="", code=0):
        words = [str(word) for word in (CONVENE, "generate", *self.model, *arguments)]
        environment = {**os.environ, "PATH": os.path.dirname(os.path.abspath(CONVENE_TRAIN)) + ":" + os.environ["PATH"]}
        done = subprocess.run(words, input=stdin.encode(), capture_output=True, check=False, timeout=60, env=environment)
        self.assertEqual(done.returncode, code, done.stderr)
        self.said = done.stderr.decode()
        return (done.stdout if code == 0 else done.stderr).decode()

    def answers(self, *arguments):
        with open(self.path("prompts.jsonl"), "w", encoding="utf-8") as out:
            for prompt in ("a", "several words that are longer", "é", "b"):
                out.write(json.dumps({"prompt": prompt}) + "\n\n")
        text = self.generate("--prompts", self.path("prompts.jsonl"), *arguments)
        return [json.loads(line) for line in text.splitlines()]

    def test_one_text_a_file_and_lines_have_the_same_answers(self):
        first = self.answers("--batch-size", 3)
        self.assertEqual([(answer["tokens"], answer["end"]) for answer in first], [(9, "length")] * 4)
        self.assertEqual(first, self.answers("--batch-size", 1))
        self.assertEqual(self.generate("--prompt", "a"), first[0]["text"] + "\n")
        self.assertEqual(self.generate(stdin="a\n\nb\n"), first[0]["text"] + "\n" + first[3]["text"] + "\n")
        sampled = self.answers("--temperature", 1.5, "--seed", 4)
        self.assertNotEqual(sampled, first)
        self.assertEqual(sampled, self.answers("--temperature", 1.5, "--seed", 4, "--batch-size", 2))
        self.assertEqual(self.generate("--prompts", self.path("prompts.jsonl"), "--output", self.path("out.jsonl")), "")
        with open(self.path("out.jsonl"), encoding="utf-8") as file:
            self.assertEqual([json.loads(line) for line in file], first)

    def test_processes_answer_as_one_and_end_together(self):
        first = self.answers()
        expected = self.generate("--prompt", "abc", "--temperature", 1.2)
        for layout in (["--tp-size", 2], ["--pp-size", 2], ["--tp-size", 2, "--pp-size", 2]):
            self.assertEqual(self.generate("--prompt", "abc", "--temperature", 1.2, *layout), expected)
        self.assertEqual(self.answers("--tp-size", 2, "--batch-size", 3), first)
        self.assertEqual(self.generate("--prompts", self.path("prompts.jsonl"), "--output", self.path("out.jsonl"), "--pp-size", 2), "")
        with open(self.path("out.jsonl"), encoding="utf-8") as file:
            self.assertEqual([json.loads(line) for line in file], first)
        for arguments, words in (
                (["--tp-size", 2], "lines that are typed go to one process"),
                (["--pp-size", 2, "--serve", 0], "--serve answers from one process"),
                (["--tp-size", 3, "--prompt", "a"], "tp_size can be 1, 2"),
                (["--pp-size", 9, "--prompt", "a"], "layers")):
            self.assertIn(words, self.generate(*arguments, code=64))
        path = os.path.dirname(os.path.abspath(CONVENE_TRAIN)) + ":" + os.environ["PATH"]
        with open(self.path("endless.jsonl"), "w", encoding="ascii") as file:
            file.write('{"prompt":"a"}\n' * 100_000)
        command = self.start(CONVENE, "generate", *self.model[:-1], 1000, "--context", 1000, "--ignore-end", "--prompts",
                             self.path("endless.jsonl"), "--output", self.path("endless.out"), "--pp-size", 2, PATH=path)
        pids = wait_until(lambda: len(self.workers()) == 2 and self.workers(), 60, lambda: self.output(command))
        wait_until(lambda: os.path.exists(self.path("endless.out.partial")), 60, lambda: self.output(command))
        os.kill(pids[1], signal.SIGKILL)
        # 69 where rank 0 misses its peer, and has ended, before the kernel tells of the peer's end.
        self.assertIn(command.wait(60), (137, 69), self.output(command))
        self.assertIn("killed by SIGKILL" if command.returncode == 137 else "rank 1", self.output(command))
        self.assertFalse(os.path.exists(self.path("endless.out")))

    def test_texts_between_steps_are_the_same_on_each_layout(self):
        training = [CONVENE_TRAIN, "--data", self.path("text.txt"), "--steps", 4, "--sequence-length", 32, "--model", "llama-tiny",
                    "--layers", 2, "--global-batch-size", 8, "--micro-batch-size", 2, "--device", "cpu", "--token-cache-dir", self.path("cache"),
                    "--learning-rate", 6e-3]
        samples = ["--sample-every", 2, "--sample-prompt", "a \"b\"\n", "cd", "--sample-tokens", 7, "--sample-temperature", 1]

        def lines(name, *words):
            said = self.finish(self.start(*words, "--metrics-file", self.path(name)), 120)
            with open(self.path(name), encoding="utf-8") as file:
                return said, [json.loads(line) for line in file]
        _, plain = lines("plain", *training)
        said, alone = lines("alone", *training, *samples)
        _, four = lines("four", CONVENE, "run", "--standalone", "--nproc-per-node", 4, *training, "--tp-size", 2, "--pp-size", 2, *samples)

        def of(records, key):
            return [record for record in records if key in record]
        texts = of(alone, "sample_text")
        self.assertEqual([(text["step"], text["sample_prompt"], text["sample_tokens"]) for text in texts],
                         [(step, prompt, 7) for step in (2, 4) for prompt in ("a \"b\"\n", "cd")])
        self.assertEqual(of(four, "sample_text"), texts)
        self.assertEqual([step["loss"] for step in of(alone, "loss")], [step["loss"] for step in of(plain, "loss")])
        self.assertIn('sample after step 2: "a \\"b\\"\\n" ', said)
        said = self.finish(self.start(*training, "--sample-every", 2), 60, expected_code=64)
        self.assertIn("add --sample-prompt TEXT", said)

    def test_each_mistake_costs_one_paragraph(self):
        for arguments, words in (
                (["--prompt", "a" * 50, "--context", 20], "prompt 1 of 1 has 50 tokens, and the context has room for 20"),
                (["--prompt", "a", "--tokenizer", self.big_tokenizer()], "has 300 tokens, and the model"),
                (["--prompt", "a", "--model", self.path("none")], "none"),
                (["--prompt", "a", "--top-p", 2], "--top-p is 2, but must be from 0"),
                (["--prompt", "a", "--top-k", 3], "--top-k changes no answer: --temperature 0 takes the likeliest"),
                (["--prompt", ""], "--prompt= has no value"),
                (["--prompts", self.path("text.txt")], "text.txt, line 1"),
                (["--serve", 0], "--max-new-tokens changes no answer of --serve"),
                (["--serve", 0, "--max-new-tokens", 128, "--top-k", 3], "--top-k changes no answer of --serve"),
                (["--serve", 0, "--system", "be brief"], "--system changes no answer of --serve"),
        ):
            said = self.generate(*arguments, code=64)
            self.assertIn(words, said)
            self.assertEqual(said.count("\n"), 1, said)
        self.answers()
        said = self.generate("--prompts", self.path("prompts.jsonl"), "--output", "/dev/full", code=1)
        self.assertIn("/dev/full: No space left on device", said)
        # An older file stays until all answers are written.
        with open(self.path("kept.jsonl"), "w", encoding="ascii") as file:
            file.write("before")
        self.generate("--prompts", self.path("prompts.jsonl"), "--output", self.path("kept.jsonl"), "--context", 10, code=64)
        with open(self.path("kept.jsonl"), encoding="ascii") as file:
            self.assertEqual(file.read(), "before")
        self.assertFalse(os.path.exists(self.path("kept.jsonl.partial")))

    def test_an_answer_that_the_context_cuts_is_told_once(self):
        self.generate("--prompt", "a")
        self.assertNotIn("--context", self.said)
        for layout in ([], ["--tp-size", 2]):
            self.generate("--prompt", "abcdefgh", "--context", 12, "--ignore-end", *layout)
            self.assertEqual(self.said.count("the answer ends where the context of 12 tokens is full (--context), before --max-new-tokens 9"), 1, self.said)

    def test_a_chat_that_has_filled_its_context_begins_anew(self):
        os.mkdir(self.path("chat"))
        with open(self.path("chat/bytes.tiktoken"), "w", encoding="ascii") as out:
            out.writelines(f"{base64.b64encode(bytes([i])).decode()} {i}\n" for i in range(256))
        with open(self.path("chat/tokenizer_config.json"), "w", encoding="ascii") as out:
            json.dump({"pat_str": "[^ ]+| +", "chat_template": "{% for message in messages %}[{{ message.content }}]{% endfor %}"}, out)
        chat = ["--tokenizer", self.path("chat"), "--chat", "--context", 24]
        first, third = (self.generate(*chat, "--prompt", line) for line in ("abcd", "efgh"))
        # The second line has room alone neither.
        self.assertEqual(self.generate(*chat, stdin=f"abcd\n{'x' * 30}\nefgh\n"), first + third)
        self.assertNotEqual(self.generate(*chat, "--context", 60, stdin="abcd\nefgh\n"), first + third)

    def test_a_command_that_is_stopped_says_where_its_answers_are(self):
        with open(self.path("endless.jsonl"), "w", encoding="ascii") as file:
            file.write('{"prompt":"a"}\n' * 100_000)
        path = os.path.dirname(os.path.abspath(CONVENE_TRAIN)) + ":" + os.environ["PATH"]
        command = self.start(CONVENE, "generate", *self.model, "--ignore-end", "--prompts", self.path("endless.jsonl"), "--output", self.path("out.jsonl"),
                             PATH=path)
        partial = self.path("out.jsonl.partial")
        wait_until(lambda: os.path.exists(partial) and os.path.getsize(partial), 60, lambda: self.output(command))
        command.send_signal(signal.SIGINT)
        said = self.finish(command, 30, expected_code=-signal.SIGINT)
        self.assertIn(f"stopped before all answers were there; those that were whole are in {partial}", said)
        with open(partial, encoding="utf-8") as file:
            self.assertEqual(json.loads(file.readline())["tokens"], 9)

    def test_texts_that_are_longer_than_the_model_was_made_for_are_told(self):
        folder = self.path("exported")
        self.finish(self.start(CONVENE, "checkpoint", "export", self.path("run"), "--format", "hf", "--output", folder), 60)
        with open(os.path.join(folder, "config.json"), "r+", encoding="utf-8") as file:
            config = json.load(file)
            config["max_position_embeddings"] = 64
            file.seek(0)
            file.truncate()
            json.dump(config, file)
        words = "made for texts of 64 tokens"
        path = os.path.dirname(os.path.abspath(CONVENE_TRAIN)) + ":" + os.environ["PATH"]
        for prompt, is_told in (("a" * 55, False), ("a" * 56, True)):
            said = self.finish(self.start(CONVENE, "generate", *self.model, "--model", folder, "--prompt", prompt, PATH=path), 60)
            self.assertEqual(words in said, is_told, said)

    def ask(self, address, path, **request):
        body = json.dumps(request).encode() if request else None
        try:
            with urllib.request.urlopen(urllib.request.Request(address + path, body), timeout=60) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return f"{error.code} {error.read().decode()}"

    def test_a_server_answers_as_the_command_does_until_a_signal(self):
        environment = {"PATH": os.path.dirname(os.path.abspath(CONVENE_TRAIN)) + ":" + os.environ["PATH"]}
        server = self.start(CONVENE, "generate", *self.model[:-2], "--model", self.path("run") + "/", "--serve", 0, "--context", 32, **environment)
        said = wait_until(lambda: re.search(r"run is served at (http://127.0.0.1:\d+)/v1", self.output(server)), 60, lambda: self.output(server))
        address = said.group(1)
        text = json.loads(self.ask(address, "/v1/completions", prompt="a", max_tokens=9, temperature=0))
        self.assertEqual(text["choices"][0]["text"] + "\n", self.generate("--prompt", "a"))
        self.assertEqual((text["usage"]["completion_tokens"], text["choices"][0]["finish_reason"]), (9, "length"))
        events = self.ask(address, "/v1/completions", prompt="a", max_tokens=9, temperature=0, stream=True).split("\n\n")
        self.assertEqual(events[-2:], ["data: [DONE]", ""])
        pieces = [json.loads(event[len("data: "):])["choices"][0]["text"] for event in events[:-2]]
        self.assertEqual("".join(pieces), text["choices"][0]["text"])
        self.scores_are_told(address)
        for path, request, words in (
                ("/v1/completions", {"prompt": [1, 256]}, "400 .*the id 256, and the model has 256 tokens"),
                ("/v1/completions", {"prompt": ""}, "400 .*has no token"),
                ("/v1/completions", {"prompt": [[1] * 31] * 256, "n": 64, "logprobs": 20, "echo": True, "max_tokens": 0},
                 "400 .*10665984 log-probabilities of prompts, and 4194304 are the most"),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "400 .*has no chat template"),
                ("/", {}, "404 .*POST /v1/completions")):
            self.assertRegex(self.ask(address, path, **request), words)
        self.assertIn('"id":"run"', self.ask(address, "/v1/models"))
        port = address.split(":")[-1]
        del self.model[-2:]
        self.assertIn("another program has the port", self.generate("--serve", port, code=69))
        server.send_signal(signal.SIGTERM)
        self.finish(server, 30, expected_code=128 + signal.SIGTERM)

    def scores_are_told(self, address):
        """Prompts side by side and alone, with and without an answer; places are those of characters."""
        def scores(**request):
            return [choice for choice in json.loads(self.ask(address, "/v1/completions", temperature=0, logprobs=2, **request))["choices"]]
        prompts = ["né ab", [104, 105], "x"]
        both = scores(prompt=prompts, echo=True, max_tokens=3)
        self.assertEqual([choice["logprobs"]["text_offset"][:-3] for choice in both], [[0, 1, 1, 2, 3, 4], [0, 1], [0]])
        self.assertEqual([choice["logprobs"]["tokens"][:-3] for choice in both],
                         [["n", "bytes:\\xc3", "bytes:\\xa9", " ", "a", "b"], ["h", "i"], ["x"]])
        self.assertEqual([choice["text"][:length] for choice, length in zip(both, (5, 2, 1))], ["né ab", "hi", "x"])
        for prompt, choice in zip(prompts, both):
            told = choice["logprobs"]
            self.assertEqual((told["token_logprobs"][0], told["top_logprobs"][0]), (None, None))
            for score, top in zip(told["token_logprobs"][1:], told["top_logprobs"][1:]):
                self.assertIn(score, top.values())
                self.assertTrue(2 <= len(top) <= 3)
            answer = scores(prompt=prompt, max_tokens=3)[0]["logprobs"]
            self.assertEqual(answer["tokens"], told["tokens"][-3:])
            self.assertEqual(answer["text_offset"][0], 0)
            self.assertEqual(answer["token_logprobs"], [max(top.values()) for top in answer["top_logprobs"]])
            for alone, beside in zip(answer["token_logprobs"], told["token_logprobs"][-3:]):
                self.assertAlmostEqual(alone, beside, delta=1e-4)
            only = scores(prompt=prompt, echo=True, max_tokens=0)[0]
            self.assertEqual(len(only["logprobs"]["tokens"]), len(told["tokens"]) - 3)
            self.assertEqual((only["finish_reason"], only["text"]), ("length", prompt if isinstance(prompt, str) else "hi"))
            self.assertEqual(only["logprobs"]["token_logprobs"], told["token_logprobs"][:-3])
        twice = scores(prompt=["a", "b"], n=2, echo=True, max_tokens=1)
        self.assertEqual([choice["text"][0] for choice in twice], ["a", "a", "b", "b"])
        # A text that fills the context leaves the others theirs.
        self.assertEqual([len(choice["logprobs"]["tokens"]) for choice in scores(prompt=["ab", "a" * 31], max_tokens=5)], [5, 1])
        events = self.ask(address, "/v1/completions", prompt="né ab", temperature=0, logprobs=2, echo=True, max_tokens=3, stream=True).split("\n\n")
        pieces = [json.loads(event[len("data: "):])["choices"][0] for event in events[:-2]]
        self.assertEqual([offset for piece in pieces if piece["logprobs"] for offset in piece["logprobs"]["text_offset"]],
                         both[0]["logprobs"]["text_offset"])

    def test_the_space_between_a_prompt_and_its_answer_is_text(self):
        """A tokenizer as Llama 2's: each token but a text's first shows its space, and places count characters of what is shown."""
        words = ["\u2581", *"abcdefghijklmnopqrstuvwxyz"]
        vocabulary = (words + ["\u2581" + first + second for first in words[1:] for second in ["", *words[1:]]])[:256]
        merges = [["\u2581", letter] for letter in words[1:] if "\u2581" + letter in vocabulary]
        replace = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
        with open(self.path("tokenizer.json"), "w", encoding="utf-8") as out:
            json.dump({"model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(vocabulary)}, "merges": merges},
                       "normalizer": {"type": "Sequence", "normalizers": [
                           {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
                       "decoder": {"type": "Sequence", "decoders": [replace, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}}, out)
        environment = {"PATH": os.path.dirname(os.path.abspath(CONVENE_TRAIN)) + ":" + os.environ["PATH"]}
        server = self.start(CONVENE, "generate", *self.model[:-2], "--tokenizer", self.path("tokenizer.json"), "--serve", 0, **environment)
        said = wait_until(lambda: re.search(r"run is served at (http://127.0.0.1:\d+)/v1", self.output(server)), 60, lambda: self.output(server))
        spaces = 0
        for echoes in (False, True):
            for seed in range(4):
                answer = json.loads(self.ask(said.group(1), "/v1/completions", prompt="ab c", max_tokens=8, seed=seed, temperature=2, logprobs=0, echo=echoes))
                choice = answer["choices"][0]
                text, told = choice["text"], choice["logprobs"]
                tokens = told["tokens"]
                if echoes:
                    self.assertTrue(text.startswith("ab c"), text)
                    self.assertEqual(tokens[0], " a")
                    tokens[0] = "a"
                self.assertEqual("".join(tokens), text)
                self.assertEqual(told["text_offset"], [len("".join(tokens[:i])) for i in range(len(tokens))])
                spaces += text[4 if echoes else 0] == " "
        self.assertGreater(spaces, 0)
        server.send_signal(signal.SIGINT)
        self.finish(server, 30, expected_code=128 + signal.SIGINT)

    def evaluate(self, *arguments, code=0):
        words = [str(word) for word in (CONVENE, "evaluate", *self.model[:2], "--device", "cpu", *arguments)]
        environment = {**os.environ, "PATH": os.path.dirname(os.path.abspath(CONVENE_TRAIN)) + ":" + os.environ["PATH"]}
        done = subprocess.run(words, capture_output=True, check=False, timeout=60, env=environment)
        self.assertEqual(done.returncode, code, done.stderr)
        return (done.stdout if code == 0 else done.stderr).decode()

    def test_a_text_and_its_token_file_are_measured_alike(self):
        self.finish(self.start(CONVENE, "data", "prepare", "--no-eod", "--output", self.path("text.bin"), self.path("text.txt")), 60)
        size = os.path.getsize(self.path("text.txt"))
        said = self.evaluate("--tokenizer", "byte", "--context", 64, "--data", self.path("text.txt"), "--data", self.path("text.bin"))
        number = r"text\.\w+: (\d+) tokens, loss (\S+) nats a token, perplexity (\S+), (\S+) bits a byte"
        first, second = re.findall(number, said)
        self.assertEqual(first, second)
        self.assertEqual(int(first[0]), size - 1)
        loss, perplexity, bits = map(float, first[1:])
        self.assertAlmostEqual(perplexity, math.exp(loss), delta=1e-3)
        self.assertAlmostEqual(bits, loss / math.log(2), delta=1e-5)
        self.finish(self.start(CONVENE, "checkpoint", "export", self.path("run"), "--output", self.path("folder")), 60)
        for arguments, words in (
                (["--model", self.path("folder"), "--data", self.path("text.txt")], "text.txt: it is a text, and the model has no tokenizer"),
                (["--choices", self.path("text.txt")], "text.txt: it is no file of llm.c's questions"),
                (["--data", self.path("none")], "none"),
                ([], "nothing is measured: give --data or --choices")):
            self.assertIn(words, self.evaluate(*arguments, code=64))

    def test_what_is_no_text_and_no_token_file_of_the_model_is_not_measured(self):
        for name, tokenizer in (("big.bin", self.big_tokenizer()), ("bytes.bin", "byte")):
            self.finish(self.start(CONVENE, "data", "prepare", "--no-eod", "--tokenizer", tokenizer, "--output", self.path(name), self.path("text.txt")), 60)
        with open(self.path("text.txt"), "rb") as text, gzip.open(self.path("packed.txt"), "wb") as packed:
            packed.write(text.read())
        with open(self.path("lines.jsonl"), "w", encoding="ascii") as file:
            file.write('{"text": "a text"}\n')
        for name, words in (
                ("big.bin", r"big.bin: its ids are of the tokenizer \S*big.tiktoken \(.*\), and the model's is byte"),
                ("packed.txt", r"packed.txt: it is packed, .*\(convene data prepare --tokenizer byte"),
                ("lines.jsonl", r"lines.jsonl: it is .*JSON lines .*\(convene data prepare --tokenizer byte")):
            said = self.evaluate("--tokenizer", "byte", "--data", self.path("bytes.bin"), "--data", self.path(name), code=64)
            self.assertRegex(said, words)

    def test_the_weights_of_a_gguf_file_answer_as_transformers_does(self):
        model = tokenizer_environment.vocabulary("smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
        if not model:
            self.skipTest(f"SKIPPED: no SmolLM2 in {tokenizer_environment.CACHE} (tools/tokenizer_environment fetches it)")
        self.model = ["--model", model, "--device", "cpu", "--max-new-tokens", 24]
        # By transformers 5.23.0, AutoModelForCausalLM.from_pretrained(gguf_file=...) in fp32.
        self.assertEqual(self.generate("--prompt", "The capital of France is"), " Paris.\n\nThe answer is: 2018-01-22 12:1\n")
        self.assertEqual(self.generate("--chat", "--prompt", "What is the capital of France?"), "The capital of France is Paris.\n")

    def big_tokenizer(self):
        """300 tokens, as tiktoken's files have them."""
        with open(self.path("big.tiktoken"), "w", encoding="ascii") as out:
            for i in range(300):
                token = bytes([i]) if i < 256 else bytes([i - 256, i - 256])
                out.write(f"{base64.b64encode(token).decode()} {i}\n")
        with open(self.path("tokenizer_config.json"), "w", encoding="ascii") as out:
            json.dump({"pat_str": "[^ ]+| +"}, out)
        return self.path("big.tiktoken")


if __name__ == "__main__":
    unittest.main()
