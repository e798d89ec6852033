"""The programs that our tokenizers must agree with, each over a real vocabulary. Runs in the environment of tools/tokenizer_environment."""

import base64
import json
import os
import tempfile
import unicodedata
from typing import Callable, Dict, List, NamedTuple, Tuple

# pylint: disable=import-outside-toplevel  (each original is imported where it is used)

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST


class Original(NamedTuple):
    vocabulary: str  # what our program loads: a path under the vocabularies, or a file made for this
    encode: Callable[[bytes], List[int]]
    decode: Callable[[List[int]], str]
    vocabulary_size: int


def _replaced(data: bytes) -> str:
    return data.decode('utf-8', errors='replace')


def _tiktoken_pattern(name: str) -> str:
    """The pattern of tiktoken's own encoding, without its download of the vocabulary."""
    import tiktoken.load
    from tiktoken_ext import openai_public
    kept = openai_public.load_tiktoken_bpe, openai_public.data_gym_to_mergeable_bpe_ranks
    openai_public.load_tiktoken_bpe = openai_public.data_gym_to_mergeable_bpe_ranks = lambda *_, **__: {}
    try:
        return openai_public.ENCODING_CONSTRUCTORS[name]()['pat_str']
    finally:
        openai_public.load_tiktoken_bpe, openai_public.data_gym_to_mergeable_bpe_ranks = kept


def _tiktoken(path: str, pattern: str, nfc: bool = False) -> Original:
    import tiktoken
    with open(path, 'rb') as file:
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file.read().splitlines() if line)}
    encoding = tiktoken.Encoding(os.path.basename(path), pat_str=pattern, mergeable_ranks=ranks, special_tokens={})

    def encode(data: bytes) -> List[int]:
        text = _replaced(data)
        return encoding.encode_ordinary(unicodedata.normalize('NFC', text) if nfc else text)
    return Original(path, encode, encoding.decode, len(ranks))


def _tekken(path: str) -> Original:
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    tekken = Tekkenizer.from_file(path)
    return Original(path, lambda data: tekken.encode(_replaced(data), bos=False, eos=False),
                    lambda ids: tekken.decode(ids, special_token_policy=SpecialTokenPolicy.IGNORE), tekken.n_words)


def _sentencepiece(path: str) -> Original:
    import sentencepiece
    model = sentencepiece.SentencePieceProcessor(model_file=path)
    return Original(path, model.encode, model.decode, model.get_piece_size())


def _hugging_face(path: str) -> Original:
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.encode_special_tokens = True
    return Original(path, lambda data: tokenizer.encode(_replaced(data), add_special_tokens=False).ids, tokenizer.decode,
                    tokenizer.get_vocab_size())


def _gpt2_json(folder: str, parts: str) -> str:
    """GPT-2's two files as the tokenizer.json that transformers makes of them."""
    with open(os.path.join(parts, 'vocab.json'), encoding='utf-8') as file:
        vocab = json.load(file)
    with open(os.path.join(parts, 'merges.txt'), encoding='utf-8') as file:
        merges = [line for line in file.read().split('\n')[1:] if line]
    byte_level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}
    document = {
        'version': '1.0', 'truncation': None, 'padding': None, 'normalizer': None, 'pre_tokenizer': byte_level, 'post_processor': byte_level,
        'added_tokens': [{'id': 50256, 'content': '<|endoftext|>', 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': True,
                          'special': True}],
        'decoder': byte_level,
        'model': {'type': 'BPE', 'dropout': None, 'unk_token': None, 'continuing_subword_prefix': None, 'end_of_word_suffix': None,
                  'fuse_unk': False, 'byte_fallback': False, 'ignore_merges': False, 'vocab': vocab, 'merges': merges},
    }
    path = os.path.join(folder, 'tokenizer.json')
    with open(path, 'w', encoding='utf-8') as file:
        json.dump(document, file, ensure_ascii=False)
    return path


def originals(vocabularies: str) -> Dict[str, Tuple[str, Callable[[], Original]]]:
    """Name: (what it is, a function that makes it). Only those whose files are there."""
    def at(path: str) -> str:
        return os.path.join(vocabularies, path)
    table = {
        'gpt2': ('gpt2/gpt2.tiktoken', lambda path: _tiktoken(path, _tiktoken_pattern('r50k_base'))),
        'cl100k': ('cl100k/cl100k_base.tiktoken', lambda path: _tiktoken(path, _tiktoken_pattern('cl100k_base'))),
        'o200k': ('o200k/o200k_base.tiktoken', lambda path: _tiktoken(path, _tiktoken_pattern('o200k_base'))),
        'llama3': ('llama3/tokenizer.model', lambda path: _tiktoken(path, LLAMA3)),
        'llama4': ('llama4/tokenizer.model', lambda path: _tiktoken(path, _tiktoken_pattern('o200k_base'))),
        'qwen': ('qwen/qwen.tiktoken', lambda path: _tiktoken(path, QWEN, nfc=True)),
        'tekken_240718': ('tekken_240718/tekken.json', _tekken),
        'tekken_240911': ('tekken_240911/tekken.json', _tekken),
        'mistral_v1': ('mistral_v1/tokenizer.model', _sentencepiece),
        'mistral_v3': ('mistral_v3/tokenizer.model', _sentencepiece),
        'mistral_v7': ('mistral_v7/tokenizer.model', _sentencepiece),
        'j2': ('j2/tokenizer.model', _sentencepiece),
        'deepseek_v4': ('deepseek_v4/tokenizer.json', _hugging_face),
        'anthropic': ('anthropic/tokenizer.json', _hugging_face),
        'gpt2_json': ('gpt2_parts', lambda path: _hugging_face(_gpt2_json(tempfile.mkdtemp(), path))),
    }
    return {name: (path, (lambda make=make, path=path: make(at(path)))) for name, (path, make) in table.items() if os.path.exists(at(path))}
