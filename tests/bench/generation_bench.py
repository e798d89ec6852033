#!/usr/bin/python3
"""Tokens a second of generation on this machine's CPU, beside transformers with its own cache and, for one text, beside llama.cpp.

usage: tests/bench/generation_bench.py [--precisions fp32,bf16] [--batches 1,8] [--prompt 64] [--steps 14] [--rounds 3] [--threads N]
The shape is llama-125m, the weights are random, and the rivals run in turns. llama.cpp is PyPI's xllamacpp, in a virtual environment of its own.
Prints medians over the rounds, of the prompt and of the steps behind it (of each run the median step; llama.cpp tells only their mean), and ratios.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Dict, List, Tuple

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

LLAMA_CPP = os.path.expanduser('~/.cache/convene/llama_cpp')
SHAPE = {'layers': 12, 'hidden': 768, 'ffn': 2048, 'heads': 12, 'vocabulary': 50304}  # llama-125m

Speeds = Tuple[float, float]  # tokens a second of the prompt, and of the steps


def run_transformers(case: Dict) -> Speeds:
    """In the Python that has transformers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.set_num_threads(case['threads'])
    torch.manual_seed(1)
    config = LlamaConfig(num_hidden_layers=SHAPE['layers'], hidden_size=SHAPE['hidden'], intermediate_size=SHAPE['ffn'], tie_word_embeddings=True,
                         num_attention_heads=SHAPE['heads'], vocab_size=SHAPE['vocabulary'])
    model = LlamaForCausalLM(config).eval().to(torch.bfloat16 if case['precision'] == 'bf16' else torch.float32)
    with torch.inference_mode():
        for _ in range(2):  # the first time chooses algorithms
            tokens = torch.full((case['batch'], case['prompt']), 7)
            begin = time.perf_counter()
            answer = model(tokens, use_cache=True, logits_to_keep=1)
            of_prompt = time.perf_counter() - begin
            steps = []
            for _ in range(case['steps']):
                tokens = answer.logits[:, -1:].argmax(-1)
                begin = time.perf_counter()
                answer = model(tokens, past_key_values=answer.past_key_values, use_cache=True)
                steps.append(time.perf_counter() - begin)
    return case['batch'] * case['prompt'] / of_prompt, case['batch'] / statistics.median(steps)


def write_gguf(path: str, precision: str) -> None:
    """A llama-125m with random weights, in the Python that has gguf."""
    import gguf
    import numpy
    writer = gguf.GGUFWriter(path, 'llama')
    writer.add_block_count(SHAPE['layers'])
    writer.add_context_length(1024)
    writer.add_embedding_length(SHAPE['hidden'])
    writer.add_feed_forward_length(SHAPE['ffn'])
    writer.add_head_count(SHAPE['heads'])
    writer.add_head_count_kv(SHAPE['heads'])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(SHAPE['hidden'] // SHAPE['heads'])
    writer.add_vocab_size(SHAPE['vocabulary'])
    writer.add_tokenizer_model('llama')
    writer.add_token_list([b'<unk>', b'<s>', b'</s>'] + [f'<0x{byte:02X}>'.encode() for byte in range(256)] +
                          [f'word{number}'.encode() for number in range(259, SHAPE['vocabulary'])])
    writer.add_token_scores([0.0] * SHAPE['vocabulary'])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (SHAPE['vocabulary'] - 259))
    random = numpy.random.default_rng(1)

    def add(name: str, *shape: int) -> None:
        values = numpy.ones(shape, numpy.float32) if len(shape) == 1 else random.standard_normal(shape, numpy.float32) * numpy.float32(0.02)
        if precision == 'bf16' and len(shape) == 2:
            writer.add_tensor(name, gguf.quantize(values, gguf.GGMLQuantizationType.BF16), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, values)

    hidden, ffn = SHAPE['hidden'], SHAPE['ffn']
    add('token_embd.weight', SHAPE['vocabulary'], hidden)
    add('output_norm.weight', hidden)
    for layer in range(SHAPE['layers']):
        for name in ('attn_q', 'attn_k', 'attn_v', 'attn_output'):
            add(f'blk.{layer}.{name}.weight', hidden, hidden)
        for name, shape in (('attn_norm', (hidden,)), ('ffn_norm', (hidden,)), ('ffn_gate', (ffn, hidden)), ('ffn_up', (ffn, hidden)),
                            ('ffn_down', (hidden, ffn))):
            add(f'blk.{layer}.{name}.weight', *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run_llama_cpp(case: Dict) -> Speeds:
    """In the Python that has xllamacpp."""
    import xllamacpp
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'model.gguf')
        write_gguf(path, case['precision'])
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx = 512
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = case['threads']
        params.cache_prompt = False
        server = xllamacpp.Server(params)
        for _ in range(2):
            answer = server.handle_completions({'prompt': [7] * case['prompt'], 'n_predict': case['steps'], 'temperature': 0, 'ignore_eos': True})
            timings = (json.loads(answer) if isinstance(answer, str) else answer)['timings']
    return timings['prompt_per_second'], timings['predicted_per_second']


