#!/usr/bin/env python3
"""Makes the small SentencePiece models of this folder, and what SentencePiece itself encodes and decodes with them.

    pip install sentencepiece==0.2.3 protobuf          # the program to compare with
    make_golden.py small                               # this folder's models and their .golden files
    make_golden.py real FOLDER MODEL... [--text FILE]  # .golden files of other models, for CONVENE_SENTENCEPIECE_GOLDEN=FOLDER

A .golden file has a line for each call, its parts parted by tabs, texts in hexadecimal:
    E TEXT IDS    the ids of a text (any bytes)
    D IDS TEXT    the text of ids
"""

import argparse
import pathlib
import random
import shutil
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto

HERE = pathlib.Path(__file__).resolve().parent
SPACE = "\u2581"

SENTENCES = """The quick brown fox jumps over the lazy dog, and the dog does not mind at all.
A launcher starts one process on each node; the processes find each other and begin to train.
Every step reads a batch of tokens, computes the loss, and writes the new weights into memory.
When a node fails, the others wait for a while, then they go on without it.
In 1999 there were 24,860 papers; in 2024 there were 1,234,567 of them, or 3.14159 times more.
Der schnelle braune Fuchs springt über den faulen Hund; größere Füchse üben länger.
Le garçon naïf a mangé une crêpe à l'été, où l'œuf coûtait 12,50 €.
El niño pequeño soñó con un pingüino que bailaba en la montaña mañana.
Съешь же ещё этих мягких французских булок, да выпей чаю.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία με θάρρος και χαρά.
हिन्दी में लिखा हुआ यह वाक्य केवल एक परीक्षा के लिए है।
色は匂へど散りぬるを我が世誰ぞ常ならむ有為の奥山今日越えて浅き夢見し酔ひもせず。
我们在北京学习机器学习，数据很多，时间很少，但是我们很高兴。
هذا نص عربي قصير لاختبار المقسم فقط ولا شيء آخر.
def train(step, loss):    return {"step": step, "loss": loss / 2.0}  # a comment
for (int i = 0; i < n; ++i) { sum += values[i]; }  // the sum of all values
if __name__ == "__main__":        main(sys.argv[1:])
https://example.org/path/to/file?query=value&other=1#part
I'LL say it's what we've got, isn't it? You're right; they'd agree.
Emoji such as 🦙 and 👩‍🚀 and 🎉🎉🎉 are characters too, as ½ and ² and ﬁ are.""".splitlines()

# What nmt_nfkc does, in few rules: spaces, characters that vanish, ligatures, wide forms, compositions, and keys that begin with others.
RULES = """A0\t20
3000\t20
2009\t20
A\t20
D\t20
9\t20
200B\t
AD\t
7F\t
FB01\t66 69
FB03\t66 66 69
BD\t31 2044 32
B2\t32
2026\t2E 2E 2E
FF21\t41
FF42\t62
41 308\tC4
61 308\tE4
65 301\tE9
65 301 302\t65 302
2047\t20 3F 3F 20
FF9E\t20 3099"""

DENORMALIZE = "C4\t41 65\nE4\t61 65\n"

USER_SYMBOLS = ["<sep>", "<sep>>", "foo", "foobar", "the", "\u00e9", SPACE + "and", "a b", "9"]

