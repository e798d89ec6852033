#!/usr/bin/env python3
"""The golden files of golden_test.cc and its neighbours: a small Llama in PyTorch, written from the paper's formulas and not from our code.

usage: PYTHON_WITH_TORCH make_golden.py    writes untied, tied, packed, attention, newton_schulz and optimizers.safetensors beside this file
(tests/bench/launch_bench.py makes such a Python in ~/.cache/convene/venv.) The files are kept in the repository; make
them again only when the test asks for something new: another PyTorch may round differently in the last digit.

One file holds, little endian, in safetensors' format:
  __metadata__          the shape as "key=value" pairs, PyTorch's version; with eod_token rows are packed: a token attends
                        to its own document alone, and positions count from that document's start
  weight/NAME           the start, under Hugging Face's names
  tokens, targets       (STEPS, BATCH, SEQUENCE); a target of -1 does not count
  log_probabilities     (BATCH, SEQUENCE, VOCABULARY): log softmax of the first batch's logits, computed in double
  gradient/NAME         of the first batch's mean loss, computed in double
  loss, grad_norm       (STEPS), double values: AdamW steps in float, norm before clipping
  loss_bf16             (STEPS): the same with weights, activations and gradients in bf16, master weights in float
  gradient_bf16_error/NAME  one double: the norm of (bf16 gradient - gradient/NAME): what plain bf16 loses

optimizers.safetensors: loss/NAME and grad_norm/NAME, (STEPS), of the start, the batches and the model of untied.safetensors, with the optimizers of
OPTIMIZERS. torch.optim.Muon, which rounds to bf16, computes in float here (unrounded_muon). loss_bf16/NAME is the same with weights, activations and
gradients in bf16, master weights in float, and Muon as PyTorch has it.

newton_schulz.safetensors: ROWSxCOLUMNS/given, ROWSxCOLUMNS/out of Newton-Schulz in double, and ROWSxCOLUMNS/bf16_error, one double: the norm of
(PyTorch's own out - out).

attention.safetensors: the attention of some tokens of a packed row to some others, in double, under the names of ops/attention.h; key head h
serves the query heads 2 h and 2 h + 1. part0/ and part1/ are the attention to the first and the second half of the keys.
"""

import contextlib
import json
import math
import os
import struct
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch.nn import functional
from torch.optim import _muon

STEPS, BATCH, SEQUENCE = 50, 4, 24
ADAM = {'lr': 2e-3, 'betas': (0.9, 0.95), 'eps': 1e-8}
WEIGHT_DECAY, CLIP = 0.1, 1.0
# Muon leaves routers to AdamW: their rows are experts.
NO_MATRICES = ('.gate.weight', '.router.weight', '.shared_expert_gate.weight')


class Shape(NamedTuple):
    layers: int = 2
    hidden_size: int = 32
    ffn_size: int = 48
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 8
    vocabulary_size: int = 64
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5
    tied_embeddings: int = 0
    eod_token: Optional[int] = None


Weights = Dict[str, torch.Tensor]


def initial_weights(shape: Shape) -> Weights:
    generator = torch.Generator().manual_seed(7)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator) * 0.12

    weights = {'model.embed_tokens.weight': normal(shape.vocabulary_size, shape.hidden_size)}
    for i in range(shape.layers):
        layer, kv_size = f'model.layers.{i}.', shape.kv_heads * shape.head_size
        weights[layer + 'input_layernorm.weight'] = 1 + normal(shape.hidden_size)
        weights[layer + 'self_attn.q_proj.weight'] = normal(shape.heads * shape.head_size, shape.hidden_size)
        weights[layer + 'self_attn.k_proj.weight'] = normal(kv_size, shape.hidden_size)
        weights[layer + 'self_attn.v_proj.weight'] = normal(kv_size, shape.hidden_size)
        weights[layer + 'self_attn.o_proj.weight'] = normal(shape.hidden_size, shape.heads * shape.head_size)
        weights[layer + 'post_attention_layernorm.weight'] = 1 + normal(shape.hidden_size)
        weights[layer + 'mlp.gate_proj.weight'] = normal(shape.ffn_size, shape.hidden_size)
        weights[layer + 'mlp.up_proj.weight'] = normal(shape.ffn_size, shape.hidden_size)
        weights[layer + 'mlp.down_proj.weight'] = normal(shape.hidden_size, shape.ffn_size)
    weights['model.norm.weight'] = 1 + normal(shape.hidden_size)
    if not shape.tied_embeddings:
        weights['lm_head.weight'] = normal(shape.vocabulary_size, shape.hidden_size)
    return weights


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def documents_of(shape: Shape, tokens: torch.Tensor) -> torch.Tensor:
    """(batch, sequence): the number of the document that each token of a row belongs to."""
    if shape.eod_token is None:
        return torch.zeros_like(tokens)
    ends = (tokens == shape.eod_token).long()
    return ends.cumsum(-1) - ends