def run_ours(binary: str, case: Dict) -> Speeds:
    command = [binary, 'llama-125m', case['precision'], str(case['batch']), str(case['prompt']), str(case['steps'])]
    output = subprocess.run(command, env={**os.environ, 'OMP_NUM_THREADS': str(case['threads'])}, check=True, capture_output=True, text=True).stdout
    prompt, steps = re.search(r'prompt ([0-9.]+) tokens/s, steps ([0-9.]+)', output).groups()
    return float(prompt), float(steps)


def run_peer(python: str, environment: Dict[str, str], peer: str, case: Dict) -> Speeds:
    command = [python, os.path.abspath(__file__), '--worker', peer, json.dumps(case)]
    done = subprocess.run(command, env={**environment, 'OMP_NUM_THREADS': str(case['threads'])}, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f'generation_bench: {peer} ended with {done.returncode}:\n{done.stderr[-3000:]}')
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def llama_cpp_python() -> str:
    python = os.path.join(LLAMA_CPP, 'bin/python')
    if not os.path.exists(python):
        subprocess.run([sys.executable, '-m', 'venv', LLAMA_CPP], check=True)
        subprocess.run([python, '-m', 'pip', 'install', '--quiet', 'xllamacpp==2026.10.11549', 'gguf==0.19.0'], check=True)
    return python


def report(case: Dict, rivals: Dict[str, List[Speeds]]) -> None:
    print(f'{case["precision"]}, {case["batch"]} x {case["prompt"]} tokens, {case["steps"]} steps')
    ours = [statistics.median(run[part] for run in rivals['convene']) for part in (0, 1)]
    for name, runs in rivals.items():
        prompt, steps = (statistics.median(run[part] for run in runs) for part in (0, 1))
        print(f'  {name:12} prompt {prompt:7.1f} tokens/s, steps {steps:6.1f}   ours: {ours[0] / prompt:.2f} and {ours[1] / steps:.2f} times', flush=True)


def main() -> int:
    if sys.argv[1:2] == ['--worker']:
        print(json.dumps({'transformers': run_transformers, 'llama.cpp': run_llama_cpp}[sys.argv[2]](json.loads(sys.argv[3]))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--precisions', default='fp32,bf16')
    parser.add_argument('--batches', default='1,8')
    for name, value in (('prompt', 64), ('steps', 14), ('rounds', 3), ('threads', os.cpu_count())):
        parser.add_argument(f'--{name}', type=int, default=value)
    arguments = parser.parse_args()
    import launch_bench
    from tests.support import torch_environment
    try:
        print(f'PyTorch {torch_environment.install_torch()}, transformers {torch_environment.install_transformers()}, {arguments.threads} threads')
    except torch_environment.NoTorch as error:
        sys.exit(f'generation_bench: {error}')
    llama_cpp = llama_cpp_python()
    binary = os.path.join(launch_bench.build('//worker_runtime/inference:generation_bench'), 'worker_runtime/inference/generation_bench')
    for precision in arguments.precisions.split(','):
        for batch in map(int, arguments.batches.split(',')):
            case = {'precision': precision, 'batch': batch, 'prompt': arguments.prompt, 'steps': arguments.steps, 'threads': arguments.threads}
            rivals: Dict[str, List[Speeds]] = {}
            for _ in range(arguments.rounds):
                rivals.setdefault('convene', []).append(run_ours(binary, case))
                rivals.setdefault('transformers', []).append(
                    run_peer(torch_environment.PYTHON, torch_environment.torch_environment(), 'transformers', case))
                if batch == 1:
                    rivals.setdefault('llama.cpp', []).append(run_peer(llama_cpp, dict(os.environ), 'llama.cpp', case))
            report(case, rivals)
    return 0


if __name__ == '__main__':
    sys.exit(main())
