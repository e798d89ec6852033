#!/usr/bin/python3
"""The speed of `convene data prepare` on JSON lines, beside that of its tokenizer alone, and its peak memory.

usage: tests/bench/data_bench.py [--megabytes 1000] [--threads 1,2] [--tokenizer PATH,...] [--rounds 1] [--text 'PATTERN,...'] [--keep DIR]
Makes JSON lines of this machine's texts (manual pages by default) and prepares them; encode_speed gives the tokenizer's own speed on the same
texts in memory, without files, JSON or order. A row: megabytes of text a second; the share of (threads x the tokenizer's speed on one thread,
measured right before); the tokenizer's part of all processor time, which says more on a machine that does other work meanwhile (the load is
printed); and the peak of resident memory.
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


def encode_speed(binary: str, lines: str, tokenizer: str) -> float:
    """Bytes of text a second of CPU time, on one thread."""
    output = subprocess.run([binary, tokenizer, lines], stdout=subprocess.PIPE, check=True, text=True).stdout
    return float(re.search(r'([0-9.]+) bytes/s', output).group(1))


def prepare(convene: str, lines: str, tokenizer: str, threads: int, output: str) -> Tuple[float, float, float]:
    """Seconds, seconds of processor time, and the peak of resident memory in bytes."""
    begin = time.monotonic()
    process = subprocess.Popen([convene, 'data', 'prepare', '--tokenizer', tokenizer, '--threads', str(threads), '--output', output, lines],
                               stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f'data_bench: prepare ended with {process.returncode}')
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--megabytes', type=float, default=1000)
    parser.add_argument('--threads', default=f'1,{os.cpu_count()}')
    parser.add_argument('--tokenizer', default='byte')
    parser.add_argument('--rounds', type=int, default=1)
    parser.add_argument('--text', default=PATTERNS)
    parser.add_argument('--keep', help='a folder for the files, which then stay')
    arguments = parser.parse_args()
    binaries = launch_bench.build('//launcher:convene', '//worker_runtime/data/prepare:encode_speed_bench')
    convene = os.path.join(binaries, 'launcher/convene')
    encoder = os.path.join(binaries, 'worker_runtime/data/prepare/encode_speed_bench')
    directory = arguments.keep or tempfile.mkdtemp(prefix='data_bench.')
    os.makedirs(directory, exist_ok=True)
    try:
        lines = os.path.join(directory, 'lines.jsonl')
        # In a process of its own: a child's peak of memory begins with its parent's.
        with multiprocessing.Pool(1) as pool:
            text_bytes = pool.apply(write_lines, (lines, arguments.text, arguments.megabytes))
        print(f'{text_bytes / 1e6:.0f} MB of text in {os.path.getsize(lines) / 1e6:.0f} MB of JSON lines; {os.cpu_count()} CPUs, '
              f'load {os.getloadavg()[0]:.1f} before')
        print(f'{"tokenizer":40}  threads   MB/s   tokenizer MB/s a thread   share   of CPU time   peak MB   load')
        for tokenizer in arguments.tokenizer.split(','):
            for threads in map(int, arguments.threads.split(',')):
                alone = encode_speed(encoder, lines, tokenizer)
                runs = [prepare(convene, lines, tokenizer, threads, os.path.join(directory, 'out.bin')) for _ in range(arguments.rounds)]
                rate = text_bytes / statistics.median(seconds for seconds, _, _ in runs)
                cpu_share = text_bytes / alone / statistics.median(cpu for _, cpu, _ in runs)
                peak = max(peak for _, _, peak in runs)
                print(f'{tokenizer[-40:]:40}  {threads:7}  {rate / 1e6:5.1f}  {alone / 1e6:24.1f}  {rate / (threads * alone):6.1%}  '
                      f'{cpu_share:12.1%}  {peak / 1e6:8.0f}  {os.getloadavg()[0]:5.1f}', flush=True)
    finally:
        if arguments.keep is None:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == '__main__':
    main()
