#!/usr/bin/env python3
"""Compares how patterns of tokenizer.json and of tiktoken match here with the programs whose patterns they are.

usage: pattern_sets.py PROGRAM [--golden FILE]    every construct that the translator lets through, over all characters
PROGRAM is //worker_runtime/tokenizer/testing:pattern_main. Runs in the environment of tools/tokenizer_environment: Hugging Face's tokenizers
(Oniguruma) and tiktoken (Rust's fancy-regex) are the originals. --golden writes what they match, for the test that runs without them. Exit
status: 0 all matches are equal, 1 something differs.
"""

import argparse
import json
import struct
import subprocess
import sys
import zlib
from typing import Dict, List, NamedTuple, Optional, Tuple

import tiktoken
from tokenizers import Regex, pre_tokenizers

LIMIT_S = 3600
DIALECTS = ('oniguruma', 'rust')

ALL = ''.join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
# For --golden: where a character is assigned, and of the long runs in which one is as the next each 64th.
BULK = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0x12550, 0x12F8F), (0x14647, 0x160FF), (0x17000, 0x1AFEF),
        (0x20000, 0x323AF))
SHORT = ''.join(chr(code) for first, last in ((0, 0xD7FF), (0xE000, 0x323FF), (0xE0000, 0xE01FF), (0x10FFF0, 0x10FFFF))
                for code in range(first, last + 1)
                if not any(begin < code < end and (code - begin) % 64 for begin, end in BULK))
BYTES = {bytes([byte]): byte for byte in range(256)}


def texts(short: bool) -> Dict[str, str]:
    """The texts by name: each character alone, and each behind an 'a'."""
    characters = SHORT if short else ALL
    return {'each': characters, 'behind': ''.join(f'a{each} ' for each in characters if each not in 'a ')}


# ---- the originals ----

Spans = List[Tuple[int, int]]


def matched_by_oniguruma(pattern: str, text: str) -> str:
    return ''.join(piece for piece, _ in pre_tokenizers.Split(Regex(pattern), 'removed', invert=True).pre_tokenize_str(text))


def matched_by_rust(pattern: str, text: str) -> str:
    encoding = tiktoken.Encoding('x', pat_str=pattern, mergeable_ranks=BYTES, special_tokens={})
    # fancy-regex gives up on long texts. Both texts may be cut at a multiple of three characters.
    parts = [text[at:at + 3000] for at in range(0, len(text), 3000)]
    return b''.join(bytes(ids) for ids in encoding.encode_ordinary_batch(parts, num_threads=2)).decode()


def spans_of_oniguruma(pattern: str, text: str) -> Spans:
    pieces = pre_tokenizers.Split(Regex(pattern), 'removed', invert=True).pre_tokenize_str(text)
    return [(len(text[:begin].encode()), len(text[:end].encode())) for _, (begin, end) in pieces]


