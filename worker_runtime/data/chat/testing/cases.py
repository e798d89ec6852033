"""Templates written by hand for what random ones reach seldom, and conversations for real templates."""

from typing import Any, Dict, List

import random_templates

# Each is rendered with random_templates.VARIABLES.
TEMPLATES = {
    # White space.
    'lstrip': '  {% if flag %}\n  a\n  {% endif %}\nb',
    'lstrip after text': 'x  {% if flag %}\n  a\n  {% endif %}  \nb',
    'plus keeps': '  {%+ if flag %}\n  a\n  {%+ endif +%}\nb',
    'minus eats': 'x \n {%- if flag -%} \n a \n {%- endif -%} \n b',
    'comment': 'a\n  {# c #}\nb{#- d -#}  \n c {#+ e +#}\n',
    'comment with sign alone': 'a {#-#} b{#--#}\nc',
    'variables keep lines': 'a\n  {{ n }}\n{{ n -}}\n  b\n{{- n }}\n\n',
    'trailing newline': 'a\n',
    'two trailing newlines': 'a\n\n',
    'carriage returns': 'a\r\n{% if flag %}\r\nb\r{% endif %}\r\n',
    'lstrip with other spaces': 'a\n\u00a0\t\u2003{% if flag %}b{% endif %}',
    'block then block': '{% if flag %}\n  {% if flag %}\nx\n  {% endif %}\n{% endif %}\n',
    'comment then block': '{# a #}\n  {% if flag %}x{% endif %}',
    'minus then block': '{{ n -}}\n  {% if flag %}x{% endif %}',
    'brace in string': "{{ '}}' }}{{ '%}' }}{% if '%}' %}x{% endif %}",
    'dict at the end': "{{ {'a': {'b': 1}}.a }}",
    # Scopes.
    'set in a loop is gone': '{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}',
    'set in an if stays': '{% if flag %}{% set x = 1 %}{% endif %}{{ x }}',
    'namespace': '{% set ns = namespace(a=1) %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% set ns.b = i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns["a"] }}{{ ns.c is defined }}',
    'namespace of a dict': "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}",
    'set block scope': '{% set y %}{% set z = 2 %}{{ z }}{% endset %}{{ y }}{{ z is defined }}',
    'set block filter': "{% set y | trim | upper %}  ab {% endset %}[{{ y }}]",
    'generation scope': '{% generation %}{% set z = 2 %}{{ z }}{% endgeneration %}{{ z is defined }}',
    'macro sees the template': "{% set x = 1 %}{% macro m(a, b=x) %}{{ a }}{{ b }}{{ x }}{{ y is defined }}{% endmacro %}{% set x = 2 %}{% for y in [1] %}{{ m(5) }}{{ m(a=6, b=7) }}{% endfor %}",
    'macro calls itself': "{% macro m(a) %}{{ a }}{% if a > 0 %}{{ m(a - 1) }}{% endif %}{% endmacro %}{{ m(5) }}",
    'macro without arguments': "{% macro m(a, b) %}{{ a is defined }}{{ b }}{% endmacro %}{{ m() }}|{{ m(1)|upper }}",
    'macro with too many': '{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}',
    'macro with an unknown name': '{% macro m(a) %}{% endmacro %}{{ m(b=2) }}',
    'loop in an outer loop': '{% for a in [1, 2] %}{% for b in "xy" %}{{ loop.index }}{{ loop.last }}{% endfor %}{{ loop.index }}{% endfor %}',
    'loop condition': "{% for m in messages if m.role != 'tool' %}{{ loop.index }}/{{ loop.length }}{{ m.role }}{{ loop.previtem.role if loop.previtem is defined }} {% endfor %}",
    'loop else': '{% for a in [] %}x{% else %}none{% endfor %}{% for a in [1] %}x{% else %}none{% endfor %}',
    'loop else with a condition': '{% for a in [1, 2] if a > 5 %}x{% else %}none{% endfor %}',
    'loop over a dict': "{% for k in nested %}{{ k }},{% endfor %}{% for k, v in nested.x.items() %}{{ k }}={{ v }}{% endfor %}",
    'loop over undefined': '{% for k in missing %}x{% endfor %}',
    'loop over none': '{% for k in none %}x{% endfor %}',
    'loop unpacks strings': "{% for a, b in ['xy', 'zw'] %}{{ b }}{{ a }}{% endfor %}",
    'loop unpacks too few': '{% for a, b in [[1]] %}x{% endfor %}',
    'break and continue': '{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}',
    'break in the inner loop': '{% for i in [1, 2] %}{% for j in [1, 2, 3] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }}{% endfor %}{% endfor %}',
    'else after a break': '{% for i in [1, 2] %}{% break %}{% else %}none{% endfor %}{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{% else %}none{% endfor %}{% for i in [1] %}{% continue %}{% else %}none{% endfor %}',
    'break outside': '{% break %}',
    'break in generation': '{% for i in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}',
    'loop in generation': '{% for i in [1, 2] %}{% generation %}{{ loop.index }}{% for j in "ab" %}{{ loop.first }}{% endfor %}{% endgeneration %}.{% endfor %}',
    'empty generation': 'a{% generation %}{% endgeneration %}b{% generation %}\u00e9{% endgeneration %}',
    'assign to loop': '{% for i in [1] %}{% set loop = 1 %}{% endfor %}',
    # Values.
    'floats': '{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1.0 }} {{ 100.0 }} {{ -0.5 }} {{ 1e300 * 10 }} {{ 2 / 4 }} {{ 1e22 }} {{ 123456789.125 }} {{ 5e-324 }} {{ -0.0 }}',
    'integers': '{{ 7 // -2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 1_000 }} {{ +3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 3 % -7.5 }} {{ true + 1 }}',
    'repr': "{{ ['a', 'it\\'s', '\"', '\\'\"', 1, 2.0, none, true, missing, {'a': ('x',)}, (), (1, 2), '\\n\\t\\\\\\x07\\x7f', '\u00e9\u200b\u00a0\U0001f999'] }}",
    'json': "{{ ['\\x07\\x08\\x0c\\x7f\\n\\r\\t\"\\\\/<>&\\'', '\u00e9\U0001f999', 1.0, 1e30, none, true, (1,), {}, []]|tojson }}",
    'json ascii': "{{ ['\\x7f\u00e9\U0001f999']|tojson(ensure_ascii=true) }}",
    'json indent': "{{ {'a': [1, {'b': 2}], 'c': [], 'd': {}}|tojson(indent=2) }}",
    'json separators': "{{ {'b': [1, 2], 'a': 1}|tojson(separators=(',', ':'), sort_keys=true) }}",
    'json of undefined': '{{ missing|tojson }}',
    'json of a generator': "{{ words|map('upper')|tojson }}",
    'precedence': "{{ 1 + 2 ~ 3 + 4 }}|{{ -1|abs }}|{{ 'a' ~ 1 + 2 }}|{{ 2 * 3 ~ 4 }}|{{ not 1 == 2 }}|{{ 1 if 0 else 2 if 0 else 3 }}|{{ 'a' 'b' }}",
    'compare chain': '{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 1 in [1] == true }}',
    'tests take arguments': "{{ 'a' is in 'abc' }}{{ 4 is divisibleby 2 }}{{ n is defined and n is eq 5 }}{{ 3 is odd }}",
    'undefined': "[{{ missing }}{{ missing|length }}{{ missing == other }}{{ missing in [] }}{{ missing|default('d') }}{{ missing is none }}{{ missing ~ 'x' }}{{ not missing }}]",
    'attribute of undefined': '{{ missing.a }}', 'item of undefined': "{{ missing['a'] }}", 'call of undefined': '{{ missing() }}',
    'sum with undefined': '{{ 1 + missing }}', 'undefined attribute': "[{{ messages[0].nope }}{{ n.nope }}{{ text.nope }}{{ none.nope }}]",
    'undefined of undefined': '{{ messages[0].nope.nope }}',
    'methods before keys': "{{ nested.items is callable }}{{ nested['items'] }}{{ nested.get('x').y }}{{ nested.get('q') }}{{ nested.get('q', 5) }}{{ nested['keys'] is callable }}",
    'numbers as attributes': '{{ words.0 }}{{ nested.x.y.1.k }}',
    'strings by characters': "{{ '\u4f60\u597d!'|length }}{{ '\u4f60\u597d!'[1] }}{{ '\u4f60\u597d!'[-1:] }}{{ '\u4f60\u597d!'[::-1] }}{{ '\u4f60\u597d!'|list }}{{ '\u4f60\u597d'.find('\u597d') }}{{ '\u4f60'[5] }}",
    'slices': "{{ words[1:] }}{{ words[:-1] }}{{ words[::2] }}{{ words[::-1] }}{{ words[5:1:-2] }}{{ words[-100:100] }}{{ (1, 2, 3)[1:] }}{{ numbers[::0] }}",
    'slice of a number': '{{ n[1:] }}', 'slice of none': '{{ tools[1:] }}',
    'split': "{{ ' a  b '.split() }}{{ ' a  b '.split(' ') }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ ''.split() }}{{ ''.split(',') }}{{ ' a b c '.split(none, 1) }}{{ ' a b c '.rsplit(none, 1) }}",
    'split by nothing': "{{ 'a'.split('') }}",
    'strip': "[{{ '\\u3000 a\\u00a0'.strip() }}][{{ 'xxaxx'.strip('x') }}][{{ 'abcab'.lstrip('ab') }}][{{ 'abcab'.rstrip('ba') }}][{{ ' a '|trim }}][{{ 'xax'|trim('x') }}]",
    'replace': "{{ 'aaa'.replace('a', 'b', 2) }}{{ 'abc'.replace('', '-') }}{{ 'abc'.replace('', '-', 2) }}{{ 'aXb'|replace('X', '') }}{{ 'aaa'|replace('a', 'b', 1) }}{{ 5|replace(5, 6) }}",
    'lines': "{{ 'a\\nb\\r\\nc\\x0bd\\u2028e\\n'.splitlines() }}{{ 'a\\nb'.splitlines(true) }}",
    'case': "{{ 'hello wORLD-foo (bar) it\\'s'|title }}|{{ 'hello wORLD-foo it\\'s'.title() }}|{{ 'hELLO'|capitalize }}|{{ 'aB'.upper() }}{{ 'aB'.lower() }}{{ none|upper }}",
    'case beyond ascii': "{{ '\u00e9'|upper }}",
    'startswith': "{{ 'abc'.startswith('ab') }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('') }}",
    'partition': "{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}{{ 'a'.partition('=') }}{{ 'a'.rpartition('=') }}",
    'join': "{{ words|join(', ') }}{{ [1, none, 'x']|join }}{{ messages|join('/', attribute='role') }}{{ ', '.join(words) }}{{ 'abc'|join('.') }}",
    'join of numbers': "{{ ','.join([1]) }}",
    'map': "{{ messages|map(attribute='role')|list }}{{ words|map('upper')|join }}{{ messages|map(attribute='n', default=0)|list }}{{ none|map('upper')|list }}",
    'map by a path': "{{ [{'a': {'b': [5]}}]|map(attribute='a.b.0')|list }}",
    'selectattr': "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ messages|rejectattr('content')|map(attribute='role')|list }}{{ messages|selectattr('n', 'defined')|first }}",
    'a generator is true': "{% if messages|selectattr('role', 'equalto', 'nobody') %}yes{% else %}no{% endif %}",
    'a generator has no length': "{{ messages|selectattr('role')|length }}",
    'a generator is used up': "{% set g = words|map('upper') %}{% for a in g %}{{ a }}{% endfor %}{% for a in g %}{{ a }}{% endfor %}",
    'sort': "{{ words|sort }}{{ words|sort(case_sensitive=true) }}{{ numbers|sort(reverse=true) }}{{ messages|sort(attribute='role')|map(attribute='role')|list }}{{ nested.x|dictsort }}",
    'sort of mixed': "{{ [1, 'a']|sort }}",
    'int and float': "{{ '42'|int }} {{ ' 42.7 '|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ none|int }} {{ 3.9|int }} {{ -3.9|int }} {{ true|int }} {{ '1e3'|int }} {{ 'inf'|int }} {{ '2.5'|float }} {{ 'x'|float }} {{ 'nan'|float }}",
    'round': "{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 42.55|round(1, 'floor') }} {{ 42.51|round(1, 'ceil') }} {{ 5|round }} {{ 5|round(2) }} {{ 1.005|round(2) }}",
    'default': "{{ none|default('d') }}{{ none|default('d', true) }}{{ ''|d('d', boolean=true) }}{{ missing|d }}{{ false|default('x') }}",
    'first and last': "{{ words|first }}{{ words|last }}[{{ []|first }}][{{ ''|last }}]{{ 'abc'|first }}{{ nested|first }}",
    'equality': "{{ 1 == 1.0 }}{{ true == 1 }}{{ 'a' == 'a' }}{{ [1, [2]] == [1, [2]] }}{{ (1,) == [1] }}{{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}{{ none == false }}{{ 9007199254740993 == 9007199254740992.0 }}",
    'in': "{{ 'a' in 'abc' }}{{ '' in '' }}{{ 'role' in messages[0] }}{{ 1 in [true] }}{{ none in [none] }}{{ 2 in range(3) }}",
    'in of a number in a string': "{{ 1 in 'abc' }}",
    'order of a string and a number': "{{ 'a' < 1 }}",
    'a list changes': "{{ words.append('x') }}", 'a dict changes': "{{ nested.update({'a': 1}) }}",
    'dict literals': "{{ {'a': 1, 'b': {'c': 2}} }}{{ {'a': 1, 'a': 2} }}{{ dict(a=1, b='x') }}",
    'tuples': '{{ 1, 2 }}{{ (1,) }}{{ () }}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}',
    'escapes': "{{ 'a\\tb\\x41\\u00e9\\U0001f999\\q\\'\\\"\\\\n' }}{{ \"it's\" }}",
    'range': '{{ range(3)|list }}{{ range(1, 7, 3)|list }}{{ range(3, 0, -1)|list }}{{ range(5)[1:3]|list }}{{ range(2)|length }}{{ range(5)[-1] }}',
    'raise': "{{ raise_exception('no ' ~ n) }}", 'date': "{{ strftime_now('%d %B %Y, %H:%M') }}",
    'safe': "{{ '<b>' | safe }}{{ 'a<' ~ ('<b>'|safe) }}{{ 'a' + ('<b>'|safe) + 'c' }}{{ ('<'|safe) == '<' }}{{ ['<'|safe]|tojson }}{{ ''|safe|length }}",
    'safe escapes': "{{ 'a<' + ('<b>'|safe) }}", 'safe in a list': "{{ ['<'|safe] }}", 'safe trimmed': "{{ ' <'|safe|trim }}", 'multi line': "{{\n  'a'\n  ~ 'b'\n}}", 'colon': '{% if flag: %}x{% endif %}',
    # Wrong, and beyond the subset.
    'no end': '{% if flag %}x', 'no close': '{{ n ', 'no close of a block': '{% if n', 'comment without end': 'a {# b', 'string without end': "{{ 'a }}",
    'wrong end': '{% for a in b %}{% endif %}', 'empty output': '{{ }}', 'unknown block': '{% foo %}', 'two expressions': '{{ a b }}',
    'brackets cross': '{{ (a] }}', 'two tests': '{{ a is defined is none }}', 'named before positional': '{{ range(a=1, 2) }}', 'name twice': '{{ dict(a=1, a=2) }}',
    'assign to a number': '{% set 1 = 2 %}', 'assign to true': '{% set true = 2 %}', 'attribute of no namespace': '{% set n.a = 2 %}',
    'raw': '{% raw %}{{ x }}{% endraw %}', 'with': '{% with a = 1 %}{{ a }}{% endwith %}', 'filter block': '{% filter upper %}a{% endfilter %}',
    'call block': '{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}', 'recursive': '{% for a in [1] recursive %}{{ a }}{% endfor %}',
    'unknown filter': '{{ n|frobnicate }}', 'known filter that we lack': "{{ 'a'|urlencode }}", 'unknown test': '{{ n is frobnicated }}', 'star': '{{ range(*[3])|list }}',
    'format': "{{ 'a %s' % 1 }}", 'format method': "{{ 'a {}'.format(1) }}", 'hexadecimal': '{{ 0x10 }}', 'loop as a value': '{% for a in [1] %}{{ loop.cycle(1, 2) }}{% endfor %}',
    'large integers': '{{ 9223372036854775807 + 1 }}', 'dunder': "{{ ''.__class__ }}", 'print a namespace': '{{ namespace(a=1) }}', 'nested macro': '{% for a in [1] %}{% macro m() %}x{% endmacro %}{{ m() }}{% endfor %}',
}


