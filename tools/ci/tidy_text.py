"""Reads text for tools/ci/tidy: C++ code without comments, its functions, and the prose of any file."""

import bisect
import io
import itertools
import re
import tokenize
from typing import Iterator, List, NamedTuple, Optional, Tuple

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


def _cpp_comments(text: str) -> Iterator[Tuple[int, str]]:
    for match in _TOKEN.finditer(text):
        if match.group(0).startswith(('//', '/*')):
            first = text.count('\n', 0, match.start()) + 1
            for number, line in enumerate(match.group(0).split('\n'), first):
                yield number, re.sub(r'^\s*(?://+<?|/?\*+)|\*/$', '', line)


def _python_comments(text: str) -> Iterator[Tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string[1:]
        elif token.type == tokenize.STRING and token.line.lstrip().startswith(('"""', 'r"""')) and token.string.endswith('"""'):
            yield from enumerate(token.string.strip('r"').split('\n'), token.start[0])


def _shell_comments(text: str) -> Iterator[Tuple[int, str]]:
    for number, line in enumerate(text.split('\n'), 1):
        match = re.match(r'\s*#(?!!)(.*)', line)
        if match:
            yield number, match.group(1)


def _markdown_prose(text: str) -> Iterator[Tuple[int, str]]:
    """Without code, tables, headings and quotations."""
    in_code = False
    for number, line in enumerate(text.split('\n'), 1):
        if line.lstrip().startswith('```'):
            in_code = not in_code
        elif not in_code and not line.startswith(('|', '#', '>', '    ')):
            yield number, line


def prose(path: str, text: str) -> Iterator[Tuple[int, str]]:
    """The comment lines of a file, or the prose lines of a Markdown file, each with its number."""
    if path.endswith('.md'):
        return _markdown_prose(text)
    if path.endswith(('.cc', '.h', '.cu', '.cuh', '.inc', '.proto')):
        return _cpp_comments(text)
    if path.endswith('.py') or re.match(r'#!.*python', text):
        return _python_comments(text)
    return _shell_comments(text)


_SUBJECTLESS = re.compile(r'(?:^|[.!?:]["\')`*]*[ \n])\s*\(?\**((?:Who(?:se|m|ever)?|What(?:ever)?|Which|Those|Ones|(?:One|All) (?:that|who|which)'
                          r'|That which)\b[^.!?]*[.!?]?)', re.M)
_ITEM = re.compile(r'\s*(?:[-*]|\d+\.) ')


def subjectless(lines: Iterator[Tuple[int, str]]) -> Iterator[Tuple[int, str]]:
    """The sentences of prose lines whose subject is a bare pronoun, with the number of their first line; questions are none.

    Lines that follow each other are one paragraph, which an empty line or an item of a list ends."""
    previous: Optional[int] = None
    text, starts, numbers = '', [], []  # type: str, List[int], List[int]
    for number, line in itertools.chain(lines, [(-1, '')]):
        if previous is not None and (number != previous + 1 or not line.strip()):
            for match in _SUBJECTLESS.finditer(text):
                if not match.group(1).endswith('?'):
                    yield numbers[bisect.bisect(starts, match.start(1)) - 1], match.group(1)
            text, starts, numbers = '', [], []
        separator = '\n' if _ITEM.match(line) else ' '
        text += separator if text else ''
        starts.append(len(text))
        numbers.append(number)
        text += _ITEM.sub('', line).strip()
        previous = number
