#!/usr/bin/python3
"""Draws the loss curve of a run in a terminal, of braille dots, from the file that convene-train wrote with --metrics-file."""

import argparse
import json
import math
import string
import sys
from typing import Iterable, List, Tuple

# With its axis the plot fits the classic 80 columns. A character is two dots wide and four high.
WIDTH = 68
HEIGHT = 16
# Unicode numbers a character's dots 1-2-3-7 down the left side and 4-5-6-8 down the right.
DOT_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def read_metrics(path: str) -> List[dict]:
    """The file's whole lines, in the order written: a kill may have torn the last one."""
    with open(path, encoding='utf-8') as file:
        return [json.loads(line) for line in file if line.endswith('\n')]


def nearest(value: float) -> int:
    return int(value + math.copysign(0.5, value))


class Scale:
    """Puts the values' range on `dots` dots; a range of one value has it in the middle."""

    def __init__(self, values: Iterable[float], dots: int):
        self.dots = dots
        values = list(values)
        self.low, self.high = min(values), max(values)

    def dot(self, value: float) -> int:
        if self.high == self.low:
            return self.dots // 2
        return nearest((value - self.low) / (self.high - self.low) * (self.dots - 1))


def draw_line(dots: List[List[int]], start: Tuple[int, int], end: Tuple[int, int]) -> None:
    across, down = end[0] - start[0], end[1] - start[1]
    length = max(abs(across), abs(down), 1)
    for i in range(length + 1):
        x, y = start[0] + nearest(across * i / length), start[1] + nearest(down * i / length)
        dots[y // 4][x // 2] |= DOT_BITS[y % 4][x % 2]


def row_label(y: Scale, row: int, height: int) -> str:
    """Numbers on the top, the bottom, and about every fourth row between."""
    if row not in (0, height - 1) and not (row % 4 == 0 and row + 3 < height):
        return ' ' * 8
    value = y.high - row / (height - 1) * (y.high - y.low)
    return f'{value:8.3f}' if abs(value) < 1000 else f'{value:8.3g}'


def step_labels(x: Scale, width: int) -> str:
    """First and last step at the ends, the middle one between when there is room."""
    left, middle, right = (f'{step:.0f}' for step in (x.low, (x.low + x.high) / 2, x.high))
    if left == right:
        return left
    text = left.ljust(width - len(right)) + right
    begin = (width - len(middle)) // 2
    end = begin + len(middle)
    return text[:begin] + middle + text[end:] if text[begin - 2:end + 2].isspace() else text


def plot(lines: List[dict], width: int = WIDTH, height: int = HEIGHT) -> str:
    """The curve of the metrics' lines: a loss that is no number is a gap, a new epoch a restart. `height` is at least 2."""
    training = [line for line in lines if 'loss' in line]
    losses = [(line['step'], line['loss']) for line in training]
    validations = [line for line in lines if line.get('validation_loss') is not None]
    # The held-out part of the training data has no name, other sets have one.
    names = sorted({line['validation_set'] for line in validations if 'validation_set' in line})
    mark_of = {None: 'o', **{name: string.ascii_lowercase.replace('o', '')[i % 25] for i, name in enumerate(names)}}
    validation = [(line['step'], line['validation_loss'], mark_of[line.get('validation_set')]) for line in validations]
    restarts = [line['step'] for before, line in zip(training, training[1:]) if line['epoch'] != before['epoch']]
    known = [point for point in losses if point[1] is not None] + [point[:2] for point in validation]
    if not known:
        return 'no losses to plot\n'
    x, y = Scale((step for step, _ in known), 2 * width), Scale((loss for _, loss in known), 4 * height)
    dots = [[0] * width for _ in range(height)]
    marks = [[' '] * width for _ in range(height)]
    for step in restarts:
        if x.low <= step <= x.high:
            for row in marks:
                row[x.dot(step) // 2] = '┊'
    previous = None
    for step, loss in losses:
        place = None if loss is None else (x.dot(step), y.dots - 1 - y.dot(loss))
        if place is not None:
            draw_line(dots, previous or place, place)
        previous = place
    for step, loss, mark in validation:
        marks[(y.dots - 1 - y.dot(loss)) // 4][x.dot(step) // 2] = mark
    # A validation stands over the curve, a restart's line under it.
    rows = [''.join(chr(0x2800 + dot) if dot and mark in ' ┊' else mark for dot, mark in zip(*row)) for row in zip(dots, marks)]
    text = [f'{row_label(y, row, height)} │{characters}' for row, characters in enumerate(rows)]
    legend = 'step    ⠤ training loss' + '   o validation loss' * any('validation_set' not in line for line in validations)
    legend += ''.join(f'   {mark_of[name]} {name}' for name in names) + '   ┊ restart' * bool(restarts)
    text += [' ' * 9 + '└' + '─' * width, ' ' * 10 + step_labels(x, width), ' ' * 10 + legend]
    return ''.join(line.rstrip() + '\n' for line in text)


def show(path: str) -> None:
    """Prints the curve, whatever the locale says of braille."""
    sys.stdout.flush()
    sys.stdout.buffer.write(plot(read_metrics(path)).encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('metrics_file')
    try:
        show(parser.parse_args().metrics_file)
    except OSError as error:
        print(f'loss_plot: {error}', file=sys.stderr)
        return 1
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        print(f'loss_plot: {sys.argv[-1]} is not a metrics file: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
