"""A Llama in PyTorch, written as its users would: the model of the peers of train_bench and gpu_check."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.head_size = c['heads'], c['kv_heads'], c['head_size']
        self.sizes = [self.heads * self.head_size, self.kv_heads * self.head_size, self.kv_heads * self.head_size]
        self.qkv = nn.Linear(c['hidden_size'], sum(self.sizes), bias=False)
        self.out = nn.Linear(self.sizes[0], c['hidden_size'], bias=False)
        self.repeat_kv = c.get('repeat_kv', False)  # not every attention kernel takes fewer heads of keys than of queries

    def forward(self, x, cosines, sines):
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, -1, self.head_size).transpose(1, 2) for t in self.qkv(x).split(self.sizes, -1))
        q, k = (self.turned(t, cosines, sines) for t in (q, k))
        grouped = self.heads != self.kv_heads
        if grouped and self.repeat_kv:
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped and not self.repeat_kv)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))

    @staticmethod
    def turned(x, cosines, sines):
        low, high = x.chunk(2, -1)
        return torch.cat([low * cosines - high * sines, high * cosines + low * sines], -1)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.norm2 = (nn.RMSNorm(c['hidden_size'], eps=1e-5) for _ in range(2))
        self.attention = Attention(c)
        self.gate_up = nn.Linear(c['hidden_size'], 2 * c['ffn_size'], bias=False)
        self.down = nn.Linear(c['ffn_size'], c['hidden_size'], bias=False)

    def forward(self, x, cosines, sines):
        x = x + self.attention(self.norm1(x), cosines, sines)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embedding = nn.Embedding(c['vocabulary_size'], c['hidden_size'])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c['layers']))
        self.norm = nn.RMSNorm(c['hidden_size'], eps=1e-5)
        self.head = nn.Linear(c['hidden_size'], c['vocabulary_size'], bias=False)
        if c['tied_embeddings']:
            self.head.weight = self.embedding.weight
        angles = torch.outer(torch.arange(c['sequence_length']), 10000.0 ** (-torch.arange(c['head_size'] // 2) * 2 / c['head_size']))
        self.register_buffer('cosines', angles.cos())
        self.register_buffer('sines', angles.sin())
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cosines, self.sines)
        return self.loss(x, targets)

    def loss(self, x, targets):
        # float(): a bf16 loss would round away the differences that are looked for. In fp32 it does nothing.
        return functional.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())
