"""Random templates: from the grammar of the subset that we know, with now and then something that is wrong.

Most expressions are made of values of known types, so that few templates end with an error.
"""

import json
import random
from typing import Any, Dict, List

VARIABLES: Dict[str, Any] = {
    'messages': [
        {'role': 'system', 'content': ' Be brief.\n'},
        {'role': 'user', 'content': 'What is 2 + 2?  ', 'n': 3},
        {'role': 'assistant', 'content': None, 'tool_calls': [{'name': 'add', 'arguments': {'a': 2, 'b': 2.5, 'c': [True, None]}}]},
        {'role': 'tool', 'content': '{"sum": 4}'},
        {'role': 'assistant', 'content': "It's \"4\" \u2014 \u4f60\u597d \U0001f999\u00a0\n"},
    ],
    'tools': None,
    'bos_token': '<s>',
    'words': ['b', 'a', 'C', 'a', ''],
    'numbers': [3, -1, 0, 7, 2],
    'nested': {'items': [1], 'x': {'y': ['z', {'k': 'v'}]}, 'e': {}, '\u00fc': 'u'},
    'flag': True,
    'off': False,
    'n': 5,
    'f': 2.5,
    'empty': '',
    'text': 'Hello, World\n second line\n\n third',
}
STRINGS = ['a', '', ' ', '\\n', 'role', 'x y', 'user', '<|end|>', "\\'", '\\\\', '\\u00e9', '\u00e9\u4f60', 'b', '  pad ', 'A-b c']
SPACES = ['', ' ', '\n', '  \n', '\n  ', 'x', 'text ', '{ ', '} ', '\t', '% ', '\n\n', ' y\n']


