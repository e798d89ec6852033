#!/usr/bin/python3
"""The speed of `convene data prepare` on JSON lines, beside that of its tokenizer alone, and its peak memory.

usage: tests/bench/data_bench.py [--megabytes 1000] [--threads 1,2] [--tokenizer PATH,...] [--rounds 3] [--text 'PATTERN,...'] [--keep DIR]
Makes JSON lines of this machine's texts (manual pages by default). In each round encode_speed_bench encodes the same texts, all threads at
once, from memory: no files, no JSON, no order; then `prepare` runs on as many threads. A row: megabytes of text a second of both, the median of
the rounds' ratios with the lowest and the highest, the peak of prepare's resident memory, and whether the goal is met.
"""

import argparse
import glob
import gzip
import json
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import List, Tuple

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import launch_bench  # noqa: E402  (the line above keeps __pycache__ out of the tree)

GOAL_SHARE = 0.90  # of the tokenizer's own speed on as many threads
GOAL_PEAK = 500e6  # bytes
PATTERNS = '/usr/share/man/man*/*.gz,/usr/share/doc/*/*.gz,/usr/share/perl/5*/pod/*.pod,/usr/share/perl/5*/*.pm'


def read_texts(patterns: str) -> List[str]:
    texts = []
    for pattern in patterns.split(','):
        for path in sorted(glob.glob(pattern)):
            try:
                with (gzip.open(path, 'rb') if path.endswith('.gz') else open(path, 'rb')) as file:
                    texts.append(file.read().decode('utf-8', 'replace'))
            except OSError:
                continue
    texts = [text for text in texts if text]
    if not texts:
        sys.exit(f'data_bench: no text matches {patterns}; give --text')
    return texts


def write_lines(path: str, patterns: str, megabytes: float) -> int:
    """Repeats the texts, each time with other words before them; returns the bytes of text."""
    texts = read_texts(patterns)
    done = 0
    round_number = 0
    with open(path, 'w', encoding='utf-8') as out:
        while done < megabytes * 1e6:
            for text in texts:
                document = f'{round_number} {text}'
                out.write(json.dumps({'id': round_number, 'text': document}, ensure_ascii=False) + '\n')
                done += len(document.encode())
                if done >= megabytes * 1e6:
                    break
            round_number += 1
    return done


def encode_speed(binary: str, lines: str, tokenizer: str, threads: int) -> float:
    """Bytes of text a second, of all threads together."""
    output = subprocess.run([binary, tokenizer, lines, str(threads)], stdout=subprocess.PIPE, check=True, text=True).stdout
    return float(re.search(r'([0-9.]+) bytes/s', output).group(1))


def prepare(convene: str, lines: str, tokenizer: str, threads: int, output: str) -> Tuple[float, float]:
    """Seconds, and the peak of resident memory in bytes."""
    begin = time.monotonic()
    process = subprocess.Popen([convene, 'data', 'prepare', '--tokenizer', tokenizer, '--threads', str(threads), '--output', output, lines],
                               stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f'data_bench: prepare ended with {process.returncode}')
    return time.monotonic() - begin, usage.ru_maxrss * 1024


def measure(convene: str, encoder: str, lines: str, text_bytes: int, tokenizer: str, threads: int, rounds: int) -> None:
    """Prints a row."""
    alone, prepared, peaks = [], [], []
    for _ in range(rounds):
        alone.append(encode_speed(encoder, lines, tokenizer, threads))
        seconds, peak = prepare(convene, lines, tokenizer, threads, os.path.join(os.path.dirname(lines), 'out.bin'))
        prepared.append(text_bytes / seconds)
        peaks.append(peak)
    ratios = [mine / its for mine, its in zip(prepared, alone)]
    good = statistics.median(ratios) >= GOAL_SHARE and max(peaks) <= GOAL_PEAK
    print(f'{tokenizer[-40:]:40}  {threads:7}  {statistics.median(alone) / 1e6:15.1f}  {statistics.median(prepared) / 1e6:13.1f}  '
          f'{statistics.median(ratios):12.1%} ({min(ratios):.1%}, {max(ratios):.1%})  {max(peaks) / 1e6:8.0f}  {os.getloadavg()[0]:5.1f}  '
          f'{"goal met" if good else "GOAL MISSED"}', flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--megabytes', type=float, default=1000)
    parser.add_argument('--threads', default=f'1,{os.cpu_count()}')
    parser.add_argument('--tokenizer', default='byte')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--text', default=PATTERNS)
    parser.add_argument('--keep', help='a folder for the files, which then stay')
    arguments = parser.parse_args()
    directory = arguments.keep or tempfile.mkdtemp(prefix='data_bench.')
    os.makedirs(directory, exist_ok=True)
    binaries = launch_bench.build('//launcher:convene', '//worker_runtime/data/prepare:encode_speed_bench')
    convene = os.path.join(binaries, 'launcher/convene')
    encoder = os.path.join(binaries, 'worker_runtime/data/prepare/encode_speed_bench')
    try:
        lines = os.path.join(directory, 'lines.jsonl')
        # In a process of its own: a child's peak of memory begins with its parent's.
        with multiprocessing.Pool(1) as pool:
            text_bytes = pool.apply(write_lines, (lines, arguments.text, arguments.megabytes))
        print(f'{text_bytes / 1e6:.0f} MB of text in {os.path.getsize(lines) / 1e6:.0f} MB of JSON lines; {os.cpu_count()} CPUs, '
              f'load {os.getloadavg()[0]:.1f} before')
        print(f'{"tokenizer":40}  threads   tokenizer MB/s   prepare MB/s   share of it (from, to)   peak MB   load')
        for tokenizer in arguments.tokenizer.split(','):
            for threads in map(int, arguments.threads.split(',')):
                measure(convene, encoder, lines, text_bytes, tokenizer, threads, arguments.rounds)
    finally:
        if arguments.keep is None:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == '__main__':
    main()