def pieces_of_rust(pattern: str, text: str) -> List[str]:
    """The matches alone: tiktoken does not say where they are. Each part of the text is a token, so that each match is one."""
    data = text.encode()
    ranks = dict(BYTES)
    for size in range(2, len(data) + 1):
        for begin in range(len(data) - size + 1):
            ranks.setdefault(data[begin:begin + size], len(ranks))
    encoding = tiktoken.Encoding('x', pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return [encoding.decode_single_token_bytes(one).decode() for one in encoding.encode_ordinary(text)]


# ---- ours ----


def ours(program: str, dialect: str, pairs: List[Tuple[str, str]]) -> List[object]:
    """For each pattern and text the spans, or why there are none."""
    data = b''.join(struct.pack('<I', len(part.encode())) + part.encode() for pair in pairs for part in pair)
    done = subprocess.run([program, dialect], input=data, capture_output=True, check=True, timeout=LIMIT_S)
    results, output, at = [], done.stdout, 0
    while at < len(output):
        size, = struct.unpack_from('<I', output, at)
        record = output[at + 4:at + 4 + size]
        at += 4 + size
        if record[:1] == b'!' and size % 8 != 0:
            results.append(record[1:].decode(errors='replace').strip())
        else:
            numbers = struct.unpack(f'<{size // 4}I', record)
            results.append(list(zip(numbers[::2], numbers[1::2])))
    return results


# ---- what is compared ----


class Row(NamedTuple):
    text: str  # of texts()
    pattern: str


def rows(program: str, dialect: str) -> List[Row]:
    names, posix = (part.split() for part in subprocess.run([program, 'names'], capture_output=True, text=True, check=True,
                                                            timeout=LIMIT_S).stdout.split('--\n'))
    found = [Row('each', f'\\p{{{name}}}') for name in names]
    for name in posix:
        found += [Row('each', f'[[:{name}:]]'), Row('each', f'[[:^{name}:]]')]
    escapes = ['\\s', '\\d', '\\w', '\\h']
    escapes += [escape.upper() for escape in escapes]
    found += [Row('each', wrapped) for escape in escapes for wrapped in (escape, f'[{escape}]', f'[^{escape}]', f'(?i:{escape})')]
    found += [
        Row('each', pattern)
        for pattern in ('.', '(?m:.)', '[\\s\\S]', '[^\\W_]', '[^\\s\\p{L}\\p{N}]', '[^\\r\\n\\p{L}\\p{N}]', '[\\P{L}\\d]', '\\P{L}',
                        '\\p{^Nd}', '[^\\P{Lu}]', '[\\w&&[^\\d]]', '[\\p{L}&&\\p{Latin}]', '[a[^b]]', '[^a[^b]]', '[^a-c&&b-d]', '[[:^ascii:]]',
                        '\\P{Mn}', '[^\\p{Mn}]', '[\\p{Mn}a]', '\\P{Cn}', '\\P{C}', '(?i:[a-z])', '(?i:[^a-z])', '(?i:[sk])', '(?i:[^sk])',
                        '(?i:[\\s\\w.])', '(?i:[^\\p{N}])', '(?i:[\\p{P}\\p{S}])', '(?i)[a-fZ]', '\\x{e9}', '\\u00e9', '[\\x{4e00}-\\x{9fa5}]')
    ]
    found += [Row('each', f'(?i:{chr(code)})') for code in range(ord('a'), ord('z') + 1)]
    for edge in ('a\\b', 'a\\B', 'a\\b[^ ]', 'a\\B[^ ]', '[^a ]\\b', '[^a ]\\B', 'a(?=\\w)', 'a(?!\\w)', 'a(?![[:alpha:]])', '[^a ](?<=\\W)'):
        found.append(Row('behind', edge))
    return found


# Longer patterns, each with texts that tell the dialects apart.
CASES = [
    ("[\\w]+|[^\\w\\s]+", ["a½b", "a²b c", "x\u0301y"]),
    ('\\w+', ['a½b', 'a\u200cb', 'naïve café']),
    ('\\d{1,3}+', ['12345', '1']),
    ('\\d{2}?', ['12345']),
    ('\\d{1,3}?', ['12345']),
    ('\\d{2,}?', ['12345']),
    ('\\d{,2}x', ['123x']),
    ('\\d{1,2}', ['12345']),
    ('\\p{N}{1,3}+|\\p{L}++', ['12345abc']),
    ("'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s",
     ["it'ſ 12345 x\n\n y  ", "a \n ", "I'LL  \n\nx"]),
    ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     ["it'S नमस्ते 123  \n a", "'LLx ?\r\n"]),
    (' ?[^(\\s|[.,!?…。，、।۔،])]+', ['Hello, world. 你好。x (y) | z']),
    ('[a-c-e]+', ['abc-de']),
    ('[-a]+', ['-ab-']),
    ('[a-]+', ['-ab-']),
    ('[]a]+', [']ab']),
    ('[^]a]+', [']ab']),
    ('a{', ['a{']),
    ('a}', ['a}']),
    ('a]', ['a]']),
    ('^a', ['a\nab\na']),
    ('a$', ['a\na\nb a']),
    ('\\s++$', ['a \n \n']),
    ('a\\Z', ['a\n', 'a\na']),
    ('a\\z', ['a\n', 'ba']),
    ('\\Aa', ['aa']),
    ('(?i)a|B', ['aAbB']),
    ('(?i:x(?-i:y))', ['xyXyXY']),
    ('(?i-m:ab)', ['Ab']),
    ('(?i:k\u2019s)', ['K\u2019ſ K\u2019S']),
    ('(?<n>a)b|(c)', ['abc']),
    ('(?#a comment)a', ['a']),
    ('(?<=a|bc)d', ['adbcd']),
    ('(?<!a|bc)d', ['adbcdd']),
    ('(?>a+)b|a', ['aabaa']),
    ('a\\Kb', ['abab']),
    ('a(?=b)|b+?', ['abab', 'bbb']),
    ('(?:ab|a)(?:bc|c)?', ['abc', 'abbc']),
    ('\\bfoo\\b|\\w', ['foo foob ½foo foo½']),
    ('(?:\\r\\n|[\\n\\r])+', ['a\r\n\nb']),
    ('\\.\\-\\/\\"\\#\\&\\~\\@\\,\\:\\%\\!\\=\\;\\ \\_', ['.-/"#&~@,:%!=; _']),
    ('\\t|\\n|\\r|\\f|\\v|\\a|\\e', ['\t\n\r\f\v\a\x1b\b']),
    ('[\\b\\t\\-\\]\\[\\\\^]', ['\b\t-][\\^']),
    ('[$.|(){}*+?]', ['$.|(){}*+?']),
    ('[[:alpha:]_]+|[[:punct:]]', ['aé_1+(']),
    ('[a[-z]]', ['-bz']),
    ('[\\p{L}--[a-c]]', ['abcd-']),
    ('[a-c~~b-d]', ['abcd~']),
    ('a**b', ['aab']),
    ('(?i:ss)', ['ssß']),
    ('(?i:s(?:s))', ['ssß']),
    ('(?i:(?:s)s)', ['ssß']),
    ('(?i:(?:s|x)s)', ['ssß']),
    ('(?i:s(?:x|s))', ['ssß']),
    ('(?i:s{2})', ['ssß']),
    ('(?i:s+)', ['ssß']),
    ('(?i:[s]s)', ['ssß']),
    ('(?i:s(?#c)s)', ['ssß']),
    ('(?i:s)(?i:s)', ['ssß']),
    ('(?i:st)', ['st\ufb05']),
    ('(?i:ß)', ['ssß']),
    ('(?i:\\p{Lu})', ['aA']),
    ('(?x) a b', ['ab']),
    ('a(?i)b|c', ['aBCc']),
    ('(?s:.)', ['\n']),
    ('(a)\\1', ['aa']),
    ('(?~ab)', ['xab']),
    ('(?|a|b)', ['ab']),
    ('\\X', ['e\u0301']),
    ('\\G.', ['ab']),
    ('\\N|\\O', ['ab']),
    ('\\R', ['a\r\n\n\x85b\u2028\v\f']),
    ('\\101', ['A']),
    ('\\x41', ['A']),
    ('\\xe9', ['é']),
    ('\\<a', ['<a']),
    ('\\i', ['i']),
    ('\\pL', ['aé1']),
    ('\\p{Script=Han}|\\p{gc=Lu}', ['漢A']),
    ('\\p{Foo}', ['a']),
    ('(?:a?)*b', ['aab']),
    ('[a-\\w]', ['a']),
    ('[z-a]', ['a']),
    ('[a', ['a']),
    ('(a', ['a']),
    ('a)', ['a']),
    ('*a', ['a']),
    ('a{2,1}', ['aa']),
    ('(*FAIL)', ['a']),
]


