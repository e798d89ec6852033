"""`convene data` as a person uses it: kills, bad input, conversions."""

import base64
import gzip
import json
import os
import random
import signal
import subprocess
import unittest

from tests.support import tokenizer_environment
from tests.support.convene_testing import CONVENE, ConveneTestCase, wait_until


class DataTest(ConveneTestCase):

    def convene_data(self, *arguments, code=0):
        return self.finish(self.start(CONVENE, "data", *arguments), 60, code)

    def put(self, name, content):
        mode = "wb" if isinstance(content, bytes) else "w"
        with open(self.path(name), mode) as out:
            out.write(content)
        return self.path(name)

    def content(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def lines(self, count, seed=7):
        rng = random.Random(seed)
        words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 9))) for _ in range(500)]
        return "".join(json.dumps({"id": i, "text": " ".join(rng.choices(words, k=rng.randint(1, 300)))}) + "\n"
                       for i in range(count))

    def test_a_text_is_prepared_and_shown(self):
        self.put("b.txt", "second\n")
        self.put("a.txt", "first, é\n")
        said = self.convene_data("prepare", "--output", self.path("x.bin"), self.path("?.txt"))
        self.assertIn("x.bin: 2 documents, 19 tokens of a vocabulary of 256, 17 B of text", said)
        shown = self.convene_data("show", self.path("x.bin"), "--sample", 1)
        self.assertIn("documents   2 (8 to 11 tokens)", shown)
        self.assertIn("tokenizer   byte", shown)
        self.assertIn("document 1, 8 of 8 tokens\n\nsecond\n\\x00\n", shown)
        self.assertEqual(self.convene_data("show", self.path("x.bin"), "--format", "ids", "--first", 5),
                         "102 105 114 115 116\n")
        self.assertEqual(self.convene_data("show", self.path("x.bin"), "--format", "ids", "--sample", 1),
                         "115 101 99 111 110 100 10 0\n")
        self.assertIn("whole, 2 documents, 19 tokens", self.convene_data("verify", self.path("x.bin")))

    def test_killed_at_random_the_same_command_makes_the_same_bytes(self):
        text = self.lines(12000)
        half = len(text) // 2
        self.put("a.jsonl", text[:half] + "\n{broken\n")
        self.put("b.jsonl", gzip.compress(text[half:].encode(), 1))
        common = ["prepare", "--dedupe", "--max-bad-lines", 3, "--threads", 2, "--journal-interval", 0,
                  self.path("a.jsonl"), self.path("b.jsonl")]
        rng = random.Random(11)
        resumed = 0
        for form in ([], ["--compact-vocabulary", "--tokenizer", self.letter_pairs()]):
            arguments = [*common, *form, "--output"]
            undisturbed = self.convene_data(*arguments, self.path("x.bin"))
            self.assertIn(" 3 broken lines (the first: data: ", undisturbed)
            for kill in range(5):
                output = self.path(f"y{kill}.bin")
                # The size of the parts is the one clock that does not depend on the machine's load. The cutting of a vocabulary is a
                # second part.
                self.kill_at_size(arguments, output, rng.uniform(0, os.path.getsize(self.path("x.bin")) * (2 if form else 1)))
                said = self.convene_data(*arguments, output)
                resumed += "went on from an earlier part" in said
                self.assertEqual(self.content(f"y{kill}.bin"), self.content("x.bin"))
                self.assertEqual([name for name in os.listdir(self.directory) if name.startswith(f"y{kill}.")],
                                 [f"y{kill}.bin"])
        self.assertGreater(resumed, 4)

    def letter_pairs(self):
        """A tokenizer whose words are the letters a to h, some in pairs."""
        tokens = [bytes([byte]) for byte in range(256)] + [b"ab", b"cd", b"ef", b"gh", b" a", b" b"]
        self.put("tokenizer_config.json", json.dumps({"pat_str": " ?[a-h]+|\\s", "added_tokens_decoder": {"300": {"content": "<end>"}},
                                                      "eos_token": "<end>"}))
        return self.put("pairs.tiktoken", "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))

    def kill_at_size(self, arguments, output, size):
        process = self.start(CONVENE, "data", *arguments, output)

        def is_time():
            done = 0
            for part in (".partial", ".partial.rewritten"):
                try:
                    done += os.path.getsize(output + part)
                except FileNotFoundError:
                    pass
            return process.poll() is not None or done >= size

        wait_until(is_time, 60, "the part grows")
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def test_a_signal_says_what_is_left_and_the_same_command_goes_on(self):
        # So much that it is not done before the signal comes, on a machine under load too.
        self.put("a.jsonl", self.lines(12000) * 10)
        arguments = ["prepare", "--threads", 1, "--journal-interval", 0, "--tokenizer", self.letter_pairs(), self.path("a.jsonl"),
                     "--output", self.path("x.bin")]
        process = self.start(CONVENE, "data", *arguments)
        wait_until(lambda: process.poll() is not None or os.path.exists(self.path("x.bin.journal")), 60, "the first journal")
        self.assertIsNone(process.poll(), "the command ended before the signal")
        process.send_signal(signal.SIGINT)
        self.assertIn("x.bin.partial is kept, and the same command goes on", self.finish(process, 60, -signal.SIGINT))
        self.assertIn("went on from an earlier part", self.convene_data(*arguments))

    def test_broken_input_is_named_and_leaves_nothing(self):
        self.put("a.jsonl", '{"text": "a"}\n{"text": 1}\n')
        self.put("cut.txt.gz", gzip.compress(b"text" * 1000)[:-12])
        self.put("deep.jsonl", '{"a": ' + "[" * 10000 + "]" * 10000 + ', "text": "x"}\n')
        self.put("long.jsonl", '{"text": "' + "x" * 3000000 + '"}\n')
        output = self.path("x.bin")
        for names, code, words in (
                (["a.jsonl"], 64, "a.jsonl, line 2: the field 'text' is not a text"),
                (["cut.txt.gz"], 1, "the gzip data ends too early"),
                (["deep.jsonl"], 64, "line 1: broken JSON at byte 518: nested deeper than 512"),
                (["long.jsonl", "--max-document-bytes", "2M"], 64, "longer than 2097152 bytes"),
                (["none.jsonl"], 64, "no file matches"),
                (["a.jsonl", "--field", "other"], 64, "line 1: no field 'other'"),
                (["a.jsonl", "--tokenizer", self.path("none")], 64, "none")):
            with self.subTest(names=names):
                said = self.convene_data("prepare", "--output", output, self.path(names[0]), *names[1:], code=code)
                self.assertIn(words, said)
                self.assertEqual([n for n in os.listdir(self.directory) if n.startswith("x.bin")], [])

    def test_another_program_reads_a_file(self):
        self.put("a.jsonl", self.lines(300))
        self.put("packed.hex", base64.b16encode(self.content("a.jsonl")))
        decode = "python3 -c 'import base64, sys; sys.stdout.buffer.write(base64.b16decode(open(sys.argv[1]).read()))' {}"
        self.convene_data("prepare", "--output", self.path("a.bin"), self.path("a.jsonl"))
        self.convene_data("prepare", "--output", self.path("b.bin"), self.path("packed.hex"), "--through", decode)
        ids = lambda name: self.convene_data("show", self.path(name), "--format", "ids")
        self.assertEqual(ids("b.bin"), ids("a.bin"))
        for command, code, words in (("false {}", 64, "the command that reads it ended with exit code 1"),
                                     ("cat", 64, "--through has no {}"),
                                     ("head -c 100 {}", 64, "line 1: broken JSON")):
            said = self.convene_data("prepare", "--output", self.path("x.bin"), self.path("packed.hex"), "--through", command, code=code)
            self.assertIn(words, said)
            self.assertFalse(os.path.exists(self.path("x.bin")))

    def test_parquet_is_read_by_pyarrow(self):
        python = tokenizer_environment.PYTHON
        if not os.path.exists(python) or subprocess.run([python, "-c", "import pyarrow"], check=False, capture_output=True).returncode != 0:
            self.skipTest(f"SKIPPED: no pyarrow in {tokenizer_environment.CACHE} (tools/tokenizer_environment fetches it)")
        self.put("a.jsonl", self.lines(3000))
        write = ("import json, sys, pyarrow, pyarrow.parquet; rows = [json.loads(line) for line in open(sys.argv[1])];"
                 "pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sys.argv[2], row_group_size=700)")
        subprocess.run([python, "-c", write, self.path("a.jsonl"), self.path("a.parquet")], check=True)
        ids = []
        for name in ("a.jsonl", "a.parquet"):
            self.convene_data("prepare", "--output", self.path("x.bin"), self.path(name), "--python", python)
            ids.append(self.convene_data("show", self.path("x.bin"), "--format", "ids"))
            os.remove(self.path("x.bin"))
        self.assertEqual(ids[0], ids[1])
        for flags, words in ((["--field", "other"], "it has no column 'other' (`convene data prepare --field NAME` takes another): it has id, text"),
                             (["--python", "/no/python"], "there is no program /no/python")):
            said = self.convene_data("prepare", "--output", self.path("x.bin"), self.path("a.parquet"), "--python", python, *flags, code=64)
            self.assertIn(words, said)

    def test_columns_of_parquet_that_no_template_reads_are_left_alone(self):
        python = tokenizer_environment.PYTHON
        if not os.path.exists(python) or subprocess.run([python, "-c", "import pyarrow"], check=False, capture_output=True).returncode != 0:
            self.skipTest(f"SKIPPED: no pyarrow in {tokenizer_environment.CACHE} (tools/tokenizer_environment fetches it)")
        write = ("import sys, pyarrow, pyarrow.parquet; messages = [{'role': 'user', 'content': 'Why?'}, {'role': 'assistant', 'content': 'So.'}];"
                 "more = {'score': [float('nan')], 'number': pyarrow.array([2 ** 64 - 1], pyarrow.uint64())};"
                 "pyarrow.parquet.write_table(pyarrow.table({**more, 'messages': [messages]}), sys.argv[1]);"
                 "pyarrow.parquet.write_table(pyarrow.table(more), sys.argv[2])")
        subprocess.run([python, "-c", write, self.path("a.parquet"), self.path("b.parquet")], check=True)
        self.put("t.jinja", "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}")
        arguments = ["prepare", "--chat-template", self.path("t.jinja"), "--train-on", "all", "--python", python, "--output", self.path("x.bin")]
        self.convene_data(*arguments, self.path("a.parquet"))
        self.assertIn("user:Why?;assistant:So.;", self.convene_data("show", self.path("x.bin")))
        self.assertIn("it has none of the columns messages, conversations, ", self.convene_data(*arguments, self.path("b.parquet"), code=64))

    def test_tokens_given_as_a_text_are_refused(self):
        self.put("m.bin", b"".join(token.to_bytes(2, "little") for token in (464, 2068, 7586, 21831, 18045, 625, 262, 16931, 3290, 13)))
        output = ["prepare", "--output", self.path("x.bin")]
        said = self.convene_data(*output, self.path("m.bin"), code=64)
        self.assertIn("m.bin is no text: its first bytes are those of tokens", said)
        self.assertIn(f"their index {self.path('m.idx')} is missing", said)
        self.put("a.txt", "a text")
        self.convene_data("prepare", "--output", self.path("ours.bin"), self.path("a.txt"))
        said = self.convene_data(*output, self.path("ours.bin"), code=64)
        self.assertIn("ours.bin is no text: it holds tokens already (", said)
        self.convene_data("convert", self.path("ours.bin"), self.path("meg"), "--to", "megatron")
        self.assertIn("holds tokens already", self.convene_data(*output, self.path("meg.idx"), code=64))
        os.remove(self.path("meg.bin"))
        self.assertIn("meg.bin", self.convene_data(*output, self.path("meg.idx"), code=64))
        # Texts with a byte of value 0, and with documents that it separates.
        self.put("odd.txt", "a text with one \0 in it")
        self.convene_data(*output, self.path("odd.txt"))
        self.put("names.txt", "a\0b\0c\0")
        self.assertIn("3 documents", self.convene_data(*output, "--document-separator", "\\0", self.path("names.txt")))

    def test_instruction_data_counts_its_answers(self):
        self.put("t.jinja", "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
                            "{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}")
        self.put("chat.jsonl", json.dumps({"messages": [{"role": "user", "content": "Why?"},
                                                        {"role": "assistant", "content": "So."}]}) + "\n{}\n")
        arguments = ["prepare", "--chat-template", self.path("t.jinja"), "--output", self.path("x.bin"), self.path("chat.jsonl")]
        self.assertIn("chat.jsonl, line 2: ", self.convene_data(*arguments, code=64))
        said = self.convene_data(*arguments, "--max-bad-lines", 1)
        self.assertIn("1 document, ", said)
        self.assertIn("tokens count in the loss", said)
        shown = self.convene_data("show", self.path("x.bin"))
        self.assertIn("those between {+ and +} count in the loss", shown)
        self.assertIn("user:Why?;assistant:{+So.", shown)

    def test_a_template_beside_the_tokenizers_folder_prints_its_special_tokens(self):
        os.mkdir(self.path("model"))
        tokens = [bytes([byte]) for byte in range(256)]
        self.put("model/bytes.tiktoken", "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))
        self.put("model/tokenizer_config.json", json.dumps({"pat_str": "[\\s\\S]+", "bos_token": "<begin>", "eos_token": {"content": "<end>"},
                                                            "added_tokens_decoder": {"300": {"content": "<end>"},
                                                                                     "301": {"content": "<begin>"}}}))
        self.put("chat.jinja", "{{ bos_token + messages[0].content }}:{{ messages[1].content }}{{ eos_token }}\n{{ sep_token }}")
        self.put("chat.jsonl", json.dumps({"messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]}))
        said = self.convene_data("prepare", "--tokenizer", self.path("model"), "--chat-template", self.path("chat.jinja"), "--train-on", "all",
                                 "--output", self.path("x.bin"), self.path("chat.jsonl"))
        self.assertIn("warning: data: the chat template prints nothing at line 2, column 4: 'sep_token' is undefined", said)
        self.assertEqual(said.count("'sep_token'"), 1)
        self.assertIn("<begin>Why?:So.<end>\n<end>", self.convene_data("show", self.path("x.bin")))

    def test_a_template_that_asks_for_the_date_is_told_one(self):
        self.put("t.jinja", "{{ strftime_now('%d.%m.%Y') }}:{% for m in messages %}{{ m.content }}{% endfor %}")
        self.put("chat.jsonl", json.dumps({"messages": [{"role": "assistant", "content": "So."}]}))
        arguments = ["prepare", "--chat-template", self.path("t.jinja"), "--train-on", "all", "--output", self.path("x.bin"), self.path("chat.jsonl")]
        self.assertIn("give a date (--chat-date YYYY-MM-DD)", self.convene_data(*arguments, code=64))
        self.assertIn("chat_date is", self.convene_data(*arguments, "--chat-date", "tomorrow", code=64))
        self.convene_data(*arguments, "--chat-date", "2026-11-30")
        self.assertIn("30.11.2026:So.", self.convene_data("show", self.path("x.bin")))

    def test_a_compact_vocabulary(self):
        tokens = [bytes([byte]) for byte in range(256)] + [b"he", b"ll", b"hell", b"o ", b"wo", b"ld"]
        self.put("words.tiktoken", "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))
        self.put("tokenizer_config.json", json.dumps({"pat_str": "[\\s\\S]+", "added_tokens_decoder": {"300": {"content": "<end>"}},
                                                      "eos_token": "<end>"}))
        self.put("a.txt", "hello hello")
        self.put("b.txt", "hello wold")
        prepare = lambda text, name, *more, code=0: self.convene_data("prepare", "--output", self.path(name), self.path(text), *more,
                                                                      code=code)
        tokenizer = ["--tokenizer", self.path("words.tiktoken")]
        said = prepare("a.txt", "a.bin", "--compact-vocabulary", *tokenizer)
        self.assertIn("5 tokens of a vocabulary of 259", said)
        shown = self.convene_data("show", self.path("a.bin"))
        self.assertIn("vocabulary  259 of the tokenizer's 301 (compact)", shown)
        self.assertIn("\n\nhello hello<end>\n", shown)
        self.assertEqual(self.convene_data("show", self.path("a.bin"), "--format", "ids"), "256 257 256 111 258\n")
        self.assertIn("whole, 1 documents, 5 tokens, largest id 258", self.convene_data("verify", self.path("a.bin")))
        self.convene_data("convert", self.path("a.bin"), self.path("whole.bin"), "--to", "convene")
        self.assertEqual(self.convene_data("show", self.path("whole.bin"), "--format", "ids"), "258 259 258 111 300\n")
        # "wo" and "ld" are not in the vocabulary: they become bytes.
        self.assertIn("7 tokens of a vocabulary of 259", prepare("b.txt", "b.bin", "--vocabulary-of", self.path("a.bin")))
        self.assertEqual(self.convene_data("show", self.path("b.bin"), "--format", "ids"), "256 257 119 111 108 100 258\n")
        self.assertIn("\n\nhello wold<end>\n", self.convene_data("show", self.path("b.bin")))
        self.assertIn("b.bin", self.convene_data("blend", f"{self.path('a.bin')}:1,{self.path('b.bin')}:1"))
        prepare("b.txt", "c.bin", "--compact-vocabulary", *tokenizer)
        said = self.convene_data("blend", f"{self.path('a.bin')}:1,{self.path('c.bin')}:1", code=64)
        self.assertIn(f"one vocabulary: convene data prepare --vocabulary-of {self.path('a.bin')}", said)
        said = self.convene_data("prepare", "--output", self.path("d.bin"), self.path("b.txt"), "--tokenizer", "byte",
                                 "--vocabulary-of", self.path("whole.bin"), code=64)
        self.assertIn("which is not the same as byte", said)
        said = prepare("b.txt", "d.bin", "--vocabulary-of", self.path("whole.bin"), code=64)
        self.assertIn("whole.bin has no compact vocabulary", said)
        before = self.content("a.bin")
        said = prepare("b.txt", "a.bin", "--vocabulary-of", self.path("a.bin"), code=64)
        self.assertIn("a.bin is the file of --vocabulary-of, and would be replaced", said)
        self.assertEqual(self.content("a.bin"), before)

    def test_other_programs_formats_and_blends(self):
        self.put("a.jsonl", self.lines(50))
        self.convene_data("prepare", "--output", self.path("a.bin"), self.path("a.jsonl"))
        ids = self.convene_data("show", self.path("a.bin"), "--format", "ids")
        for form, name in (("megatron", "m.bin"), ("nanotron", "n.ds"), ("convene", "c.bin"), ("llmc", "l.bin")):
            with self.subTest(form=form):
                self.convene_data("convert", self.path("a.bin"), self.path(name), "--to", form)
                self.assertEqual(self.convene_data("show", self.path(name), "--format", "ids"), ids)
                self.convene_data("verify", self.path(name))
        blend = self.convene_data("blend", f"{self.path('a.bin')}:3,{self.path('m.bin')}:1")
        self.assertIn("75.00%", blend)
        self.assertIn("1.50\n", blend)
        damaged = bytearray(self.content("a.bin"))
        damaged[len(damaged) // 2] ^= 1
        self.put("d.bin", bytes(damaged))
        self.assertIn("1 of 2 files cannot be used",
                      self.convene_data("verify", self.path("a.bin"), self.path("d.bin"), code=1))

    def test_a_full_disk_leaves_nothing_under_the_name(self):
        self.put("a.txt", "x" * 3000000)
        # A file may not grow above 1 MB: SIGXFSZ is what a full disk looks like to a careless program.
        process = self.start(CONVENE, "data", "prepare", "--output", self.path("x.bin"), self.path("a.txt"),
                             limit="-f 1000", prefix=("env", "--ignore-signal=XFSZ"))
        self.assertIn("x.bin.partial", self.finish(process, 60, 1))
        self.assertFalse(os.path.exists(self.path("x.bin")))

    def test_help_names_the_commands(self):
        said = self.convene_data("--help")
        for command in ("prepare", "show", "verify", "blend", "convert"):
            self.assertIn(f"  {command} ", said)
            self.assertIn(f"usage: convene data {command} [flags]", self.convene_data(command, "--help"))
        self.assertIn("did you mean `convene data show`", self.convene_data("shwo", code=64))


if __name__ == "__main__":
    unittest.main()
