#!/usr/bin/env python3
"""Writes golden.json: small tokenizers with random parts, and what Hugging Face's own library makes of random texts with them.

  python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.1
  /tmp/venv/bin/python make_golden.py golden.json
  /tmp/venv/bin/python make_golden.py --seed 7 --cases 2000 /tmp/more.json   # more of the same, for CONVENE_GOLDEN (see golden_test.cc)
"""

import argparse
import base64
import io
import json
import os
import random
import tempfile

import sentencepiece
import tokenizers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

WORDS = """the The THE final countdown of a an is was I'll you're he'd they've CAN'T it's don't 1234567 3.14 1,000 x=y+z foo_bar fooBar hello world Hello
 tokenizer tokenization unbelievable low lower lowest new newer newest wide wider café cafe\u0301 naïve Ångström A\u030angström İstanbul ÇALIŞMA straße ﬁnal ﬂow ½ ² Ⅷ ٣٤
 हिन्दी 中文字符 日本語テキスト ひらがな カタカナ 한국어 각 Привет мир Ελλάδα שלום مرحبا ไทย 🦙 👨‍👩‍👧‍👦 🇩🇪 e\u0301\u0323 o\u0323\u0301 \u1e69 \u1e9b\u0323 ＡＢＣ ｱｲｳ ㌔ ㎏ ① Ⓐ""".split()
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2009", "\u200b", "\u2028", "\u0085", ""]
MARKS = list("""!"#$%&'()*+,-./:;<=>?@[]^_`{|}~""") + ["--", "...", "\u2581", "\u2581\u2581", "\u2014", "\u00ab", "\u300c", "\u20ac", "\u00ad", "\ufeff", "\ufffd", "\x00", "\x01",
                                                          "\x7f", "\u0301", "\u0130", "\u017f", "Ġ", "Ċ", "<0x41>", "<unk>", "▁the"]
TOKENS = ["<s>", "</s>", "<unk>", "<|eot|>", "<mask>", "[CLS]", "DEF", "def", "the", "  ", "\n", "low", "é", "e\u0301", "ab", "abc", "\u2581x", "<|a b|>", "ﬁ", "tion", "@@", "-"]
CORPUS = (" ".join(WORDS) + " ") * 3 + "\n".join(" ".join(random.Random(n).choices(WORDS, k=12)) for n in range(200))

REGEXES = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "numbers": r"\p{N}{1,3}",
    "cjk": "[一-龥\u3040-ゟ゠-ヿ]+",
    "words": r"\w+|[^\w\s]+",
    "spaces": r"\s+",
    "dash": r"-+",
    "any": r"..?",
}


def bpe_json(model):
    """The model as it stands in a tokenizer.json."""
    return json.loads(Tokenizer(model).to_str())["model"]


def train_bpe(pre_tokenizer, vocab_size, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet() if isinstance(pre_tokenizer, pre_tokenizers.ByteLevel) else []
    specials = [options["unk_token"]] if options.get("unk_token") else []
    arguments = {key: options[key] for key in ("continuing_subword_prefix", "end_of_word_suffix") if key in options}
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=specials, initial_alphabet=sorted(alphabet), show_progress=False, limit_alphabet=120, **arguments)
    tokenizer.train_from_iterator([CORPUS], trainer)
    return json.loads(tokenizer.to_str())["model"]


def with_bytes(model):
    """Adds tokens for the bytes; to a BPE model or a unigram one."""
    for byte in range(256):
        if isinstance(model["vocab"], list):
            model["vocab"].append([f"<0x{byte:02X}>", -20.0])
        else:
            model["vocab"].setdefault(f"<0x{byte:02X}>", len(model["vocab"]))
    model["byte_fallback"] = True
    return model


def train_unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator([CORPUS], trainers.UnigramTrainer(vocab_size=250, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False))
    return json.loads(tokenizer.to_str())["model"]


