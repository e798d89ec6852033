#!/usr/bin/env python3
"""How fast SentencePiece and Hugging Face's tokenizers encode a text by lines, for comparison with encode_bench.

    pip install sentencepiece tokenizers protobuf
    compare_speed.py MODEL TEXT

Each runs on one thread; the times are processor time, best of three runs.
"""

import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2 as proto


def megabytes_per_second(size, action):
    best = 0
    for _ in range(3):
        begin = time.process_time()
        action()
        best = max(best, size / 1e6 / (time.process_time() - begin))
    return best


def to_tokenizers(path):
    """The model as transformers converts it (convert_slow_tokenizer.py)."""
    model = proto.ModelProto()
    model.ParseFromString(open(path, "rb").read())
    if model.trainer_spec.model_type == 2:
        vocabulary = {piece.piece: identity for identity, piece in enumerate(model.pieces)}
        merges = []
        for piece in model.pieces:
            if piece.type != 1:
                continue
            halves = [(piece.piece[:cut], piece.piece[cut:]) for cut in range(1, len(piece.piece))]
            halves = [half for half in halves if half[0] in vocabulary and half[1] in vocabulary]
            merges += [(-piece.score, vocabulary[left], vocabulary[right], left, right) for left, right in halves]
        pairs = [(left, right) for _, _, _, left, right in sorted(merges)]
        engine = tokenizers.models.BPE(vocab=vocabulary, merges=pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    else:
        engine = tokenizers.models.Unigram([(piece.piece, piece.score) for piece in model.pieces], unk_id=0,
                                           byte_fallback=model.trainer_spec.byte_fallback)
    result = tokenizers.Tokenizer(engine)
    steps = []
    if model.normalizer_spec.precompiled_charsmap:
        steps.append(tokenizers.normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap))
    if model.normalizer_spec.add_dummy_prefix:
        steps.append(tokenizers.normalizers.Prepend("\u2581"))
    steps.append(tokenizers.normalizers.Replace(" ", "\u2581"))
    result.normalizer = tokenizers.normalizers.Sequence(steps)
    return result


def main():
    path, text = sys.argv[1], open(sys.argv[2], encoding="utf-8", newline="").read()
    lines = text.split("\n")
    size = len(text.encode())
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    converted = to_tokenizers(path)
    print("sentencepiece %s: %.2f MB/s" % (sentencepiece.__version__, megabytes_per_second(size, lambda: [processor.encode(line) for line in lines])))
    print("tokenizers %s: %.2f MB/s" % (tokenizers.__version__, megabytes_per_second(size, lambda: [converted.encode(line) for line in lines])))


if __name__ == "__main__":
    main()
