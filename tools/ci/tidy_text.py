"""Reads the text of a C++ file for tools/ci/tidy: code without comments, and its functions."""

import re
from typing import Iterator, NamedTuple

_TOKEN = re.compile(
    r'//(?:[^\n\\]|\\.|\\\n)*'                                # a line comment
    r'|/\*.*?\*/'                                              # a block comment
    r'|(?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^\s()\\]{0,16})\(.*?\)(?P=delimiter)")'
    r'|"(?:[^"\\\n]|\\.|\\\n)*"'                               # a string
    r"|(?<![0-9A-Za-z_])'(?:[^'\\\n]|\\.)+'",                  # a character, not the ' of 1'000
    re.DOTALL)


def _blank(text: str) -> str:
    return ''.join(c if c == '\n' else ' ' for c in text)


def code_only(text: str) -> str:
    """`text` with comments and the insides of strings as blanks: every line keeps its number and length."""
    def replace(match: re.Match) -> str:
        token = match.group(0)
        if token.startswith(('//', '/*')):
            return _blank(token)
        return token[0] + _blank(token[1:-1]) + token[-1]
    return _TOKEN.sub(replace, text)


class Function(NamedTuple):
    name: str
    first_line: int  # of the opening brace
    last_line: int

    @property
    def length(self) -> int:
        return self.last_line - self.first_line + 1


_SCOPE = re.compile(r'^(?:inline\s+)?namespace\b|^(?:typedef\s+)?(?:class|struct|union|enum)\b|^extern\s*"')
_ACCESS = re.compile(r'^(?:(?:public|private|protected)\s*:(?!:)\s*)+')
_NAME = re.compile(r'([~\w:<>]+)\s*\(')


def _without_template(header: str) -> str:
    """Drops a leading `template <...>`, whose `class` would look like a class's."""
    while header.startswith('template'):
        depth = 0
        for at, c in enumerate(header):
            depth += {'<': 1, '>': -1}.get(c, 0)
            if c == '>' and depth == 0:
                header = header[at + 1:].lstrip()
                break
        else:
            return header
    return header


def _kind(header: str) -> str:
    """The kind of the brace after `header`: 'scope' (go on looking inside), 'function' or 'other'."""
    header = _without_template(_ACCESS.sub('', header))
    if _SCOPE.match(header):
        return 'scope'
    if '(' in header and not header.endswith(('=', 'return', ',')):
        return 'function'
    return 'other'


def functions(text: str) -> Iterator[Function]:
    """The functions of a C++ file. Lambdas and local classes belong to the function around them."""
    code = re.sub(r'^[ \t]*#(?:[^\n\\]|\\.|\\\n)*', lambda m: _blank(m.group(0)), code_only(text), flags=re.M)
    open_braces = []  # (kind, header, line)
    header_start = 0
    line = 1
    for at, c in enumerate(code):
        if c == '\n':
            line += 1
        elif c == '{':
            header = ' '.join(code[header_start:at].split())
            inside = open_braces[-1][0] if open_braces else 'scope'
            open_braces.append((_kind(header) if inside == 'scope' else 'inner', header, line))
            header_start = at + 1
        elif c == '}':
            if open_braces:
                kind, header, first = open_braces.pop()
                if kind == 'function':
                    name = _NAME.search(header)
                    yield Function(name.group(1) if name else header[:40], first, line)
            header_start = at + 1
        elif c == ';':
            header_start = at + 1
