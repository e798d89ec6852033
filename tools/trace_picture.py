#!/usr/bin/python3
"""Draws one step of a trace, the file of convene-train's --trace, as an SVG: the passes of each rank's pipeline, and its communication below them.

usage: tools/trace_picture.py TRACE STEP > PICTURE.svg

A rank has two rows. In the upper one a pass of the pipeline is a bar with F or B and the number of its micro batch; what runs beside it on the
communication's own stream is in the lower one. A bubble of the pipeline is white, or has the color of a wait.
"""

import argparse
import html
import json
import re
import sys
from typing import Dict, List, Tuple

LEFT, WIDTH = 120, 860
PASS, CALLS = 20, 10  # the heights of a rank's two rows
GAP = 8
LEGEND = 34
FORWARD, BACKWARD, WAIT, OTHER, COMMUNICATION = '#4c78a8', '#f2a541', '#e1e5ea', '#9aa3b0', '#54a24b'
LEAST = 0.4  # narrower bars are left out, or the file would be large and show nothing more


class NoSuchStep(Exception):
    """The trace does not have the step."""


def read_threads(events: List[dict]) -> Tuple[Dict[int, str], Dict[Tuple[int, str], List[dict]]]:
    """The names of the ranks, and the slices of each (rank, name of a thread)."""
    named = {(event['name'], event['pid'], event.get('tid')): event['args'].get('name', '') for event in events if event['ph'] == 'M'}
    ranks = {rank: name for (kind, rank, _), name in named.items() if kind == 'process_name'}
    threads: Dict[Tuple[int, str], List[dict]] = {}
    for event in events:
        if event['ph'] == 'X':
            threads.setdefault((event['pid'], named['thread_name', event['pid'], event['tid']]), []).append(event)
    return ranks, threads


def end_of(event: dict) -> float:
    return event['ts'] + event['dur']


def bar(event: dict, left: float, right: float, top: int, height: int, color: str, label: str) -> str:
    words = html.escape(f'{event["name"]}, {event["dur"] / 1000:.2f} ms')
    drawn = f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{height}" fill="{color}"><title>{words}</title></rect>'
    if label and right - left > 6 * len(label) + 4:
        drawn += f'<text x="{(left + right) / 2:.1f}" y="{top + height - 6}" text-anchor="middle" fill="#ffffff">{label}</text>'
    return drawn


def look_of(event: dict) -> Tuple[str, str]:
    """The words on a slice of the upper row, and its color."""
    facts = event['args']
    if 'microbatch' in facts:
        is_forward = event['name'].startswith('forward')
        return f'{"F" if is_forward else "B"}{facts["microbatch"]}', FORWARD if is_forward else BACKWARD
    return '', WAIT if 'axis' in facts else OTHER


def draw(trace: dict, step: int) -> str:
    """The SVG of the step, from its begin on the first rank to its end on the last. Raises NoSuchStep."""
    ranks, threads = read_threads(trace['traceEvents'])
    spans = [event for (_, thread), slices in threads.items() if thread == 'steps' for event in slices if event['name'] == f'step {step}']
    if not spans:
        raise NoSuchStep(f'the trace has no step {step}')
    begin, end = min(event['ts'] for event in spans), max(map(end_of, spans))

    def place(time: float) -> float:
        return LEFT + WIDTH * (min(max(time, begin), end) - begin) / (end - begin)

    lines, top = [], LEGEND
    for rank in sorted(ranks):
        lines.append(f'<text x="{LEFT - 8}" y="{top + PASS - 6}" text-anchor="end">{html.escape(ranks[rank])}</text>')
        lines.append(f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{PASS + CALLS}" fill="none" stroke="#d5d9df"/>')
        until = begin  # where the last bar ended: the calls within a pass are its own
        for event in sorted(threads.get((rank, 'compute'), []), key=lambda event: (event['ts'], -event['dur'])):
            left, right = place(event['ts']), place(end_of(event))
            if right - left < LEAST or end_of(event) <= until:
                continue
            until = end_of(event)
            label, color = look_of(event)
            lines.append(bar(event, left, right, top, PASS, color, label))
        for event in threads.get((rank, 'communication'), []):
            left, right = place(event['ts']), place(end_of(event))
            if right - left >= LEAST:
                lines.append(bar(event, left, right, top + PASS, CALLS, COMMUNICATION, ''))
        top += PASS + CALLS + GAP
    words = [('forward', FORWARD), ('backward', BACKWARD), ('waits for a rank', WAIT), ('other work', OTHER), ('communication', COMMUNICATION)]
    legend = [f'<rect x="{LEFT + 120 * i}" y="10" width="12" height="12" fill="{color}"/><text x="{LEFT + 18 + 120 * i}" y="20">{word}</text>'
              for i, (word, color) in enumerate(words)]
    legend.append(f'<text x="{LEFT + WIDTH}" y="20" text-anchor="end">step {step}: {(end - begin) / 1000:.0f} ms</text>')
    return '\n'.join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 10} {top}" font-family="sans-serif" font-size="11" fill="#333333">',
                      f'<rect width="{LEFT + WIDTH + 10}" height="{top}" fill="#ffffff"/>', *legend, *lines, '</svg>']) + '\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=re.sub(r'\n\nusage:.*', '', __doc__, flags=re.DOTALL))
    parser.add_argument('trace', metavar='TRACE')
    parser.add_argument('step', metavar='STEP', type=int)
    arguments = parser.parse_args()
    try:
        with open(arguments.trace, encoding='utf-8') as file:
            sys.stdout.write(draw(json.load(file), arguments.step))
    except (NoSuchStep, OSError, ValueError) as error:
        print(f'trace_picture.py: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
