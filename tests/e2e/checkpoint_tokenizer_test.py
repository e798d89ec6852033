"""A checkpoint remembers the tokenizer and the chat template of its run, and the commands that read it take them from there. The weights beside
which adapters were trained may move."""

import base64
import json
import os
import re
import shutil
import signal
import unittest
import urllib.request

from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase, make_text, wait_until

SHAPE = ["--layers", 2, "--hidden-size", 32, "--ffn-size", 48, "--heads", 4, "--kv-heads", 2, "--head-size", 8]
TEMPLATE = "{{ bos_token }}{% for message in messages %}[{{ message.content }}]{% generation %}x{% endgeneration %}{% endfor %}"
FILES = {"tokenizer_config.json", "words.tiktoken", "generation_config.json"}


class CheckpointTokenizerTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        make_text(self.path("text.txt"), 3000)
        self.make_tokenizer("model", b" ")
        self.program_path = {"PATH": os.path.dirname(os.path.abspath(CONVENE_TRAIN)) + ":" + os.environ["PATH"]}

    def make_tokenizer(self, folder, beside):
        """Bytes, and their pairs with the byte `beside`; 300 and 301 are special. Token 7 ends answers."""
        os.mkdir(self.path(folder))
        tokens = [bytes([byte]) for byte in range(256)] + [bytes([byte]) + beside for byte in range(97, 123)]
        self.put(f"{folder}/words.tiktoken", "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))
        self.put(f"{folder}/tokenizer_config.json", json.dumps({
            "pat_str": "[^ ]+ ?| +", "bos_token": "<begin>", "eos_token": "<end>", "chat_template": TEMPLATE,
            "added_tokens_decoder": {"300": {"content": "<end>"}, "301": {"content": "<begin>"}}}))
        self.put(f"{folder}/generation_config.json", json.dumps({"eos_token_id": 7}))

    def put(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as out:
            out.write(text)

    def train(self, *flags, code=0, shape=()):
        shape = list(shape) or [*SHAPE, "--vocabulary-size", 384]
        return self.finish(self.start(CONVENE_TRAIN, "--sequence-length", 32, *shape, "--device", "cpu", "--token-cache-dir", self.path("cache"), *flags),
                           60, code)

    def train_by_model(self, *flags):
        return self.train("--data", self.path("text.txt"), "--tokenizer", self.path("model"), "--steps", 4, "--checkpoint-every", 1,
                          "--checkpoint-keep", 4, "--checkpoint-dir", self.path("run"), *flags)

    def convene(self, *arguments, code=0):
        return self.finish(self.start(CONVENE, *arguments, **self.program_path), 60, code)

    def generate(self, model, *arguments, code=0):
        return self.convene("generate", "--model", self.path(model), "--device", "cpu", "--max-new-tokens", 9, "--prompt", "the no", *arguments, code=code)

    def test_a_checkpoint_alone_is_enough(self):
        self.train_by_model()
        steps = [self.path(f"run/step_0000000{step}") for step in (1, 2, 3, 4)]
        expected = self.generate("run", "--tokenizer", self.path("model"))
        chat = self.generate("run", "--tokenizer", self.path("model"), "--chat")
        folder, = [name for name in os.listdir(steps[3]) if name.startswith("tokenizer.")]
        self.assertEqual(set(os.listdir(os.path.join(steps[3], folder))), FILES)
        self.assertEqual(os.stat(os.path.join(steps[3], folder, "words.tiktoken")).st_nlink, 4)
        files = {name: self.read(os.path.join(self.path("model"), name)) for name in FILES}
        shutil.copytree(steps[3], self.path("alone"))
        shutil.rmtree(self.path("run"))
        shutil.rmtree(self.path("model"))
        self.assertEqual(self.generate("alone"), expected)
        self.assertEqual(self.generate("alone", "--chat"), chat)
        self.assertNotEqual(self.generate("alone", "--tokenizer", "byte", "--ignore-end"), self.generate("alone", "--ignore-end"))
        measured = self.convene("evaluate", "--model", self.path("alone"), "--device", "cpu", "--data", self.path("text.txt"))
        self.assertRegex(measured, r"text\.txt: \d+ tokens, .* bits a byte")
        shown = self.convene("checkpoint", "show", self.path("alone"))
        self.assertIn(f"  tokenizer {self.path('model')}, 3 files of it in {folder}\n", shown)
        self.assertIn(" bytes  words.tiktoken\n", shown)
        self.served(chat.split("\n")[0])
        self.convene("checkpoint", "export", self.path("alone"), "--output", self.path("out"))
        self.convene("checkpoint", "import", self.path("out"), "--output", self.path("again"))
        for place in (self.path("out"), os.path.join(self.path("again/step_00000000"), folder)):
            self.assertEqual({name: self.read(os.path.join(place, name)) for name in FILES}, files)
        with open(self.path("out/config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual(config["eos_token_id"], 300)
        self.assertEqual(self.generate("again"), expected)
        self.damage_is_told(folder)

    def read(self, path):
        with open(path, "rb") as file:
            return file.read()

    def served(self, chat):
        server = self.start(CONVENE, "generate", "--model", self.path("alone"), "--device", "cpu", "--serve", 0, **self.program_path)
        address = wait_until(lambda: re.search(r"served at (http://127.0.0.1:\d+)/v1", self.output(server)), 60, lambda: self.output(server)).group(1)
        body = json.dumps({"messages": [{"role": "user", "content": "the no"}], "max_tokens": 9, "temperature": 0}).encode()
        with urllib.request.urlopen(urllib.request.Request(address + "/v1/chat/completions", body), timeout=60) as answer:
            self.assertEqual(json.loads(answer.read())["choices"][0]["message"]["content"].split("\n")[0], chat)
        server.terminate()
        self.finish(server, 30, expected_code=128 + signal.SIGTERM)

    def damage_is_told(self, folder):
        self.assertIn(": whole\n", self.convene("checkpoint", "verify", self.path("alone")))
        path = os.path.join(self.path("alone"), folder, "words.tiktoken")
        with open(path, "r+b") as file:
            file.write(b"x")
        for arguments in (["checkpoint", "verify", self.path("alone")],
                          ["generate", "--model", self.path("alone"), "--device", "cpu", "--prompt", "a"]):
            self.assertIn(path + " has another checksum", self.convene(*arguments, code=1))
        os.remove(path)
        kept = os.path.join(self.path("alone"), folder)
        self.assertIn(f"{path} is missing: restore the file, or remove the folder {kept} and give --tokenizer", self.generate("alone", code=1))
        self.weights_stay_in_use()
        shutil.rmtree(kept)
        said = self.convene("checkpoint", "verify", self.path("alone"), code=1)
        self.assertIn("the weights are whole, and the tokenizer is not: " + kept, said)
        self.assertIn("1 of 1 checkpoints are not whole", said)
        self.assertIn("alone has no tokenizer", self.generate("alone", code=64))
        self.assertTrue(self.generate("alone", "--tokenizer", "byte"))

    def weights_stay_in_use(self):
        """One file of the tokenizer's folder is gone: only a command that needs the tokenizer looks there."""
        alone, again = self.path("alone"), self.path("again")
        self.assertIn(" parameters\n", self.convene("checkpoint", "show", alone))
        self.assertRegex(self.convene("checkpoint", "diff", alone, again), r"^0 of \d+ tensors differ")
        self.assertIn("the average has no tokenizer: ", self.convene("checkpoint", "average", alone, again, "--output", self.path("average")))
        self.assertIn("average has no tokenizer", self.generate("average", code=64))
        self.convene("checkpoint", "export", alone, "--output", self.path("file"), "--format", "safetensors")
        begin = ["--data", self.path("text.txt"), "--steps", 1, "--init-from", alone]
        for need in (lambda *tokenizer, code=0: self.convene("checkpoint", "export", alone, "--output", self.path("bytes"), *tokenizer, code=code),
                     lambda *tokenizer, code=0: self.generate("alone", *tokenizer, code=code),
                     lambda *tokenizer, code=0: self.train(*begin, *tokenizer, code=code, shape=["--micro-batch-size", 1])):
            self.assertIn("words.tiktoken is missing: restore the file", need(code=1))
            need("--tokenizer", self.path("out"))

    def test_bytes_are_remembered_and_unknown_tokens_are_not(self):
        self.train("--data", self.path("text.txt"), "--steps", 2, "--checkpoint-dir", self.path("run"))
        self.assertEqual(self.generate("run"), self.generate("run", "--tokenizer", "byte"))
        self.assertIn("  tokenizer byte\n", self.convene("checkpoint", "show", self.path("run")))
        self.convene("checkpoint", "export", self.path("run"), "--output", self.path("out"))
        # Token files say by which tokenizer, if they know it.
        self.convene("data", "prepare", "--tokenizer", self.path("model"), "--output", self.path("text.bin"), self.path("text.txt"))
        self.train("--data", self.path("text.bin"), "--steps", 2, "--checkpoint-dir", self.path("files"))
        self.assertEqual(self.generate("files"), self.generate("files", "--tokenizer", self.path("model")))
        self.convene("data", "convert", "--to", "llmc", self.path("text.bin"), self.path("llmc.bin"))
        self.train("--data", self.path("llmc.bin"), "--steps", 2, "--checkpoint-dir", self.path("llmc"))
        self.assertIn("has no tokenizer", self.generate("llmc", code=64))
        self.train("--data", self.path("llmc.bin"), "--steps", 2, "--checkpoint-dir", self.path("named"), "--tokenizer", self.path("model"))
        self.assertEqual(self.generate("named"), self.generate("named", "--tokenizer", self.path("model")))
        shutil.move(self.path("model"), self.path("moved"))
        said = self.train("--data", self.path("text.bin"), "--steps", 2, "--checkpoint-dir", self.path("without"))
        self.assertIn("checkpoints come without the tokenizer that made the data", said)

    def test_a_compact_vocabulary_comes_with_the_checkpoint(self):
        self.convene("data", "prepare", "--tokenizer", self.path("model"), "--compact-vocabulary", "--no-eod", "--output", self.path("small.bin"),
                     self.path("text.txt"))
        self.train("--data", self.path("small.bin"), "--steps", 20, "--checkpoint-dir", self.path("run"), shape=SHAPE)
        folder, = [name for name in os.listdir(self.path("run/step_00000020")) if name.startswith("tokenizer.")]
        # Its generation_config.json has ids of the whole vocabulary.
        self.assertEqual(set(os.listdir(self.path(f"run/step_00000020/{folder}"))), FILES - {"generation_config.json"} | {"compact_vocabulary.json"})
        shutil.rmtree(self.path("model"))
        answer = self.generate("run")
        self.assertTrue(answer)
        measured = [self.convene("evaluate", "--model", self.path("run"), "--device", "cpu", "--data", self.path(name)).split(": ", 1)[1]
                    for name in ("text.txt", "small.bin")]
        self.assertEqual(measured[0], measured[1])
        self.train("--data", self.path("text.txt"), "--init-from", self.path("run"), "--steps", 1, "--checkpoint-dir", self.path("on"),
                   shape=["--micro-batch-size", 1])
        self.assertTrue(self.generate("on"))
        said = self.convene("checkpoint", "export", self.path("run"), "--output", self.path("out"))
        self.assertIn("the folder gets no tokenizer: the model's vocabulary is a compact one", said)
        self.assertEqual(set(os.listdir(self.path("out"))), {"config.json", "model.safetensors"})
        self.assertEqual(self.generate("out", "--tokenizer", self.path(f"run/step_00000020/{folder}")), answer)

    def test_a_model_may_lack_a_special_token_that_no_text_has(self):
        """As Gemma 3 1B lacks <image_soft_token>; here it is <begin>, with which the template begins."""
        self.train("--data", self.path("text.txt"), "--tokenizer", self.path("model"), "--steps", 2, "--checkpoint-dir", self.path("run"),
                   shape=[*SHAPE, "--vocabulary-size", 301])
        self.assertTrue(self.generate("run"))
        self.assertIn("prompt 1 of 1 has the id 301, and the model has 301 tokens", self.generate("run", "--chat", code=64))
        self.convene("checkpoint", "export", self.path("run"), "--output", self.path("out"))
        self.assertEqual(self.generate("out"), self.generate("run"))
        said = self.train("--data", self.path("text.txt"), "--tokenizer", self.path("model"), "--steps", 2, code=64,
                          shape=[*SHAPE, "--vocabulary-size", 300])
        self.assertIn("give --vocabulary-size 384", said)

    def test_another_tokenizer_at_a_resume_is_told_in_words(self):
        self.train_by_model()
        self.make_tokenizer("other", b".")
        other = ["--data", self.path("text.txt"), "--tokenizer", self.path("other"), "--steps", 6, "--checkpoint-dir", self.path("run")]
        words = f"the checkpoint's tokenizer is {self.path('model')}, this run's is another one, {self.path('other')}"
        self.assertIn(words, self.train(*other, code=64))
        self.assertIn(words, self.train(*other, "--accept-new-data"))
        # The last checkpoint has the tokenizer that it was trained with last.
        self.assertIn(f"tokenizer {self.path('other')}", self.convene("checkpoint", "show", self.path("run")))
        # These data do not say who made them.
        self.convene("data", "prepare", "--tokenizer", self.path("model"), "--output", self.path("text.bin"), self.path("text.txt"))
        self.convene("data", "convert", "--to", "llmc", self.path("text.bin"), self.path("llmc.bin"))
        unnamed = ["--data", self.path("llmc.bin"), "--checkpoint-dir", self.path("llmc")]
        self.train(*unnamed, "--steps", 2, "--tokenizer", self.path("model"))
        said = self.train(*unnamed, "--steps", 3, "--tokenizer", self.path("other"))
        self.assertIn("goes on with another tokenizer than it was trained with", said)
        self.assertNotIn("another tokenizer", self.train(*unnamed, "--steps", 4, "--tokenizer", self.path("other")))

    def test_the_template_of_auto_is_the_tokenizers(self):
        talk = [{"messages": [{"role": "user", "content": f"Why {i}?"}, {"role": "assistant", "content": "So."}]} for i in range(40)]
        self.put("chat.jsonl", "\n".join(map(json.dumps, talk)))

        def losses(name, template, tokenizer, *flags):
            self.train("--data", self.path("chat.jsonl"), "--steps", 3, "--chat-template", template, "--tokenizer", tokenizer,
                       "--metrics-file", self.path(name + ".jsonl"), "--checkpoint-dir", self.path(name), *flags)
            with open(self.path(name + ".jsonl"), encoding="utf-8") as file:
                return [record["loss"] for record in map(json.loads, file) if "loss" in record]
        expected = losses("named", self.path("model"), self.path("model"))
        self.assertEqual(losses("auto", "auto", self.path("model")), expected)
        self.assertEqual(losses("file", "auto", self.path("model/words.tiktoken")), expected)
        self.convene("data", "prepare", "--chat-template", "auto", "--tokenizer", self.path("model"), "--output", self.path("chat.bin"),
                     self.path("chat.jsonl"))
        # A template from elsewhere comes with the checkpoint, and counts there.
        self.put("other.jinja", TEMPLATE.replace("[", "<<<").replace("]", "<begin>"))
        losses("other", self.path("other.jinja"), self.path("model"))
        chats = {name: self.generate(name, "--chat", "--ignore-end") for name in ("auto", "file")}
        self.assertEqual(chats["auto"], chats["file"])
        folder, = [name for name in os.listdir(self.path("other/step_00000003")) if name.startswith("tokenizer.")]
        self.assertIn(b"<<<", self.read(self.path(f"other/step_00000003/{folder}/chat_template.jinja")))
        # A folder's chats end where those of the checkpoint do, for other programs too.
        for name, ends in (("auto", 7), ("other", [7, 301])):
            self.convene("checkpoint", "export", self.path(name), "--output", self.path(name + ".out"))
            self.assertEqual(json.loads(self.read(self.path(name + ".out/generation_config.json"))), {"eos_token_id": ends})
        # Begun with a checkpoint, a run has the checkpoint's tokenizer and template.
        self.train("--data", self.path("chat.jsonl"), "--steps", 1, "--chat-template", "auto", "--init-from", self.path("other"),
                   "--checkpoint-dir", self.path("tuned"), shape=["--micro-batch-size", 1])
        self.assertEqual([name for name in os.listdir(self.path("tuned/step_00000001")) if name.startswith("tokenizer.")], [folder])
        said = self.train("--data", self.path("chat.jsonl"), "--steps", 1, "--chat-template", "auto", code=64)
        self.assertIn("chat_template auto is the template of the tokenizer, and byte has none", said)

    def test_adapters_are_used_where_their_base_is_now(self):
        self.train_by_model()
        self.convene("checkpoint", "export", self.path("run"), "--output", self.path("base"))
        self.train("--data", self.path("text.txt"), "--steps", 2, "--init-from", self.path("base"), "--lora-rank", 2, "--checkpoint-dir", self.path("lora"),
                   shape=["--micro-batch-size", 1])
        expected = self.generate("lora")
        shutil.move(self.path("base"), self.path("moved"))
        said = self.generate("lora", code=64)
        self.assertIn("holds adapters of the weights", said)
        self.assertIn("say where they are with --base", said)
        base = ["--base", self.path("moved")]
        self.assertEqual(self.generate("lora", *base), expected)
        self.convene("checkpoint", "export", self.path("lora"), "--output", self.path("whole"), *base)
        self.assertEqual(self.generate("whole"), expected)
        self.convene("checkpoint", "export", self.path("lora"), "--output", self.path("peft"), "--format", "peft", *base)
        self.assertEqual(self.generate("peft"), expected)  # names the base where it is now
        self.assertTrue(FILES < set(os.listdir(self.path("peft"))))
        peft = ["checkpoint", "export", self.path("lora"), "--format", "peft", "--output"]
        self.assertNotIn("PEFT cannot load", self.convene(*peft, self.path("peft3"), *base))
        self.assertIn(f"PEFT cannot load their base {self.path('run')}, as it is no folder of Hugging Face's: export it too",
                      self.convene(*peft, self.path("peft4"), "--base", self.path("run")))
        self.assertIn("leave --base out", self.generate("run", *base, code=64))
        # A base's tokenizer is none for adapters whose own is damaged.
        step = self.path("lora/step_00000002")
        folder, = [name for name in os.listdir(step) if name.startswith("tokenizer.")]
        os.remove(os.path.join(step, folder, "words.tiktoken"))
        self.assertIn("words.tiktoken is missing: restore the file", self.generate("lora", *base, code=1))
        self.assertEqual(self.generate("lora", *base, "--tokenizer", self.path("moved")), expected)
        peft = ["checkpoint", "export", self.path("lora"), "--output", self.path("peft2"), "--format", "peft", *base]
        self.assertIn("words.tiktoken is missing: restore the file", self.convene(*peft, code=1))
        self.convene(*peft, "--tokenizer", self.path("moved"))


if __name__ == "__main__":
    unittest.main()
