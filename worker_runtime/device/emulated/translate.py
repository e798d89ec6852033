#!/usr/bin/python3
"""Turns one .cu file into C++ for the emulated GPU (README.md).

usage: translate.py SOURCE OUTPUT
The headers named *.cuh that SOURCE includes are put in its place, so that they are turned as well. Lines keep their numbers: a
compiler's or sanitizer's message names the line of the .cu file. It turns:

  __shared__ float sums[32];            one variable a block, with a margin, poisoned
  extern __shared__ float shared[];     the launch's dynamic shared memory
  kernel<<<blocks, threads, ...>>>(...) a call of Chevron(kernel, blocks, threads, ...)
  __launch_bounds__(N)                  a check at the kernel's first line
  asm("ex2.approx.ftz.f32 ...")         Ex2ApproxFtz
"""

import os
import re
import sys
from typing import Callable, List, Match, Optional, Set

NAMESPACE = '::convene::emulated::'
PTX = {'ex2.approx.ftz.f32 %0, %1;': 'Ex2ApproxFtz'}


class Untranslatable(Exception):
    pass


def read_with_headers(path: str, seen: Set[str]) -> str:
    """The file's text, the text of each .cuh header in the place of its first #include."""
    seen.add(path)
    lines = [f'#line 1 "{path}"\n']
    with open(path, encoding='utf-8') as file:
        for number, line in enumerate(file, start=1):
            include = re.match(r'#include "([^"]+\.cuh)"', line)
            if include is None:
                lines.append('\n' if line.strip() == '#pragma once' else line)
            elif include.group(1) in seen:
                lines.append('\n')
            else:
                lines += [read_with_headers(include.group(1), seen), f'#line {number + 1} "{path}"\n']
    return ''.join(lines)


def closing(text: str, opening: int) -> int:
    """The index of the parenthesis that closes the one at `opening`."""
    depth = 0
    for index in range(opening, len(text)):
        depth += {'(': 1, ')': -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise Untranslatable('a parenthesis is never closed')


def lines_of(text: str) -> str:
    """As many line ends as `text` has, so that later text keeps its line."""
    return '\n' * text.count('\n')


def turn_launch_bounds(text: str) -> str:
    while True:
        found = re.search(r'\b__launch_bounds__\s*\(', text)
        if found is None:
            return text
        end = closing(text, found.end() - 1)
        bound = text[found.end():end]
        body = text.index('{', closing(text, text.index('(', end)))
        check = f'{{ {NAMESPACE}CheckLaunchBounds({" ".join(bound.split())});'
        text = text[:found.start()] + lines_of(text[found.start():end]) + text[end + 1:body] + check + text[body + 1:]


def turn_launches(text: str) -> str:
    pattern = re.compile(r'([A-Za-z_][\w:]*(?:<[\w:, ]+>)?)\s*<<<(.*?)>>>\s*\(', re.DOTALL)
    return pattern.sub(lambda m: f'{NAMESPACE}Chevron({m.group(1)}, {m.group(2)})(', text)


def turn_shared(text: str) -> str:
    dynamic = re.compile(r'\bextern\s+__shared__\s+(?:alignas\(\w+\)\s+)?([\w:]+)\s+(\w+)\s*\[\s*\]\s*;')
    text = dynamic.sub(rf'\1* const \2 = {NAMESPACE}DynamicShared<\1>();', text)

    def variable(found: Match[str]) -> str:
        declared, name, bounds = found.groups()
        # The lambda's variable is another one in every instantiation of a template.
        return (f'auto& {name} = {NAMESPACE}SharedVariable<{declared}{bounds or ""}>('
                '[] { static char key; return &key; }());')

    return re.sub(r'\b__shared__\s+((?:[\w:]+(?:<[^;]*?>)?\s+)*?[\w:]+(?:<[^;]*?>)?)\s+(\w+)((?:\s*\[[^\]]*\])*)\s*;', variable, text)


def turn_asm(text: str) -> str:
    def instruction(found: Match[str]) -> str:
        name = PTX.get(found.group(1))
        if name is None:
            raise Untranslatable(f'no emulation of the PTX "{found.group(1)}": write it in include/cuda_runtime.h and name it in PTX')
        return f'{found.group(2)} = {NAMESPACE}{name}({found.group(3)});'

    return re.sub(r'\basm\s*(?:volatile\s*)?\("([^"]*)"\s*:\s*"=f"\((\w+)\)\s*:\s*"f"\((.*?)\)\s*\)\s*;', instruction, text, flags=re.DOTALL)


def without_comments(text: str) -> str:
    """Comments as blanks, so that words in them are no code."""
    return re.sub(r'//[^\n]*', '', text)


def refuse_arch(text: str) -> None:
    found = re.search(r'\b__CUDA_ARCH__\b', text)
    if found is not None:
        line = text.count('\n', 0, found.start()) + 1
        raise Untranslatable(f'__CUDA_ARCH__ near line {line} of the output: a branch on it would vanish here, where no compiler defines it, and the '
                             'tests would run other code than the GPU. Choose by the launch, or by a template, instead')


def translate(text: str) -> str:
    turns: List[Callable[[str], str]] = [without_comments, turn_launch_bounds, turn_launches, turn_shared, turn_asm]
    for turn in turns:
        text = turn(text)
    refuse_arch(text)
    left: Optional[Match[str]] = re.search(r'__shared__|<<<|>>>\s*\(|\basm\b|__launch_bounds__', text)
    if left is not None:
        line = text.count('\n', 0, left.start()) + 1
        raise Untranslatable(f'"{left.group(0)}" in a form that is not known here, near line {line} of the output')
    return text


def main() -> int:
    source, output = sys.argv[1:]
    try:
        text = translate(read_with_headers(source, set()))
    except Untranslatable as error:
        print(f'{os.path.basename(__file__)}: {source}: {error}', file=sys.stderr)
        return 1
    with open(output, 'w', encoding='utf-8') as file:
        file.write(text)
    return 0


if __name__ == '__main__':
    sys.exit(main())
