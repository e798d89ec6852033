"""Texts on which tokenizers are compared: real ones of this machine, and random ones that look for trouble."""

import glob
import os
import random
import sys
import unicodedata
from typing import Iterator, List

# Of each script some letters, with its marks and digits.
SCRIPTS = [
    'abcdefghijklmnopqrstuvwxyz', 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', '0123456789', 'éèêëàâäôöûüçñßøåæœ',
    'абвгдежзийклмнопрстуфхцчшщъыьэюя', 'ΑΒΓΔΕΖΗαβγδεζηθικλμνξοπρστυφχψω', 'אבגדהוזחטיכלמנסעפצקרשת',
    'ابتثجحخدذرزسشصضطظعغفقكلمنهوي٠١٢٣٤٥', 'हिन्दी नमस्ते दुनिया १२३', 'বাংলা ভাষা', 'ไทยสวัสดีชาวโลก',
    '中文字符测试世界你好北京大学', 'ひらがなかたかな', 'カタカナーテスト', '한국어세계안녕하세요', 'ქართული', 'ᠮᠣᠩᠭᠣᠯ',
]
TROUBLE = [
    ' ', '  ', '   ', '\t', '\n', '\n\n', '\r\n', '\r', ' \n', '\n ', '\x85', '\xa0', '\u2003', '\u3000', '\u200b',
    '\u200d', '\u180e', '\ufeff', "'s", "'S", "'ll", "'LL", "'re", "'ſ", "'", '’s', '.', ',', '...', '!', '?', '/',
    '//', '///\n', '-', '--', '_', '$', '€', '=', '==', '(', ')', '[', ']', '{', '}', '<', '>', '|', '\\', '"', '`',
    '~', '@', '#', '%', '^', '&', '*', '+', ';', ':', 'e\u0301', '\u0301', '\u0301\u0316', 'ǅ', 'ª', 'ʰ', '²', '½',
    'Ⅷ', '١', '٣٤', 'İ', 'ı', 'ß', 'ﬁ', 'ﬀ', 'Å', 'Ω', '가', '\u1100\u1161', '\u3042\u3099', '🦙',
    '\U0001f468\u200d\U0001f469\u200d\U0001f467', '🇩🇪', '\ufe0f', '\U000e0041', '\ue000', '\U0010fffd', '\x00',
    '\x01', '\x1c', '\x7f', '▁', '▁▁', 'Ġ', 'Ċ', '<s>', '</s>', '<unk>', '<|endoftext|>', '<|eot_id|>',
    '<|im_start|>', '[INST]', '<0x0A>', 'HelloWorld', 'camelCase', 'ALLCAPS', 'snake_case', '1234567', '3.14159',
    '1,000,000', "don't", "I'LL", 'http://a.b/c?d=e',
]


def _files(patterns: List[str], rng: random.Random) -> Iterator[bytes]:
    paths = [path for pattern in patterns for path in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(path)]
    rng.shuffle(paths)
    for path in paths:
        with open(path, 'rb') as file:
            yield file.read(1 << 14)


def real_texts(rng: random.Random) -> Iterator[bytes]:
    """Documentation, code and locales of this machine, at most 16 KiB of each file."""
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return _files(['/usr/share/doc/**/*', '/usr/share/perl*/**/*.pod', '/usr/share/i18n/locales/*', os.path.dirname(os.__file__) + '/**/*.py',
                   here + '/worker_runtime/**/*.cc', '/usr/include/**/*.h'], rng)


def word(rng: random.Random) -> str:
    letters = rng.choice(SCRIPTS)
    return ''.join(rng.choice(letters) for _ in range(rng.randint(1, rng.choice([2, 6, 12, 40]))))


def sentence(rng: random.Random) -> str:
    return rng.choice([' ', ' ', ' ', '\n', '']).join(word(rng) for _ in range(rng.randint(1, 20))) + rng.choice(['.', '。', '', '\n', '!'])


def fuzzed(rng: random.Random) -> bytes:
    """A short text of parts that tokenizers treat in special ways."""
    parts = []
    for _ in range(rng.randint(1, 24)):
        kind = rng.random()
        if kind < 0.55:
            parts.append(rng.choice(TROUBLE))
        elif kind < 0.8:
            parts.append(word(rng))
        elif kind < 0.9:
            parts.append(rng.choice(TROUBLE) * rng.randint(1, 40))
        else:
            # Only characters of Python's Unicode, 14: the originals have versions from 14 to 16, and treat newer characters as unassigned.
            character = chr(rng.randrange(0x20, 0x30000))
            parts.append(character if unicodedata.category(character) not in ('Cn', 'Cs') else '\uffff')
    data = ''.join(parts).encode()
    if rng.random() < 0.2:  # broken UTF-8: bytes changed, and cut anywhere
        broken = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        data = bytes(broken[:rng.randint(1, len(broken))])
    return data


def texts(size: int, seed: int) -> Iterator[bytes]:
    """Texts of `size` bytes together: a half real files (documentation, code, locales), the rest made up."""
    rng = random.Random(seed)
    yield b''
    done = 0
    for data in real_texts(rng):
        if done >= size / 2:
            break
        if b'\0' in data[:1000]:
            data = data[:2000]  # a binary file: some of it is enough
        done += len(data)
        yield data
    while done < size:
        kind = rng.random()
        if kind < 0.5:
            data = b''.join(sentence(rng).encode() for _ in range(rng.randint(1, 50)))
        elif kind < 0.97:
            data = fuzzed(rng)
        elif kind < 0.98:
            data = (rng.choice([' ', '\n', '\t', 'a', '=', '1', '中', '\u0301', '🦙', ' \n', 'ab']) * rng.randint(100, 3000)).encode()
        elif kind < 0.99:
            data = ''.join(rng.choice(rng.choice(SCRIPTS[:4])) for _ in range(rng.randint(100, 3000))).encode()
        else:
            data = bytes(rng.randrange(256) for _ in range(rng.randint(1, 300)))
        done += len(data)
        yield data


if __name__ == '__main__':
    for text in texts(int(sys.argv[1]), int(sys.argv[2])):
        sys.stdout.buffer.write(text)