def make_models():
    byte_level = train_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), 420)
    whole = json.loads(json.dumps(byte_level))
    whole["ignore_merges"] = True
    for word in ("Ġnewest", "countdown", "xyz"):
        whole["vocab"].setdefault(word, len(whole["vocab"]))
    old = json.loads(json.dumps(byte_level))
    old["merges"] = [" ".join(pair) for pair in old["merges"]]
    llama = with_bytes(train_bpe(pre_tokenizers.Metaspace(), 300, unk_token="<unk>", fuse_unk=True))
    holes = with_bytes(train_bpe(pre_tokenizers.Metaspace(split=False), 220, unk_token="<unk>"))
    for byte in ("<0xF0>", "<0xCC>"):
        del holes["vocab"][byte]
    unigram = train_unigram()
    return [
        byte_level, whole, old, llama, holes,
        train_bpe(pre_tokenizers.Metaspace(), 260, unk_token="<unk>", fuse_unk=True),
        train_bpe(pre_tokenizers.Whitespace(), 260, unk_token="<unk>"),
        train_bpe(pre_tokenizers.Whitespace(), 240),
        train_bpe(pre_tokenizers.Whitespace(), 260, unk_token="<unk>", end_of_word_suffix="</w>"),
        train_bpe(pre_tokenizers.Whitespace(), 260, unk_token="<unk>", continuing_subword_prefix="##"),
        unigram, with_bytes(json.loads(json.dumps(unigram))),
    ]


def make_charsmap():
    """A small table of replacements, in SentencePiece's own format."""
    rules = {"ﬁ": "fi", "ﬂ": "fl", "É": "E", "e\u0301": "é", "Ａ": "A", "Ｂ": "B", "\t": " ", "\u3000": " ", "\u200b": "", "½": "1/2", "...": "…", "\r\n": "\n", "\u0130": "I", "㎏": "kg"}
    with tempfile.TemporaryDirectory() as folder:
        table = os.path.join(folder, "rules.tsv")
        with open(table, "w", encoding="utf-8") as file:
            for key, value in rules.items():
                file.write(" ".join(f"{ord(c):X}" for c in key) + "\t" + " ".join(f"{ord(c):X}" for c in value) + "\n")
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS.splitlines()[-150:]), model_writer=model, vocab_size=230, normalization_rule_tsv=table, hard_vocab_limit=False,
                                                 minloglevel=2)
    # ModelProto.normalizer_spec (3).precompiled_charsmap (2).
    spec = field(model.getvalue(), 3)
    return base64.b64encode(field(spec, 2)).decode()


