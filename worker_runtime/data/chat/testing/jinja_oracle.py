"""Renders chat templates with Jinja2 itself, set up as transformers does: what our own renderer is compared with."""

import datetime
import json
from typing import Any, Dict, List, Tuple

import jinja2
import jinja2.ext
import jinja2.sandbox

# Two characters of the private use area stand around what {% generation %} prints, until the places are known.
BEGIN, END = '\ue0f0', '\ue0f1'
NOW = datetime.datetime(2026, 3, 7, 14, 5, 9)  # strftime_now's time, in the renderer too


class Generation(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %}, a call block as in transformers."""

    tags = {'generation'}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(('name:endgeneration',), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method('_mark'), [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> str:
        return BEGIN + caller() + END


def _refuse(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def environment() -> jinja2.Environment:
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                        extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made.filters['tojson'] = tojson
    made.globals['raise_exception'] = _refuse
    made.globals['strftime_now'] = NOW.strftime
    return made


def render(template: str, variables: Dict[str, Any]) -> Tuple[str, List[List[int]]]:
    """The text and the byte spans of what was generated. Raises what Jinja2 raises."""
    marked = environment().from_string(template).render(**variables)
    text, spans, begins = '', [], []
    for character in marked:
        if character == BEGIN:
            begins.append(len(text.encode()))
        elif character == END:
            spans.append([begins.pop(), len(text.encode())])
        else:
            text += character
    return text, spans


def outcome(template: str, variables: Dict[str, Any]) -> Dict[str, Any]:
    """{'text', 'spans'}, or {'error'} when Jinja2 refuses the template or fails to render it."""
    try:
        text, spans = render(template, variables)
        text.encode()  # half a surrogate pair fails here
    except Exception as error:  # pylint: disable=broad-except  (templates raise all that Python can raise)
        return {'error': f'{type(error).__name__}: {error}'[:200]}
    return {'text': text, 'spans': spans}