def positions_of(documents: torch.Tensor) -> torch.Tensor:
    """(batch, sequence): how many tokens of the same document stand before each."""
    same = documents[:, :, None] == documents[:, None, :]
    return same.tril(-1).sum(-1)


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary positions on (batch, heads, sequence, head_size), the halves of a head as pairs (GPT-NeoX's order, Hugging Face's)."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = positions[:, None, :, None].double() * frequencies
    cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cosines - high * sines, high * cosines + low * sines], -1)


def logits_of(shape: Shape, weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
    def heads(x: torch.Tensor, count: int) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], count, shape.head_size).transpose(1, 2)

    documents = documents_of(shape, tokens)
    positions = positions_of(documents)
    hidden = (documents[:, None, :, None] != documents[:, None, None, :]) | torch.ones(
        tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
    x = weights['model.embed_tokens.weight'][tokens]
    for i in range(shape.layers):
        layer = {name.split('.', 3)[3]: w for name, w in weights.items() if name.startswith(f'model.layers.{i}.')}
        h = rms_norm(x, layer['input_layernorm.weight'], shape.norm_epsilon)
        q = rotate(heads(h @ layer['self_attn.q_proj.weight'].T, shape.heads), positions, shape.rope_theta)
        k = rotate(heads(h @ layer['self_attn.k_proj.weight'].T, shape.kv_heads), positions, shape.rope_theta)
        v = heads(h @ layer['self_attn.v_proj.weight'].T, shape.kv_heads)
        k, v = (t.repeat_interleave(shape.heads // shape.kv_heads, 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(shape.head_size)
        attention = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        x = x + attention.transpose(1, 2).flatten(2) @ layer['self_attn.o_proj.weight'].T
        h = rms_norm(x, layer['post_attention_layernorm.weight'], shape.norm_epsilon)
        gated = functional.silu(h @ layer['mlp.gate_proj.weight'].T) * (h @ layer['mlp.up_proj.weight'].T)
        x = x + gated @ layer['mlp.down_proj.weight'].T
    x = rms_norm(x, weights['model.norm.weight'], shape.norm_epsilon)
    return x @ weights.get('lm_head.weight', weights['model.embed_tokens.weight']).T


def mean_loss(shape: Shape, weights: Weights, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = logits_of(shape, weights, tokens).flatten(0, 1)
    # Softmax of bf16 logits in float, as every trainer does.
    return functional.cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, targets.flatten(), ignore_index=-1)


def batches(shape: Shape) -> torch.Tensor:
    """(STEPS, BATCH, SEQUENCE + 1) tokens in which the next one can mostly be told from the last two."""
    generator = torch.Generator().manual_seed(8)
    tokens = torch.randint(shape.vocabulary_size, (STEPS, BATCH, SEQUENCE + 1), generator=generator)
    surprise = torch.rand(tokens.shape, generator=generator) < 0.2
    for place in range(2, SEQUENCE + 1):
        told = (tokens[..., place - 1] + 3 * (tokens[..., place - 2] % 4) + 1) % shape.vocabulary_size
        tokens[..., place] = torch.where(surprise[..., place], tokens[..., place], told)
    if shape.eod_token is not None:
        # Lengths from one token on. With other seeds AdamW may meet a gradient that is rounding alone and make a step of it:
        # then PyTorch in float is as far from PyTorch in double as the test allows us to be from either.
        tokens[torch.rand(tokens.shape, generator=torch.Generator().manual_seed(9)) < 0.12] = shape.eod_token
    return tokens


def parameters_of(weights: Weights, dtype: torch.dtype) -> Weights:
    return {name: w.detach().to(dtype, copy=True).requires_grad_() for name, w in weights.items()}


def adam_of(weights: Weights) -> torch.optim.Optimizer:
    return torch.optim.AdamW([{'params': [w for w in weights.values() if w.dim() == 2], 'weight_decay': WEIGHT_DECAY},
                              {'params': [w for w in weights.values() if w.dim() == 1], 'weight_decay': 0.0}], **ADAM)


def adam_alone(weights: Weights) -> List[torch.optim.Optimizer]:
    return [adam_of(weights)]


def sgd_of(weights: Weights, **settings: object) -> List[torch.optim.Optimizer]:
    matrices, vectors = ([w for w in weights.values() if w.dim() == axes] for axes in (2, 1))
    return [torch.optim.SGD([{'params': matrices, 'weight_decay': 0.01}, {'params': vectors, 'weight_decay': 0.0}], lr=0.1, **settings)]


def muon_of(weights: Weights) -> List[torch.optim.Optimizer]:
    matrices = {name: w for name, w in weights.items() if w.dim() == 2 and ('.layers.' in name or '.h.' in name) and not name.endswith(NO_MATRICES)}
    rest = {name: w for name, w in weights.items() if name not in matrices}
    return [torch.optim.Muon(matrices.values(), lr=ADAM['lr'], weight_decay=WEIGHT_DECAY, momentum=0.95, nesterov=True,
                             adjust_lr_fn='match_rms_adamw'), adam_of(rest)]


OPTIMIZERS = {'sgd': lambda weights: sgd_of(weights, momentum=0.9), 'nesterov': lambda weights: sgd_of(weights, momentum=0.9, nesterov=True),
              'plain': lambda weights: sgd_of(weights, momentum=0.0), 'muon': muon_of}


def newton_schulz(gradient: torch.Tensor, coefficients: Tuple[float, float, float], steps: int, epsilon: float) -> torch.Tensor:
    """Keller Jordan's zeropower_via_newtonschulz5 (github.com/KellerJordan/Muon), in the gradient's type and not in bf16."""
    a, b, c = coefficients
    is_tall = len(gradient) > len(gradient.T)
    x = gradient.T if is_tall else gradient
    x = x / x.norm().clamp(min=epsilon)
    for _ in range(steps):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if is_tall else x


NEWTON_SCHULZ = ((3.4445, -4.7750, 2.0315), 5, 1e-7)  # torch.optim.Muon's defaults


def relative(wrong: torch.Tensor, right: torch.Tensor) -> float:
    return ((wrong.double() - right.double()).norm() / right.double().norm()).item()


@contextlib.contextmanager
def unrounded_muon() -> Iterator[None]:
    """torch.optim.Muon computes in the type of the weights. Another PyTorch may call its function otherwise: so the hold on it is proven here, and
    that what stands in its place is the same function but for rounding."""
    own = _muon._zeropower_via_newtonschulz  # pylint: disable=protected-access
    given = torch.randn(24, 16, generator=torch.Generator().manual_seed(11))
    rounded = own(given, *NEWTON_SCHULZ)
    assert rounded.dtype == torch.bfloat16 and relative(newton_schulz(given, *NEWTON_SCHULZ), rounded) < 0.02
    _muon._zeropower_via_newtonschulz = newton_schulz  # pylint: disable=protected-access
    weight = torch.zeros(24, 16, requires_grad=True)
    weight.grad = given.clone()
    torch.optim.Muon([weight], lr=1.0, weight_decay=0.0, momentum=0.0, nesterov=False, adjust_lr_fn='match_rms_adamw').step()
    expected = -0.2 * math.sqrt(24) * newton_schulz(given.double(), *NEWTON_SCHULZ)
    assert relative(weight.detach(), expected) < 1e-5, 'torch.optim.Muon still rounds'
    try:
        yield
    finally:
        _muon._zeropower_via_newtonschulz = own  # pylint: disable=protected-access


def newton_schulz_golden() -> Weights:
    generator = torch.Generator().manual_seed(12)
    result = {}
    for rows, columns in ((1, 1), (1, 24), (16, 16), (32, 8), (8, 48), (130, 66)):
        given = torch.randn(rows, columns, generator=generator)
        given[:, 0] += 3  # one direction is far above the others, as in gradients
        out = newton_schulz(given.double(), *NEWTON_SCHULZ)
        rounded = _muon._zeropower_via_newtonschulz(given, *NEWTON_SCHULZ)  # pylint: disable=protected-access
        name = f'{rows}x{columns}'
        result |= {f'{name}/given': given, f'{name}/out': out, f'{name}/bf16_error': (rounded.double() - out).norm().reshape(1)}
    return result


def losses_and_norms(shape: Shape, optimizers_of: Callable[[Weights], List[torch.optim.Optimizer]], tokens: torch.Tensor,
                     targets: torch.Tensor, dtype: torch.dtype = torch.float32) -> Tuple[torch.Tensor, torch.Tensor]:
    weights = parameters_of(initial_weights(shape), dtype)
    optimizers = optimizers_of(weights)
    losses, norms = [], []
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = mean_loss(shape, weights, tokens[step], targets[step])
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(list(weights.values()), CLIP).item())
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64), torch.tensor(norms, dtype=torch.float64)


def optimizers_golden(shape: Shape) -> Weights:
    tokens, targets = tokens_and_targets(shape)
    result = {}
    for name, optimizers_of in OPTIMIZERS.items():
        with unrounded_muon():
            result[f'loss/{name}'], result[f'grad_norm/{name}'] = losses_and_norms(shape, optimizers_of, tokens, targets)
        result[f'loss_bf16/{name}'] = torch.tensor(bf16_losses(shape, initial_weights(shape), optimizers_of, tokens, targets), dtype=torch.float64)
    return result


def bf16_gradients(shape: Shape, weights: Weights, tokens: torch.Tensor, targets: torch.Tensor) -> Tuple[float, Weights]:
    rounded = parameters_of(weights, torch.bfloat16)
    loss = mean_loss(shape, rounded, tokens, targets)
    loss.backward()
    return loss.item(), {name: w.grad.float() for name, w in rounded.items()}


def bf16_losses(shape: Shape, start: Weights, optimizers_of: Callable[[Weights], List[torch.optim.Optimizer]], tokens: torch.Tensor,
                targets: torch.Tensor) -> List[float]:
    masters = parameters_of(start, torch.float32)
    optimizers = optimizers_of(masters)
    losses = []
    for step in range(STEPS):
        loss, gradients = bf16_gradients(shape, masters, tokens[step], targets[step])
        for name, w in masters.items():
            w.grad = gradients[name]
        torch.nn.utils.clip_grad_norm_(list(masters.values()), CLIP)
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss)
    return losses