def in_original(dialect: str, pattern: str, text: str) -> Optional[List[str]]:
    """The matches, or None where the original refuses the pattern."""
    try:
        if dialect == 'rust':
            return pieces_of_rust(pattern, text)
        data = text.encode()
        return [data[begin:end].decode() for begin, end in spans_of_oniguruma(pattern, text)]
    except BaseException:  # pylint: disable=broad-except  # pyo3's PanicException is no Exception
        return None


def compare_cases(program: str, dialect: str) -> Tuple[List[str], List[list]]:
    complaints, golden = [], []
    pairs = [(pattern, text) for pattern, many in CASES for text in many]
    for (pattern, text), found in zip(pairs, ours(program, dialect, pairs)):
        expected = in_original(dialect, pattern, text)
        if isinstance(found, str):
            golden.append([dialect, 'case', pattern, text, None])
            continue
        data = text.encode()
        matches = [data[begin:end].decode() for begin, end in found]
        golden.append([dialect, 'case', pattern, text, expected])
        if expected is None:
            complaints.append(f'{dialect} {pattern!r}: runs here, and the original refuses it')
        elif matches != expected:
            complaints.append(f'{dialect} {pattern!r} in {text!r}: {expected} expected, {matches} found')
    return complaints, golden


def compare_sets(program: str, dialect: str, short: bool) -> Tuple[List[str], List[list]]:
    complaints, golden = [], []
    by_name = texts(short)
    every = rows(program, dialect)
    matched = matched_by_rust if dialect == 'rust' else matched_by_oniguruma
    for begin in range(0, len(every), 20):
        part = every[begin:begin + 20]
        results = ours(program, dialect, [(row.pattern, by_name[row.text]) for row in part])
        for row, found in zip(part, results):
            if isinstance(found, str):
                complaints.append(f'{dialect} {row.pattern!r} is refused: {found}')
                continue
            data = by_name[row.text].encode()
            mine = b''.join(data[first:last] for first, last in found)
            try:
                expected = matched(row.pattern, by_name[row.text]).encode()
            except BaseException as error:  # pylint: disable=broad-except
                complaints.append(f'{dialect} {row.pattern!r}: runs here, and the original refuses it: {error}')
                continue
            golden.append([dialect, row.text, row.pattern, len(expected), zlib.crc32(expected)])
            if mine != expected:
                only = sorted(set(expected.decode()) ^ set(mine.decode()))[:8]
                complaints.append(f'{dialect} {row.pattern!r} over {row.text}: {len(expected)} bytes expected, {len(mine)} found; '
                                  f'for example {[hex(ord(each)) for each in only]}')
    return complaints, golden


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument('program')
    parser.add_argument('--golden', help='write what the originals match')
    arguments = parser.parse_args()
    complaints, golden = [], []
    for dialect in DIALECTS:
        for compare in (lambda *a: compare_sets(*a, short=arguments.golden is not None), compare_cases):
            more, lines = compare(arguments.program, dialect)
            complaints += more
            golden += lines
    if arguments.golden:
        with open(arguments.golden, 'w', encoding='utf-8') as out:
            out.writelines(json.dumps(line, separators=(',', ':')) + '\n' for line in golden)
    refused = sum(line[-1] is None for line in golden)
    print('\n'.join(complaints))
    print(f'{len(golden) - refused} patterns compared, {len(complaints)} differ; {refused} more are refused here')
    return 1 if complaints else 0


if __name__ == '__main__':
    sys.exit(main())
