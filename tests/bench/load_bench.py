#!/usr/bin/python3
"""How long `convene-train --init-from` reads a model in the shape of Llama-3.2-1B (bf16, 2.5 GB, random weights), on two ranks into fp32, and how long it
takes to export it; beside plain readers of the same file, and beside transformers.

usage: tests/bench/load_bench.py [--rounds 3] [--folder DIR]        (the folder is made where it is not there; default: a temporary one)
Needs 10 GiB of memory and 6 GB of disk. The rivals run in turns: two processes that each read half of the file into fresh memory, one process that
reads all of it, and from_pretrained() of transformers into fp32. Before each run the file's pages are cached and free memory is touched once. Prints
medians and ratios.
"""

import argparse
import json
import mmap
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Callable, Dict, List, Tuple

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

SHAPE = {'hidden_size': 2048, 'intermediate_size': 8192, 'num_hidden_layers': 16, 'num_attention_heads': 32, 'num_key_value_heads': 8, 'head_dim': 64,
         'vocab_size': 128256}
CONFIG = {**SHAPE, 'architectures': ['LlamaForCausalLM'], 'model_type': 'llama', 'tie_word_embeddings': True, 'rms_norm_eps': 1e-5, 'rope_theta': 500000.0,
          'max_position_embeddings': 4096, 'hidden_act': 'silu', 'attention_bias': False, 'mlp_bias': False, 'torch_dtype': 'bfloat16'}
FILE = 'model.safetensors'


def tensors() -> List[Tuple[str, List[int]]]:
    hidden, ffn, kv = SHAPE['hidden_size'], SHAPE['intermediate_size'], SHAPE['num_key_value_heads'] * SHAPE['head_dim']
    listed = [('model.embed_tokens.weight', [SHAPE['vocab_size'], hidden])]
    for layer in range(SHAPE['num_hidden_layers']):
        for name, shape in (('input_layernorm', [hidden]), ('self_attn.q_proj', [hidden, hidden]), ('self_attn.k_proj', [kv, hidden]),
                            ('self_attn.v_proj', [kv, hidden]), ('self_attn.o_proj', [hidden, hidden]), ('post_attention_layernorm', [hidden]),
                            ('mlp.gate_proj', [ffn, hidden]), ('mlp.up_proj', [ffn, hidden]), ('mlp.down_proj', [hidden, ffn])):
            listed.append((f'model.layers.{layer}.{name}.weight', shape))
    return listed + [('model.norm.weight', [hidden])]


def write_folder(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, 'config.json'), 'w', encoding='ascii') as file:
        json.dump(CONFIG, file)
    header, end = {}, 0
    for name, shape in tensors():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {'dtype': 'BF16', 'shape': shape, 'data_offsets': [begin, end]}
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    block = bytearray(random.Random(1).randbytes(1 << 24))
    block[1::2] = block[1::2].translate(bytes(0x3c | byte & 0x80 for byte in range(256)))  # of the size of 0.01 to 0.03, with either sign
    with open(os.path.join(folder, FILE), 'wb') as file:
        file.write(len(text).to_bytes(8, 'little') + text)
        for begin in range(0, end, len(block)):
            file.write(block[:min(len(block), end - begin)])


def read_part(path: str, part: int, parts: int) -> None:
    """In a process of its own: waits for a line on stdin, and prints how long it read."""
    size = os.path.getsize(path)
    begin, end = size * part // parts, size * (part + 1) // parts
    sys.stdin.readline()
    start = time.perf_counter()
    memory = memoryview(mmap.mmap(-1, end - begin))
    with open(path, 'rb', buffering=0) as file:
        file.seek(begin)
        done = 0
        while done < end - begin:
            done += file.readinto(memory[done:])
    print(time.perf_counter() - start)


