#!/usr/bin/env python3
"""Writes the table of worker_runtime/tokenizer/unicode_changes.cc anew: what Oniguruma's Unicode has otherwise than PCRE2's.

usage: unicode_changes.py PROGRAM
PROGRAM is //worker_runtime/tokenizer/testing:pattern_main, of which the names of the properties come. Runs in the environment of
tools/tokenizer_environment, with the PCRE2 of this machine. Prints the table's lines. (pattern_sets.py shows that Rust's Unicode is the same.)
"""

import ctypes
import subprocess
import sys
from typing import List, Set, Tuple

from tokenizers import Regex, pre_tokenizers

UTF_AND_UCP = 0x000A0000
NO_UTF_CHECK = 0x40000000
ALL = ''.join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
DATA = ALL.encode()
WIDTH = 96

_pcre2 = ctypes.CDLL('libpcre2-8.so.0')
_pcre2.pcre2_compile_8.restype = ctypes.c_void_p
_pcre2.pcre2_compile_8.argtypes = [
    ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint32,
    ctypes.POINTER(ctypes.c_int),
    ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p
]
_pcre2.pcre2_match_data_create_8.restype = ctypes.c_void_p
_pcre2.pcre2_match_8.argtypes = [
    ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p
]
_pcre2.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)
_pcre2.pcre2_get_ovector_pointer_8.argtypes = [ctypes.c_void_p]


def of_pcre2(name: str) -> Set[str]:
    pattern = f'\\p{{{name}}}++'.encode()
    code = _pcre2.pcre2_compile_8(pattern, len(pattern), UTF_AND_UCP, ctypes.c_int(), ctypes.c_size_t(), None)
    if not code:
        raise SystemExit(f'unicode_changes: PCRE2 has no property {name}')
    match = _pcre2.pcre2_match_data_create_8(1, None)
    span = _pcre2.pcre2_get_ovector_pointer_8(match)
    found, at = [], 0
    while at < len(DATA) and _pcre2.pcre2_match_8(code, DATA, len(DATA), at, NO_UTF_CHECK, match, None) > 0:
        found.append(DATA[span[0]:span[1]])
        at = span[1]
    return set(b''.join(found).decode())


def of_oniguruma(name: str) -> Set[str]:
    pieces = pre_tokenizers.Split(Regex(f'\\p{{{name}}}++'), 'removed', invert=True).pre_tokenize_str(ALL)
    return set(''.join(piece for piece, _ in pieces))


def ranges(characters: Set[str]) -> List[Tuple[int, int]]:
    found: List[Tuple[int, int]] = []
    for code in sorted(map(ord, characters)):
        if found and found[-1][1] == code - 1:
            found[-1] = (found[-1][0], code)
        else:
            found.append((code, code))
    return found


def properties(program: str) -> List[Tuple[str, str]]:
    """The names of those that are tables, for PCRE2 and for Oniguruma: categories of two letters, properties, scripts."""
    names = subprocess.run([program, 'names'], capture_output=True, text=True, check=True, timeout=60).stdout.split('--\n')[0].split()
    first, last = names.index('Alphabetic'), names.index('Ideographic')
    found = [(name, name) for name in names[:first] if len(name) == 2 and name not in ('Cn', 'LC')]
    found += [(name, name) for name in names[first:last + 1]]
    return sorted(found + [(f'sc:{name}', name) for name in names[last + 1:]])


def main() -> int:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    line = ''
    for name, plain in properties(sys.argv[1]):
        old, new = of_pcre2(name), of_oniguruma(plain)
        for characters, is_added in ((new - old, 'true'), (old - new, 'false')):
            for first, last in ranges(characters):
                item = f'{{"{name}", 0x{first:X}, 0x{last:X}, {is_added}}},'
                if len(line) + 1 + len(item) > WIDTH:
                    print(f'    {line}')
                    line = ''
                line = f'{line} {item}'.strip()
    print(f'    {line}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