TRAPS = [
    b"", b" ", b"  ", b"   a", b"a   ", b"a  b   ", b" a \n\n b ", b"\n", b"\t\ttab", b"\x00", b"a\x00b", b" jeho", b"cafe\xcc\x81", b"cafe\xcc\x81\xcc\x82",
    b"I'LL I'll", "1234567 ٣٤ ²".encode(), "हिन्दी".encode(), "🦙".encode(), "👩‍🚀🎉🎉".encode(), b"///\n/x", b"  hello", b"hello", b"<s>", b"</s> a", b"<unk>",
    b"<0x41><0x0A>", b"[INST] hi [/INST]", b"<sep>", b"<sep>>", b"<sep>>>a<sep", b"x foobar foob foo fo", b"there the then", b" and sand and and",
    "\u2581".encode(), "\u2581\u2581a \u2581 b\u2581".encode(), "a\u00a0b\u3000c\u2009\u200bd".encode(), "\u200b".encode(), " \u200b ".encode(), "\u200b a".encode(),
    "ﬁ ﬃ ½ ² … Ａｂ".encode(), "A\u0308a\u0308e\u0301e\u0301\u0302".encode(), "\u2047\uff9e \u2047 \uff9e".encode(), "\ufffd".encode(), "\ufeffbom".encode(),
    b"\xff", b"a\xffb", b"\xe2\x96", b"\xe2\x96\x81\xe2\x96", b"\xf0\x9f\xa6", b"\xf0\x9f\xa6x", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80",
    b"\x80\x80\x80 \x80", b"ok \xc3\x28 ok", "é".encode()[:1], b"the\xffthe", b"\xffthe", "\U0010ffff\ud7ff\ue000".encode(), b"a" * 300, b" " * 100, b"ab" * 150,
    ("\u4e00" * 100).encode(), b"\xff" * 50, "日本語とEnglishの混ざったtext。".encode(), "x\u0301\u0302\u0303".encode(), b"a b a b a b",
]


def texts_for(generator, count, own_text):
    """TRAPS, then mixes of words, broken bytes and characters from everywhere."""
    words = [word.encode() for line in SENTENCES for word in line.split(" ")]
    texts = list(TRAPS) + [line.encode() for line in SENTENCES]
    symbols = [symbol.encode() for symbol in USER_SYMBOLS] + TRAPS
    for _ in range(count):
        parts = []
        for _ in range(generator.randrange(1, 12)):
            kind = generator.randrange(12)
            if kind < 5:
                parts.append(generator.choice(words))
            elif kind < 8:
                parts.append(b" " * generator.choice((1, 1, 1, 2, 5)))
            elif kind == 8:
                parts.append(generator.choice(symbols)[:60])
            elif kind == 9:
                parts.append(bytes(generator.randrange(256) for _ in range(generator.randrange(1, 4))))
            elif kind == 10:
                limit = generator.choice((0x80, 0x800, 0x3100, 0x10000, 0x110000))
                parts.append(chr(generator.randrange(limit)).encode("utf-8", "surrogatepass"))
            else:
                word = generator.choice(words)
                parts.append(word[generator.randrange(len(word)):] if word else b"")
        texts.append(b"".join(parts))
    for _ in range(count if own_text else 0):
        begin = generator.randrange(len(own_text))
        texts.append(own_text[begin:begin + generator.randrange(1, 3000)])
    return texts


def write_golden(model, path, seed, count, own_text=b""):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    generator = random.Random(seed)
    lines = []

    def add_decode(ids):
        lines.append("D\t%s\t%s" % (" ".join(map(str, ids)), processor.decode(ids).encode().hex()))

    # Long enough that the sums of a unigram model are rescaled.
    long_text = " ".join(generator.choice(SENTENCES) for _ in range(30000)).encode() if own_text else b""
    for text in texts_for(generator, count, own_text) + [long_text, own_text]:
        ids = processor.encode(text)
        lines.append("E\t%s\t%s" % (text.hex(), " ".join(map(str, ids))))
        add_decode(ids)
    pieces = processor.get_piece_size()
    usual = [identity for identity in range(pieces) if not processor.is_byte(identity)]
    in_bytes = [identity for identity in range(pieces) if processor.is_byte(identity)] or usual
    for _ in range(count):
        add_decode([generator.choice(generator.choice((usual, in_bytes, usual[:8]))) for _ in range(generator.randrange(0, 9))])
    path.write_text("\n".join(lines) + "\n")
    print("%s: %d calls" % (path.name, len(lines)))