def field(message, number):
    """The bytes of a length-delimited field of a protocol buffer."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 2:
            size = varint()
            if key >> 3 == number:
                return message[at:at + size]
            at += size
        elif key & 7 == 5:
            at += 4
        else:
            varint()
    raise ValueError(f"no field {number}")


def pattern(rng):
    if rng.random() < 0.4:
        return {"String": rng.choice([" ", "-", "the", "é", "\u2581", "  "])}
    return {"Regex": REGEXES[rng.choice(list(REGEXES))]}


def normalizer(rng, charsmap):
    kinds = ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "Strip", "Replace", "Prepend", "BertNormalizer", "Precompiled", "ByteLevel"]
    kind = rng.choices(kinds, weights=[3, 2, 3, 2, 3, 2, 2, 2, 4, 3, 1, 3, 1])[0]
    if kind == "Strip":
        return {"type": kind, "strip_left": rng.random() < 0.5, "strip_right": rng.random() < 0.5}
    if kind == "Replace":
        return {"type": kind, "pattern": pattern(rng), "content": rng.choice(["\u2581", "", " ", "xy", "é"])}
    if kind == "Prepend":
        return {"type": kind, "prepend": rng.choice(["\u2581", " ", "ab"])}
    if kind == "BertNormalizer":
        return {"type": kind, "clean_text": rng.random() < 0.5, "handle_chinese_chars": rng.random() < 0.5, "strip_accents": rng.choice([None, True, False]),
                "lowercase": rng.random() < 0.5}
    if kind == "Precompiled":
        return {"type": kind, "precompiled_charsmap": charsmap}
    return {"type": kind}


BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def pre_tokenizer(rng):
    kind = rng.choice(["Split", "Split", "Split", "Digits", "ByteLevel", "Metaspace", "Metaspace", "Whitespace", "WhitespaceSplit", "Punctuation", "BertPreTokenizer", "CharDelimiterSplit"])
    if kind == "Split":
        return {"type": kind, "pattern": pattern(rng), "behavior": rng.choice(BEHAVIORS), "invert": rng.random() < 0.3}
    if kind == "Digits":
        return {"type": kind, "individual_digits": rng.random() < 0.5}
    if kind == "ByteLevel":
        return {"type": kind, "add_prefix_space": rng.random() < 0.5, "trim_offsets": True, "use_regex": rng.random() < 0.5}
    if kind == "Metaspace":
        return {"type": kind, "replacement": rng.choice(["\u2581", "\u2581", "_"]), "prepend_scheme": rng.choice(["always", "first", "never"]), "split": rng.random() < 0.6}
    if kind == "Punctuation":
        return {"type": kind, "behavior": rng.choice(BEHAVIORS)}
    if kind == "CharDelimiterSplit":
        return {"type": kind, "delimiter": rng.choice(["-", "é", " "])}
    return {"type": kind}


def decoder(rng):
    kind = rng.choice(["ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"])
    if kind == "Replace":
        return {"type": kind, "pattern": rng.choice([{"String": "\u2581"}, {"String": "##"}, {"Regex": r"\s+"}]), "content": rng.choice([" ", "", "xy"])}
    if kind == "Strip":
        return {"type": kind, "content": rng.choice([" ", "e", "\u2581"]), "start": rng.randrange(3), "stop": rng.randrange(3)}
    if kind == "Metaspace":
        return {"type": kind, "replacement": "\u2581", "prepend_scheme": rng.choice(["always", "first", "never"]), "split": True}
    return {"type": kind}


def several(rng, make, key, most):
    """None, one part, or a sequence of parts."""
    count = rng.choices(range(most + 1), weights=[3] + [4, 3, 2, 1][:most])[0]
    if count == 0 and rng.random() < 0.9:
        return None
    if count == 1:
        return make()
    return {"type": "Sequence", key: [make() for _ in range(count)]}


def byte_level_case(rng):
    """Pipelines as real models have them, more often than chance would make them."""
    split = {"type": "Split", "pattern": {"Regex": REGEXES[rng.choice(["llama3", "qwen", "gpt2"])]}, "behavior": "Isolated", "invert": False}
    end = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    gpt2 = {"type": "ByteLevel", "add_prefix_space": rng.random() < 0.5, "trim_offsets": True, "use_regex": True}
    starcoder = [{"type": "Digits", "individual_digits": True}, gpt2]
    deepseek = [{"type": "Split", "pattern": {"Regex": REGEXES[name]}, "behavior": "Isolated", "invert": False} for name in ("numbers", "cjk")] + [split, end]
    steps = rng.choice([[split, end], deepseek, starcoder])
    return {"normalizer": rng.choice([None, {"type": "NFC"}]), "pre_tokenizer": rng.choice([gpt2, {"type": "Sequence", "pretokenizers": steps}]), "decoder": {"type": "ByteLevel"},
            "model": rng.randrange(3)}


def llama_case(rng):
    legacy = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if rng.random() < 0.7 else []
    chain = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}] + strip}
    if rng.random() < 0.5:
        return {"normalizer": legacy, "pre_tokenizer": None, "decoder": chain, "model": rng.choice([3, 4, 5])}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    return {"normalizer": None, "pre_tokenizer": metaspace, "decoder": chain, "model": rng.choice([3, 4, 5, 10, 11])}


def random_case(rng, charsmap, model_count):
    return {
        "normalizer": several(rng, lambda: normalizer(rng, charsmap), "normalizers", 3),
        "pre_tokenizer": several(rng, lambda: pre_tokenizer(rng), "pretokenizers", 3),
        "decoder": several(rng, lambda: decoder(rng), "decoders", 4),
        "model": rng.randrange(model_count),
    }


def added_tokens(rng):
    contents = rng.sample(TOKENS, rng.choice([0, 0, 1, 3, 6]))
    return [{"id": n, "content": content, "single_word": rng.random() < 0.2, "lstrip": rng.random() < 0.2, "rstrip": rng.random() < 0.2, "normalized": rng.random() < 0.5,
             "special": rng.random() < 0.5} for n, content in enumerate(contents)]


def text(rng):
    result = ""
    for _ in range(rng.choice([0, 1, 2, 4, 8, 12])):
        result += rng.choice(rng.choice([WORDS, WORDS, SPACES, MARKS, TOKENS]))
        result += rng.choice(["", " ", rng.choice(SPACES)])
    return result


def post_processor(rng):
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [5, 6], "tokens": ["<s>", "x"]}, "</s>": {"id": "</s>", "ids": [7], "tokens": ["</s>"]}}}
    closed = json.loads(json.dumps(template))
    closed["single"].append({"SpecialToken": {"id": "</s>", "type_id": 0}})
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    bert = {"type": "BertProcessing", "sep": ["[SEP]", 9], "cls": ["[CLS]", 8]}
    return rng.choice([None, template, closed, byte_level, bert, {"type": "Sequence", "processors": [byte_level, template]}])


def is_ambiguous(tokenizer, added):
    """Whether two added tokens are looked for by the same text: then the original takes the one or the other by chance. Or by no text at all: then
    it cuts the text at every byte."""
    normalize = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
    contents = [normalize(token["content"]) for token in added if token["normalized"]]
    return len(set(contents)) < len(contents) or "" in contents


def results(tokenizer, rng, texts):
    rows = []
    for index in rng.sample(range(len(texts)), 6):
        try:
            tokenizer.encode_special_tokens = False
            ids = tokenizer.encode(texts[index], add_special_tokens=False).ids
            tokenizer.encode_special_tokens = True
            plain = tokenizer.encode(texts[index], add_special_tokens=False).ids
            rows.append([index, ids, plain, tokenizer.decode(ids), tokenizer.decode(ids, skip_special_tokens=False)])
        except BaseException as error:  # the original panics on some
            if isinstance(error, KeyboardInterrupt):
                raise
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=150)
    parser.add_argument("output")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    all_models = make_models()
    charsmap = make_charsmap()
    texts = [text(rng) for _ in range(250)]
    cases = []
    while len(cases) < options.cases:
        case = rng.choice([byte_level_case(rng), llama_case(rng), random_case(rng, charsmap, len(all_models)), random_case(rng, charsmap, len(all_models))])
        case["added_tokens"] = added_tokens(rng)
        case["post_processor"] = post_processor(rng)
        whole = dict(case, version="1.0", model=all_models[case["model"]])
        try:
            tokenizer = Tokenizer.from_str(json.dumps(whole))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            print("refused by the original:", error)
            continue
        if is_ambiguous(tokenizer, case["added_tokens"]):
            continue
        case["frame"] = tokenizer.encode("").ids
        case["vocabulary_size"] = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
        case["results"] = results(tokenizer, rng, texts)
        loose = rng.choices(range(case["vocabulary_size"] + 3), k=12)
        case["loose_ids"] = loose
        try:
            case["loose_text"] = tokenizer.decode(loose)
        except BaseException as error:  # the original panics on some
            if isinstance(error, KeyboardInterrupt):
                raise
            continue
        cases.append(case)
    with open(options.output, "w", encoding="utf-8") as file:
        lines = ",\n".join(json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases)
        file.write('{"made_with":"tokenizers %s",\n"models":%s,\n"texts":%s,\n"cases":[\n%s]}\n' %
                   (tokenizers.__version__, json.dumps(all_models, separators=(",", ":")), json.dumps(texts), lines))


if __name__ == "__main__":
    main()