def all_cases() -> List[Dict[str, Any]]:
    return [{'name': name, 'template': template, 'variables': random_templates.VARIABLES} for name, template in TEMPLATES.items()]


def conversations() -> Dict[str, Dict[str, Any]]:
    """Variables for real templates, by what is in the conversation."""
    system = {'role': 'system', 'content': 'You are terse. '}
    user = {'role': 'user', 'content': ' What is 2+2?\n'}
    answer = {'role': 'assistant', 'content': 'It is 4.'}
    again = {'role': 'user', 'content': 'And \u00bd + \u00bd? "quoted" <b>'}
    last = {'role': 'assistant', 'content': ' One \U0001f999.\n\nReally. '}
    thinking = {'role': 'assistant', 'content': '<think>\nSum it.\n</think>\n\nOne.'}
    reasoned = {'role': 'assistant', 'content': 'One.', 'reasoning_content': 'Sum it.'}
    call = {'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'abcdefghi', 'type': 'function', 'function': {'name': 'add', 'arguments': {'a': 1, 'b': [2.5, 'x']}}}]}
    result = {'role': 'tool', 'name': 'add', 'tool_call_id': 'abcdefghi', 'content': '{"sum": 3.5}'}
    tools = [{'type': 'function', 'function': {'name': 'add', 'description': 'Adds "numbers".', 'parameters': {
        'type': 'object', 'properties': {'a': {'type': 'number', 'description': 'one'}, 'b': {'type': 'array', 'items': {'type': 'string', 'enum': ['x', 'y']}}},
        'required': ['a']}, 'return': {'type': 'number'}}}]
    parts = {'role': 'user', 'content': [{'type': 'text', 'text': 'In parts.'}, {'type': 'text', 'text': ' Two.'}]}
    base = {'bos_token': '<BOS>', 'eos_token': '<EOS>', 'pad_token': '<PAD>', 'unk_token': '<UNK>', 'tools': None, 'documents': None, 'add_generation_prompt': False}

    def chat(*messages: Dict[str, Any], **more: Any) -> Dict[str, Any]:
        return {**base, 'messages': list(messages), **more}

    return {
        'one turn': chat(user, answer), 'with system': chat(system, user, answer), 'two turns': chat(system, user, answer, again, last),
        'prompt': chat(system, user, add_generation_prompt=True), 'thinking': chat(user, thinking, again, reasoned), 'last thinks': chat(user, thinking),
        'not thinking': chat(user, add_generation_prompt=True, enable_thinking=False), 'tools': chat(system, user, call, result, answer, tools=tools),
        'tools without system': chat(user, call, result, result, answer, again, last, tools=tools), 'tools prompt': chat(user, tools=tools, add_generation_prompt=True),
        'call at the end': chat(user, call, tools=tools), 'parts': chat(parts, answer), 'two users': chat(user, again, answer), 'system alone': chat(system),
        'nothing': chat(), 'assistant first': chat(answer, user), 'unknown role': chat({'role': 'critic', 'content': 'x'}),
        'no content': chat(user, {'role': 'assistant', 'content': None}),
    }