def tokens_and_targets(shape: Shape) -> Tuple[torch.Tensor, torch.Tensor]:
    samples = batches(shape)
    tokens, targets = samples[..., :-1].contiguous(), samples[..., 1:].clone()
    targets[:, 0, :5] = -1
    return tokens, targets


def golden(shape: Shape) -> Weights:
    start = initial_weights(shape)
    tokens, targets = tokens_and_targets(shape)
    result = {'weight/' + name: w.clone() for name, w in start.items()}
    result |= {'tokens': tokens.int(), 'targets': targets.int()}

    truth = parameters_of(start, torch.float64)
    result['log_probabilities'] = logits_of(shape, truth, tokens[0]).log_softmax(-1).detach().float()
    mean_loss(shape, truth, tokens[0], targets[0]).backward()
    result |= {'gradient/' + name: w.grad.float() for name, w in truth.items()}
    _, rounded = bf16_gradients(shape, start, tokens[0], targets[0])
    result |= {'gradient_bf16_error/' + name: (rounded[name] - w.grad).norm().double().reshape(1) for name, w in truth.items()}
    result['loss_bf16'] = torch.tensor(bf16_losses(shape, start, adam_alone, tokens, targets), dtype=torch.float64)

    losses, norms = losses_and_norms(shape, adam_alone, tokens, targets)
    return result | {'loss': losses, 'grad_norm': norms}