def train(folder, name, **options):
    corpus = folder / "corpus.txt"
    generator = random.Random(14)
    lines = list(SENTENCES)
    for _ in range(400):
        words = generator.choice(SENTENCES).split(" ")
        begin = generator.randrange(len(words))
        lines.append(" ".join(words[begin:begin + generator.randrange(1, 8)]))
    corpus.write_text("\n".join(lines) + "\n")
    rules = folder / "rules.tsv"
    rules.write_text(RULES + "\n")
    back = folder / "back.tsv"
    back.write_text(DENORMALIZE)
    if options.pop("own_rules", False):
        options["normalization_rule_tsv"] = str(rules)
        options["denormalization_rule_tsv"] = str(back)
    sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(folder / name), num_threads=1, minloglevel=2, hard_vocab_limit=False,
                                             **options)
    model = proto.ModelProto()
    model.ParseFromString((folder / (name + ".model")).read_bytes())
    model.trainer_spec.ClearField("input")
    model.trainer_spec.model_prefix = name
    return model


def edit(model, change):
    copy = proto.ModelProto()
    copy.CopyFrom(model)
    change(copy)
    return copy


def make_unused(model):
    generator = random.Random(5)
    for piece in model.pieces:
        if piece.type == proto.ModelProto.SentencePiece.NORMAL and generator.randrange(3) == 0:
            piece.type = proto.ModelProto.SentencePiece.UNUSED


def make_ties(model):
    for piece in model.pieces:
        piece.score = round(piece.score / 4) * 0.7
        if len(piece.piece) == 3:
            piece.score = 0.3


def make_unescaped(model):
    model.normalizer_spec.escape_whitespaces = False
    for piece in model.pieces:
        piece.piece = piece.piece.replace(SPACE, " ")


def make_small():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        like_mistral = train(folder, "bpe_bytes", model_type="bpe", vocab_size=900, normalization_rule_name="identity", byte_fallback=True,
                             remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True, character_coverage=0.985,
                             control_symbols=["[INST]", "[/INST]"])
        rules = dict(own_rules=True, user_defined_symbols=USER_SYMBOLS, character_coverage=0.98)
        bpe_rules = train(folder, "bpe_rules", model_type="bpe", vocab_size=600, **rules)
        unigram_bytes = train(folder, "unigram_bytes", model_type="unigram", vocab_size=900, normalization_rule_name="identity", byte_fallback=True,
                              add_dummy_prefix=False, remove_extra_whitespaces=False, bos_id=-1, eos_piece="<|end|>", unk_surface="<?>")
        unigram_rules = train(folder, "unigram_rules", model_type="unigram", vocab_size=500, **rules)
        models = {
            "bpe_bytes": like_mistral,
            "bpe_rules": bpe_rules,
            "bpe_suffix": train(folder, "bpe_suffix", model_type="bpe", vocab_size=500, normalization_rule_name="identity", treat_whitespace_as_suffix=True,
                                character_coverage=0.98),
            "bpe_across_words": train(folder, "bpe_across_words", model_type="bpe", vocab_size=600, split_by_whitespace=False, own_rules=True),
            "bpe_unused": edit(like_mistral, make_unused),
            "bpe_ties": edit(bpe_rules, make_ties),
            "bpe_unescaped": edit(like_mistral, make_unescaped),
            "unigram_bytes": unigram_bytes,
            "unigram_rules": unigram_rules,
            "unigram_unused": edit(unigram_bytes, make_unused),
            "unigram_ties": edit(unigram_rules, make_ties),
        }
        for name, model in models.items():
            path = HERE / (name + ".model")
            path.write_bytes(model.SerializeToString(deterministic=True))
            write_golden(path, HERE / (name + ".golden"), name, 60)


def make_real(folder, models, text):
    folder.mkdir(parents=True, exist_ok=True)
    own_text = text.read_bytes() if text else b""
    for model in models:
        name = model.name.replace(".", "_")
        shutil.copy(model, folder / (name + ".model"))
        write_golden(model, folder / (name + ".golden"), name, 3000, own_text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("small")
    real = commands.add_parser("real")
    real.add_argument("folder", type=pathlib.Path)
    real.add_argument("models", type=pathlib.Path, nargs="+")
    real.add_argument("--text", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.command == "small":
        make_small()
    else:
        make_real(arguments.folder, arguments.models, arguments.text)


if __name__ == "__main__":
    main()
