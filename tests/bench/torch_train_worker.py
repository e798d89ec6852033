"""The peer of tools/gpu_check and train_bench: a Llama in PyTorch, or a model of Hugging Face's transformers where a case has a "family", on one GPU
or the CPU, in fp32 or bf16.

usage: torch_train_worker.py '[{"layers": 12, ..., "device": "cuda", "precision": "bf16", "compile": true, "data": "text.txt", ...}, ...]'
bf16 means bf16 weights and activations with fp32 gradients, master weights, moments and update, as ours. On a GPU torch.compile compiles a block
once for all layers, and the loss; on the CPU the whole model. Of the attention kernels that take the shape the fastest is used. Needs no network.
Prints one JSON line a case: seconds and loss of each step, peak memory, the attention kernel.
"""

import json
import math
import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional

sys.dont_write_bytecode = True
from torch_model import Llama  # noqa: E402  (the line above keeps __pycache__ out of the tree)

WARM_UP_CALLS, TIMED_CALLS = 3, 10


def use_attention(kernel):
    """kernel: cudnn or flash; '' leaves the choice to PyTorch."""
    if kernel:
        torch.backends.cuda.enable_cudnn_sdp(kernel == 'cudnn')
        torch.backends.cuda.enable_flash_sdp(kernel == 'flash')
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_math_sdp(False)


def attention_seconds(c, kernel, repeat_kv):
    """Forward and backward at the case's shape; infinite where the kernel does not take it."""
    use_attention(kernel)
    heads = (c['heads'], *(2 * [c['heads'] if repeat_kv else c['kv_heads']]))
    q, k, v = (torch.randn(c['micro_batch_size'], count, c['sequence_length'], c['head_size'], device='cuda', dtype=torch.bfloat16, requires_grad=True)
               for count in heads)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    try:
        for call in range(WARM_UP_CALLS + TIMED_CALLS):
            if call == WARM_UP_CALLS:
                start.record()
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
            y.backward(y)
        end.record()
        torch.cuda.synchronize()
    except RuntimeError:
        return math.inf
    return start.elapsed_time(end) / 1000 / TIMED_CALLS


class OfTransformers(nn.Module):
    """A family's model from transformers, as its users get it, with the loss of the others."""

    def __init__(self, c):
        super().__init__()
        import transformers  # pylint: disable=import-outside-toplevel
        common = {'vocab_size': c['vocabulary_size'], 'tie_word_embeddings': bool(c['tied_embeddings'])}
        if 'experts' in c:
            common |= {'num_experts': c['experts'], 'num_experts_per_tok': c['experts_per_token'], 'moe_intermediate_size': c['expert_ffn_size'],
                       'norm_topk_prob': True}
        if c['family'] == 'gpt2':
            config = transformers.GPT2Config(n_layer=c['layers'], n_embd=c['hidden_size'], n_inner=c['ffn_size'], n_head=c['heads'], resid_pdrop=0,
                                             embd_pdrop=0, attn_pdrop=0, **common)
        else:
            config = transformers.AutoConfig.for_model(c['family'], num_hidden_layers=c['layers'], hidden_size=c['hidden_size'],
                                                       intermediate_size=c['ffn_size'], num_attention_heads=c['heads'],
                                                       num_key_value_heads=c['kv_heads'], head_dim=c['head_size'], **common)
        self.model = transformers.AutoModelForCausalLM.from_config(config)

    def forward(self, tokens, targets):
        logits = self.model(tokens, use_cache=False).logits
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def choose_attention(c):
    """(kernel, repeat_kv) of the fastest; PyTorch's own choice in fp32 and on the CPU."""
    if c['device'] != 'cuda' or c['precision'] != 'bf16':
        return '', False
    candidates = [(kernel, repeat) for kernel in ('cudnn', 'flash') for repeat in ((False, True) if c['heads'] != c['kv_heads'] else (False,))]
    seconds = {candidate: attention_seconds(c, *candidate) for candidate in candidates}
    fastest = min(candidates, key=seconds.get)
    if math.isinf(seconds[fastest]):
        for enable in (torch.backends.cuda.enable_mem_efficient_sdp, torch.backends.cuda.enable_math_sdp):
            enable(True)
        return '', False
    use_attention(fastest[0])
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return fastest


