"""Templates written by hand for what random ones reach seldom, and conversations for real templates."""

import json
import os
from typing import Any, Dict, List

import random_templates


def all_cases() -> List[Dict[str, Any]]:
    """The templates of templates.jsonl, each of whose lines is [name, template]."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'templates.jsonl'), encoding='utf-8') as file:
        templates = [json.loads(line) for line in file]
    return [{'name': name, 'template': template, 'variables': random_templates.VARIABLES} for name, template in templates]


def conversations() -> Dict[str, Dict[str, Any]]:
    """Variables for real templates, by what is in the conversation."""
    system = {'role': 'system', 'content': 'You are terse. '}
    user = {'role': 'user', 'content': ' What is 2+2?\n'}
    answer = {'role': 'assistant', 'content': 'It is 4.'}
    again = {'role': 'user', 'content': 'And \u00bd + \u00bd? "quoted" <b>'}
    last = {'role': 'assistant', 'content': ' One \U0001f999.\n\nReally. '}
    thinking = {'role': 'assistant', 'content': '<think>\nSum it.\n</think>\n\nOne.'}
    reasoned = {'role': 'assistant', 'content': 'One.', 'reasoning_content': 'Sum it.'}
    function = {'name': 'add', 'arguments': {'a': 1, 'b': [2.5, 'x']}}
    call = {'role': 'assistant', 'content': '', 'tool_calls': [{'id': 'abcdefghi', 'type': 'function', 'function': function}]}
    result = {'role': 'tool', 'name': 'add', 'tool_call_id': 'abcdefghi', 'content': '{"sum": 3.5}'}
    properties = {'a': {'type': 'number', 'description': 'one'}, 'b': {'type': 'array', 'items': {'type': 'string', 'enum': ['x', 'y']}}}
    tools = [{'type': 'function', 'function': {'name': 'add', 'description': 'Adds "numbers".', 'parameters': {
        'type': 'object', 'properties': properties, 'required': ['a']}, 'return': {'type': 'number'}}}]
    parts = {'role': 'user', 'content': [{'type': 'text', 'text': 'In parts.'}, {'type': 'text', 'text': ' Two.'}]}
    base = {'bos_token': '<BOS>', 'eos_token': '<EOS>', 'pad_token': '<PAD>', 'unk_token': '<UNK>', 'tools': None, 'documents': None,
            'add_generation_prompt': False}

    def chat(*messages: Dict[str, Any], **more: Any) -> Dict[str, Any]:
        return {**base, 'messages': list(messages), **more}

    return {
        'one turn': chat(user, answer), 'with system': chat(system, user, answer), 'two turns': chat(system, user, answer, again, last),
        'prompt': chat(system, user, add_generation_prompt=True),
        'thinking': chat(user, thinking, again, reasoned), 'last thinks': chat(user, thinking),
        'not thinking': chat(user, add_generation_prompt=True, enable_thinking=False), 'tools': chat(system, user, call, result, answer, tools=tools),
        'tools without system': chat(user, call, result, result, answer, again, last, tools=tools),
        'tools prompt': chat(user, tools=tools, add_generation_prompt=True),
        'call at the end': chat(user, call, tools=tools), 'parts': chat(parts, answer), 'two users': chat(user, again, answer), 'system alone': chat(system),
        'nothing': chat(),
        'assistant first': chat(answer, user), 'unknown role': chat({'role': 'critic', 'content': 'x'}),
        'no content': chat(user, {'role': 'assistant', 'content': None}),
    }