class Maker:
    """One template. Methods return source texts of the type that they are named after."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.scope: List[str] = []
        self.dicts: List[str] = []
        self.loops = 0
        self.macros: List[str] = []

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def string(self, depth: int) -> str:
        quote = self.pick("'", '"')
        literal = quote + self.pick(*STRINGS).replace(quote, '') + quote
        if depth <= 0:
            return self.pick(literal, 'text', 'bos_token', 'empty', "messages[0].content", "messages[1]['role']")
        d = depth - 1
        return self.pick(
            lambda: literal, lambda: literal, lambda: 'text', lambda: 'bos_token',
            lambda: f'{self.string(d)} + {self.string(d)}',
            lambda: f'({self.string(d)} ~ {self.any(d)})',
            lambda: f'{self.string(d)} ~ {self.integer(d)} ~ {self.string(d)}',
            lambda: f'{self.string(d)} * {self.random.randint(-1, 3)}',
            lambda: f'({self.string(d)})[{self.integer(d)}]',
            lambda: f'({self.string(d)})[{self.slice(d)}]',
            lambda: f'({self.string(d)}){self.string_method(d)}',
            lambda: f'({self.string(d)})|{self.string_filter(d)}',
            lambda: f'{self.list(d)}|join({self.string(d)})',
            lambda: f'{self.list(d)}|join',
            lambda: f'({self.any(d)})|string',
            lambda: f'({self.json(d)})|tojson{self.tojson_arguments()}',
            lambda: f'({self.string(d)} if {self.boolean(d)} else {self.string(d)})',
            lambda: f'({self.string(d)} if {self.boolean(d)})',
            lambda: f'{self.dict(d)}.role',
            lambda: f"({self.dict(d)}.content or {self.string(d)})",
            lambda: f'({self.any(d)})|default({self.string(d)}{self.pick("", ", true", ", boolean=false")})',
        )()

    def tojson_arguments(self) -> str:
        return self.pick('', '', '(indent=2)', '(indent=4)', '(ensure_ascii=True)', '(sort_keys=true)', "(separators=(',', ':'))",
                         "(indent='  ', sort_keys=True)")

    def string_method(self, d: int) -> str:
        return self.pick(
            '.strip()', '.lstrip()', '.rstrip()', f'.strip({self.string(0)})', '.upper()', '.lower()', '.title()', '.capitalize()',
            f'.replace({self.string(0)}, {self.string(0)})', f'.replace({self.string(0)}, {self.string(0)}, {self.random.randint(-1, 2)})',
            f'.split({self.string(0)})[0]', '.split()[-1]', f'.split({self.string(0)}, 1)[-1]', f'.rsplit({self.string(0)}, 1)[0]',
            f'.removeprefix({self.string(0)})', f'.removesuffix({self.string(0)})', '.splitlines()|join("/")',
            f'.partition({self.string(0)})[2]', '.split(None, 1)|join("|")', '.rsplit(none, 1)|join("|")', '.splitlines(true)|join("/")')

    def string_filter(self, d: int) -> str:
        return self.pick('trim', 'upper', 'lower', 'title', 'capitalize', f'replace({self.string(0)}, {self.string(0)})', 'string', 'list|join("-")',
                         'reverse', 'indent', 'indent(2)', 'indent(2, true)', "indent('> ', first=true, blank=true)", f'trim({self.string(0)})', 'first',
                         'last', 'default("d", true)', 'safe')

    def integer(self, depth: int) -> str:
        literal = str(self.random.randint(0, 9))
        if depth <= 0:
            return self.pick(literal, 'n', '-' + literal, 'numbers[0]', *(['loop.index', 'loop.index0', 'loop.length', 'loop.revindex'] * (self.loops > 0)))
        d = depth - 1
        return self.pick(
            lambda: literal, lambda: 'n',
            lambda: f'{self.integer(d)} {self.pick("+", "-", "*")} {self.integer(d)}',
            lambda: f'({self.integer(d)}) {self.pick("//", "%")} {self.integer(0)}',
            lambda: f'({self.any(d)})|length',
            lambda: f'{self.list(d)}|count',
            lambda: f'({self.string(d)})|int',
            lambda: f'({self.any(d)})|int({literal})',
            lambda: f'-{self.integer(0)}|abs',
            lambda: f'(-{self.integer(d)})|abs',
            lambda: f'numbers|{self.pick("sum", "min", "max", "first", "last")}',
            lambda: f'({self.string(d)}).{self.pick("find", "count", "rfind")}({self.string(0)})',
            lambda: f'{self.integer(0)} ** {self.random.randint(0, 3)}',
            lambda: f'({self.number(d)})|round|int',
        )()

    def number(self, depth: int) -> str:
        d = depth - 1
        if depth <= 0:
            return self.pick('f', '0.1', '1e3', '2.50', '1.5e-7', self.integer(0))
        return self.pick(
            lambda: f'{self.number(d)} {self.pick("+", "-", "*", "/")} {self.number(d)}',
            lambda: f'({self.number(d)})|round({self.pick("", "1", "2", "0", "1, method=" + repr("floor"))})',
            lambda: f'({self.string(d)})|float', lambda: f'({self.number(d)}) {self.pick("//", "%")} {self.number(0)}', lambda: self.integer(d))()

    def boolean(self, depth: int) -> str:
        if depth <= 0:
            return self.pick('flag', 'off', 'true', 'false', 'tools', 'missing', *(['loop.first', 'loop.last'] * (self.loops > 0)))
        d = depth - 1
        return self.pick(
            lambda: f'{self.boolean(d)} {self.pick("and", "or")} {self.boolean(d)}',
            lambda: f'not {self.boolean(d)}',
            lambda: f'({self.boolean(d)})',
            lambda: f'{self.any(d)} {self.pick("==", "!=")} {self.any(d)}',
            lambda: f'{self.integer(d)} {self.pick("<", ">", "<=", ">=", "==")} {self.integer(d)}',
            lambda: f'{self.integer(0)} < {self.integer(0)} <= {self.integer(0)}',
            lambda: f'{self.string(d)} {self.pick("in", "not in")} {self.pick(self.string(d), self.list(d), self.dict(d))}',
            lambda: f'({self.any(d)}) is {self.pick("", "not ")}{self.test()}',
            lambda: f"({self.string(d)}).{self.pick('startswith', 'endswith')}({self.string(0)})",
            lambda: f'({self.string(d)}).{self.pick("isdigit", "isalpha", "isspace", "isupper", "islower", "isalnum")}()',
            lambda: f'{self.integer(d)} is {self.pick("even", "odd", "divisibleby 2", "divisibleby(3)", "gt 2", "eq(5)", "in [1, 5]")}',
        )()

    def test(self) -> str:
        return self.pick('defined', 'undefined', 'none', 'string', 'number', 'integer', 'float', 'boolean', 'mapping', 'iterable', 'sequence',
                         'true', 'false', 'callable', 'sameas true', 'sameas(none)', "equalto 'a'", "eq('user')", "ne 'b'")

    def slice(self, d: int) -> str:
        def part() -> str:
            return self.pick('', self.integer(0), '-1', '1', '2')
        return self.pick(f'{part()}:{part()}', f'{part()}:{part()}:{self.pick("", "2", "-1", "1")}', '::-1')

    def list(self, depth: int) -> str:
        if depth <= 0:
            return self.pick('words', 'numbers', 'messages', '[]', "['a', 1]", 'nested.x.y', '("t", 2)')
        d = depth - 1
        return self.pick(
            lambda: 'messages', lambda: 'words',
            lambda: f'[{self.any(d)}, {self.any(d)}]',
            lambda: f'({self.any(d)}, {self.any(d)})',
            lambda: f'{self.list(0)}[{self.slice(d)}]',
            lambda: f'({self.list(0)} + {self.list(0)})',
            lambda: f'({self.string(d)}).split({self.string(0)})',
            lambda: f'({self.string(d)})|list',
            lambda: f'range({self.integer(0)}, {self.integer(0)}{self.pick("", ", 2", ", -1")})',
            lambda: f'range({self.integer(0)})|list',
            lambda: f'messages|map(attribute={self.pick(repr("role"), repr("content"), repr("n"))}{self.pick("", ", default=7")})|list',
            lambda: f'words|map({self.pick(repr("upper"), repr("length"), repr("trim"), repr("replace") + ", " + repr("a") + ", " + repr("b"))})|list',
            lambda: f'messages|{self.pick("selectattr", "rejectattr")}({self.pick(repr("role"), repr("n"), repr("content"))}'
                    f'{self.pick("", ", " + repr("equalto") + ", " + repr("user"), ", " + repr("defined"), ", " + repr("in") + ", words", ", " + repr("string"))})|list',
            lambda: f'({self.list(d)})|{self.pick("select", "reject")}({self.pick("", repr("string"), repr("defined"), repr("odd"), repr("number"))})|list',
            lambda: f'({self.list(d)})|reverse|list',
            lambda: f'words|{self.pick("sort", "unique|list", "sort(reverse=true)", "sort(case_sensitive=true)", "unique(true)|list")}',
            lambda: f'numbers|sort{self.pick("", "(true)")}',
            lambda: f"messages|sort(attribute='role')",
            lambda: f'{self.dict(d)}|items|list', lambda: f'{self.dict(d)}|dictsort', lambda: f'{self.dict(d)}|list',
            lambda: f'{self.dict(d)}.{self.pick("items", "keys", "values")}()|list',
        )()

    def dict(self, depth: int) -> str:
        choices = ['messages[0]', 'messages[1]', 'nested', 'nested.x', "{'a': 1}", '{}', 'messages[-1]'] + self.dicts
        if depth <= 0:
            return self.pick(*choices)
        d = depth - 1
        return self.pick(lambda: self.pick(*choices), lambda: '{' + f'{self.string(0)}: {self.any(d)}, {self.string(0)}: {self.any(0)}' + '}',
                         lambda: f'dict(a={self.any(d)}, b={self.any(d)})', lambda: 'messages[2].tool_calls[0].arguments')()

    def json(self, depth: int) -> str:
        return self.pick(lambda: self.dict(depth), lambda: self.list(depth), lambda: self.string(depth), lambda: self.number(depth), lambda: 'none')()

    def any(self, depth: int) -> str:
        if self.scope and self.chance(0.3):
            return self.pick(*self.scope)
        if self.chance(0.05):
            return self.pick('missing', 'messages[9]', 'nested.nope', "nested['items']", "messages[2]['tool_calls']", 'nested.x.y.0', 'none', 'ns.count', 'nested["x"]["y"][1]')
        kind = self.pick(self.string, self.string, self.integer, self.boolean, self.list, self.dict, self.number)
        text = kind(depth)
        return f'({text})' if self.chance(0.5) else text

    def tag(self, inside: str) -> str:
        return '{%' + self.pick('', '', '', '-', '+') + ' ' + inside + ' ' + self.pick('', '', '', '-', '+') + '%}'

    def output(self, expression: str) -> str:
        return '{{' + self.pick('', '', '', '-') + ' ' + expression + ' ' + self.pick('', '', '', '-') + '}}'

    def block(self, depth: int, generation: bool = True) -> str:
        return ''.join(self.statement(depth, generation) for _ in range(self.random.randint(1, 3)))

    def statement(self, depth: int, generation: bool) -> str:
        space = self.pick(*SPACES)
        if depth <= 0 or self.chance(0.4):
            return space + self.output(self.any(self.random.randint(0, 3)))
        d = depth - 1
        return space + self.pick(self.if_, self.for_, self.set_, self.set_block, self.comment, self.macro_call, self.ns_set,
                                 self.generation if generation else self.if_)(d, generation)

    def if_(self, d: int, generation: bool) -> str:
        text = self.tag('if ' + self.boolean(2)) + self.block(d, generation)
        while self.chance(0.3):
            text += self.tag('elif ' + self.boolean(2)) + self.block(d, generation)
        if self.chance(0.4):
            text += self.tag('else') + self.block(d, generation)
        return text + self.tag('endif')

    def for_(self, d: int, generation: bool) -> str:
        over = self.random.randrange(4)
        names = [['message'], ['w'], ['key', 'value'], ['i']][over]
        iterable = [self.pick('messages', 'messages[1:]', 'messages|reverse', "messages|selectattr('content')"), self.list(1),
                    self.pick('nested.items()', 'messages[1]|items', 'nested|dictsort', 'nested.x.items()'), f'range({self.random.randint(0, 4)})'][over]
        condition = f' if {self.boolean(1)}' if self.loops == 0 and self.chance(0.15) else ''
        text = self.tag(f'for {", ".join(names)} in {iterable}{condition}')
        scope, dicts = list(self.scope), list(self.dicts)
        self.scope += names
        self.dicts += ['message'] if over == 0 else []
        self.loops += 1
        text += self.block(d, generation)
        if self.chance(0.3):
            text += self.tag('if ' + self.boolean(1)) + self.tag(self.pick('break', 'continue')) + self.tag('endif') + self.block(0, generation)
        if self.chance(0.2):
            text += self.output(self.pick('loop.previtem', 'loop.nextitem', 'loop.revindex0', 'loop.depth'))
        self.loops -= 1
        self.scope, self.dicts = scope, dicts
        if self.chance(0.2):
            text += self.tag('else') + self.block(0, generation)
        return text + self.tag('endfor')

    def set_(self, d: int, generation: bool) -> str:
        name = self.pick('v', 'w2', 'n', 'text')
        if self.chance(0.15):
            return self.tag(f'set v, w2 = {self.any(1)}, {self.any(1)}') + self.output('v') + self.output('w2')
        return self.tag(f'set {name} = {self.string(2) if name == "text" else self.integer(2) if name == "n" else self.any(2)}') + self.output(name)

    def set_block(self, d: int, generation: bool) -> str:
        loops, self.loops = self.loops, self.loops
        text = self.tag('set v' + self.pick('', ' | trim', " | upper", ' | replace("a", "b") | length')) + self.block(d, False) + self.tag('endset') + self.output('v')
        self.loops = loops
        return text

    def ns_set(self, d: int, generation: bool) -> str:
        return self.tag(f'set ns.count = ns.count + {self.integer(1)}') + self.output('ns.count')

    def comment(self, d: int, generation: bool) -> str:
        return '{#' + self.pick('', '-') + self.pick(' a comment ', '', "{{ 'x }} \n") + self.pick('', '-', '+') + '#}'

    def macro_call(self, d: int, generation: bool) -> str:
        if not self.macros:
            return self.output(self.any(2))
        return self.output(f'{self.pick(*self.macros)}({self.any(1)}{self.pick("", ", " + self.any(1), ", b=" + self.any(1))})')

    def generation(self, d: int, generation: bool) -> str:
        loops, self.loops = self.loops, 0
        text = self.tag('generation') + self.block(d, False) + self.tag('endgeneration')
        self.loops = loops
        return text

    def macro(self) -> str:
        name = self.pick('m1', 'm2')
        scope, self.scope = self.scope, ['a', 'b']
        text = self.tag(f'macro {name}(a, b={self.any(0)})') + self.block(1, False) + self.tag('endmacro')
        self.scope = scope
        self.macros.append(name)
        return text

    def template(self) -> str:
        # Jinja2 forgets a context's variable that an inner block reads before an outer one sets it: README.md says so.
        text = '{% set n = n %}{% set text = text %}' + ('{% set ns = namespace(count=0, found=false) %}' if self.chance(0.9) else '')
        if self.chance(0.3):
            text += self.macro()
        text += self.block(3) + self.pick(*SPACES)
        if self.chance(0.03):  # something broken
            cut = self.random.randrange(len(text))
            text = text[:cut] + self.pick('', '%}', '{{', '(', '"', '|', ' if ') + text[cut + self.random.randint(0, 3):]
        return text


def case(seed: int) -> Dict[str, Any]:
    return {'template': Maker(seed).template(), 'variables': VARIABLES}


if __name__ == '__main__':
    import sys
    print(json.dumps(case(int(sys.argv[1])), ensure_ascii=False, indent=1))