class Trainer:
    """AdamW as users of PyTorch run it: fused, on fp32 weights, of which a bf16 model is a rounded copy."""

    def __init__(self, model, c):
        self.parameters = list(model.parameters())
        self.masters = self.parameters
        if c['precision'] == 'bf16':
            self.masters = [parameter.detach().float() for parameter in self.parameters]
            model.to(torch.bfloat16)
            for parameter, master in zip(self.parameters, self.masters):
                parameter.register_post_accumulate_grad_hook(self.widens_into(master))
        groups = [{'params': [p for p in self.masters if p.dim() >= 2], 'weight_decay': 0.1},
                  {'params': [p for p in self.masters if p.dim() < 2], 'weight_decay': 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=c['learning_rate'], betas=(0.9, 0.95), fused=True)
        self.steps, self.peak_rate = c['steps'], c['learning_rate']

    def step(self, number):
        """number: from 0. A linear warm-up, then a cosine to a tenth."""
        for group in self.optimizer.param_groups:
            group['lr'] = self.rate(number)
        nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.masters is not self.parameters:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.masters)

    @staticmethod
    def widens_into(master):
        """A hook that moves a gradient to the master at once, so that a parameter never has both for long."""
        def hook(parameter):
            master.grad = parameter.grad.float()
            parameter.grad = None
        return hook

    def rate(self, number):
        warm_up = min(100, self.steps // 10)
        if number < warm_up:
            return self.peak_rate * (number + 1) / warm_up
        progress = (number - warm_up) / max(1, self.steps - warm_up)
        return self.peak_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def batches(c):
    """Windows of the text, in an order of the seed; on the device."""
    with open(c['data'], 'rb') as file:
        tokens = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(c['seed'])
    length = c['sequence_length'] + 1
    while True:
        starts = torch.randint(0, len(tokens) - length, (c['micro_batch_size'],), generator=generator)
        yield torch.stack([tokens[start:start + length] for start in starts]).to(c['device'], torch.int64, non_blocking=True)


class Stopwatch:
    """Marks between steps, without waiting for the GPU in between."""

    def __init__(self, device):
        self.cuda = device == 'cuda'
        self.marks = []

    def mark(self):
        if self.cuda:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def seconds(self):
        pairs = zip(self.marks, self.marks[1:])
        if self.cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) / 1000 for a, b in pairs]
        return [b - a for a, b in pairs]


def train(c):
    """The case's answer."""
    torch.manual_seed(c['seed'])
    kernel, repeat_kv = choose_attention(c)
    with torch.device(c['device']):
        model = OfTransformers(c) if 'family' in c else Llama({**c, 'repeat_kv': repeat_kv})
    trainer = Trainer(model, c)
    if c['compile'] and c['device'] == 'cpu':
        model.compile()
    elif c['compile']:
        for block in model.blocks:
            block.compile()
        model.loss = torch.compile(model.loss)
    stopwatch = Stopwatch(c['device'])
    losses, optimizer_seconds = [], []
    data = batches(c)
    started = time.perf_counter()
    for number in range(c['steps']):
        stopwatch.mark()
        tokens = next(data)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        before = time.perf_counter()
        trainer.step(number)
        optimizer_seconds.append(time.perf_counter() - before)  # on a GPU: to enqueue it
        losses.append(loss.detach())
        if number == 0:
            losses[0].item()  # waits, so that this is the time of compiling too
            first_step_seconds = time.perf_counter() - started
    stopwatch.mark()
    seconds = stopwatch.seconds()
    peaks = ({'peak_allocated_bytes': torch.cuda.max_memory_allocated(), 'peak_reserved_bytes': torch.cuda.max_memory_reserved()}
             if c['device'] == 'cuda' else {'peak_bytes': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})
    return {'step_seconds': seconds, 'optimizer_seconds': optimizer_seconds, 'losses': [loss.item() for loss in losses],
            'first_step_seconds': first_step_seconds, 'attention': (kernel or 'PyTorch\'s choice') + (', repeated keys' if repeat_kv else ''), **peaks}


def main():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for case in json.loads(sys.argv[1]):
        print(json.dumps(train(case)), flush=True)


main()