def plain_readers(path: str, parts: int) -> float:
    readers = [subprocess.Popen([sys.executable, os.path.abspath(__file__), '--worker', path, str(part), str(parts)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True) for part in range(parts)]
    time.sleep(0.2)  # both wait for the line
    for reader in readers:
        reader.stdin.write('\n')
        reader.stdin.flush()
    return max(float(reader.communicate()[0]) for reader in readers)


def ours(programs: str, folder: str) -> float:
    """Adapters alone learn, so that the ranks hold the weights and hardly anything else."""
    with tempfile.TemporaryDirectory() as scratch:
        text = os.path.join(scratch, 'text.txt')
        with open(text, 'w', encoding='ascii') as file:
            file.write('convene ' * 1000)
        command = [os.path.join(programs, 'launcher/convene'), 'run', '--standalone', '--nproc-per-node', '2',
                   os.path.join(programs, 'worker_runtime/trainer/convene-train'), '--init-from', folder, '--tp-size', '2', '--precision', 'fp32',
                   '--tokenizer', 'byte', '--data', text, '--lora-rank', '1', '--sequence-length', '16', '--global-batch-size', '1', '--micro-batch-size', '1',
                   '--steps', '1']
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    said = re.search(r'begins with the weights of .*, read in ([0-9.]+) s', done.stdout)
    if done.returncode != 0 or not said:
        sys.exit(f'load_bench: convene-train ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}')
    return float(said.group(1))


def transformers(python: str, environment: Dict[str, str], folder: str) -> float:
    program = ('import sys, time, torch\nfrom transformers import AutoModelForCausalLM\nstart = time.perf_counter()\n'
               'model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)\nprint(time.perf_counter() - start)')
    return float(subprocess.run([python, '-c', program, folder], env=environment, check=True, capture_output=True, text=True).stdout.split()[-1])


def export(programs: str, folder: str) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        start = time.perf_counter()
        subprocess.run([os.path.join(programs, 'launcher/convene'), 'checkpoint', 'export', folder, '--dtype', 'bfloat16', '--output',
                        os.path.join(scratch, 'out')], check=True, capture_output=True)
        return time.perf_counter() - start


def touch_memory() -> None:
    """A virtual machine gives free memory back to its host, and fetches a page anew at its first touch, at a tenth of the speed: each rival finds
    as much memory as it needs already fetched. In a process of its own, so that the memory is free again."""
    subprocess.run([sys.executable, '-c', f'bytearray(b"x") * {10 << 30}'], check=True)


def warm(path: str) -> None:
    with open(path, 'rb') as file:
        while file.read(1 << 24):
            pass


def measure(folder: str, rounds: int) -> None:
    import launch_bench
    from tests.support import torch_environment
    programs = launch_bench.build('//launcher:convene', '//worker_runtime/trainer:convene-train')
    path = os.path.join(folder, FILE)
    rivals: Dict[str, Callable[[], float]] = {'convene-train, 2 ranks': lambda: ours(programs, folder), 'a reader of each half': lambda: plain_readers(path, 2),
                                              'one reader': lambda: plain_readers(path, 1), 'export': lambda: export(programs, folder)}
    try:
        print(f'PyTorch {torch_environment.install_torch()}, transformers {torch_environment.install_transformers()}')
        rivals['transformers'] = lambda: transformers(torch_environment.PYTHON, torch_environment.torch_environment(), folder)
    except torch_environment.NoTorch as error:
        print(f'without transformers: {error}')
    seconds: Dict[str, List[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, run in rivals.items():
            warm(path)
            touch_memory()
            seconds[name].append(run())
    first = statistics.median(seconds['convene-train, 2 ranks'])
    for name, values in seconds.items():
        median = statistics.median(values)
        speed = os.path.getsize(path) / median / 1e6
        print(f'{name:24} {median:6.2f} s ({min(values):.2f} to {max(values):.2f}), {speed:6.0f} MB/s; ours: {first / median:.2f} of it')


def main() -> int:
    if sys.argv[1:2] == ['--worker']:
        read_part(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--folder')
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or os.path.join(scratch, 'model')
        if not os.path.exists(os.path.join(folder, FILE)):
            write_folder(folder)
        measure(folder, arguments.rounds)
    return 0


if __name__ == '__main__':
    sys.exit(main())