def attention_golden() -> Weights:
    generator = torch.Generator().manual_seed(10)
    batch, heads, kv_heads, head_size = 2, 4, 2, 8
    query_positions = torch.tensor([1, 4, 5, 9, 12, 15])
    key_positions = torch.tensor([0, 2, 3, 5, 6, 8, 11, 12, 13, 14])
    # The second query of the first row sees no key.
    begins = torch.tensor([[0, 4, 4, 4, 10, 10], [0, 0, 0, 0, 0, 13]])

    def numbers(tokens: int, width: int) -> torch.Tensor:
        return torch.randn(batch, tokens, width, generator=generator)

    given = {'queries': numbers(len(query_positions), heads * head_size), 'dout': numbers(len(query_positions), heads * head_size),
             'keys_values': numbers(len(key_positions), 2 * kv_heads * head_size)}
    queries, keys_values = (given[name].double().requires_grad_() for name in ('queries', 'keys_values'))

    def attend(keys: slice) -> Tuple[torch.Tensor, torch.Tensor]:
        q = queries.view(batch, -1, heads, head_size).transpose(1, 2)
        k, v = (half.reshape(batch, -1, kv_heads, head_size).transpose(1, 2).repeat_interleave(heads // kv_heads, 1)
                for half in keys_values[:, keys].chunk(2, -1))
        positions = key_positions[keys]
        seen = (positions >= begins[..., None]) & (positions <= query_positions[:, None])
        scores = (q @ k.transpose(-1, -2) / math.sqrt(head_size)).masked_fill(~seen[:, None], -math.inf)
        log_sum_exp = scores.detach().logsumexp(-1)
        weights = torch.where(seen.any(-1)[:, None, :, None], scores, 0).softmax(-1) * seen[:, None]
        return (weights @ v).transpose(1, 2).flatten(2), log_sum_exp

    out, log_sum_exp = attend(slice(None))
    (out * given['dout'].double()).sum().backward()
    result = given | {'out': out, 'log_sum_exp': log_sum_exp, 'dqueries': queries.grad, 'dkeys_values': keys_values.grad}
    half = len(key_positions) // 2
    for part, keys in enumerate((slice(None, half), slice(half, None))):
        result[f'part{part}/out'], result[f'part{part}/log_sum_exp'] = attend(keys)
    return result | {'query_positions': query_positions.int(), 'key_positions': key_positions.int(), 'begins': begins.int()}


def write(path: str, tensors: Weights, metadata: Dict[str, str]) -> None:
    names = {torch.float32: 'F32', torch.float64: 'F64', torch.int32: 'I32'}
    header: Dict[str, object] = {'__metadata__': metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {'dtype': names[tensor.dtype], 'shape': list(tensor.shape), 'data_offsets': [begin, end]}
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.detach().contiguous().numpy().tobytes())


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = os.path.dirname(os.path.abspath(__file__))
    write(os.path.join(folder, 'attention.safetensors'), attention_golden(), {'torch': torch.__version__})
    write(os.path.join(folder, 'newton_schulz.safetensors'), newton_schulz_golden(), {'torch': torch.__version__})
    write(os.path.join(folder, 'optimizers.safetensors'), optimizers_golden(Shape()), {'torch': torch.__version__})
    for name, shape in (('untied', Shape()), ('tied', Shape(tied_embeddings=1)), ('packed', Shape(eod_token=5))):
        path = os.path.join(folder, f'{name}.safetensors')
        tensors = golden(shape)
        metadata = {key: str(value) for key, value in shape._asdict().items() if value is not None}
        write(path, tensors, metadata | {'torch': torch.__version__})
        print(f'{path}: {os.path.getsize(path)} bytes, loss {tensors["loss"][0]:.4f} to {tensors["loss"][-1]:.4f}')


if __name__ == '__main__':
    main()
