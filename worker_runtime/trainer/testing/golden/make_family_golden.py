#!/usr/bin/env python3
"""The golden files of the families beside Llama: the same numbers as make_golden.py, from the models of Hugging Face's transformers.

usage: PYTHON_WITH_TORCH_AND_TRANSFORMERS make_family_golden.py    writes deepseek_v3, gemma2, gemma3_text, gpt2, mistral, qwen2 and qwen3.safetensors
beside this file; with names of these as arguments, these alone
(transformers 5.23.0 beside the PyTorch that make_golden.py names.) The format is make_golden.py's; matrices are [out, in] here, as
everywhere in Convene, also those that GPT-2 keeps turned round.
"""

import os
import sys
from typing import Dict

import make_golden
import torch
import transformers
from make_golden import Shape, Weights

# Gemma 3's, beside a Shape.
WINDOW_ROPE_THETA, QUERY_SCALAR = 500.0, 20
# Gemma 2's, with the same scalar: of the size of what they cap.
CAPS = {'attn_logit_softcapping': 0.5, 'final_logit_softcapping': 1.5}
# DeepSeek-V3's, beside a Shape. YaRN's two scales differ, so that both the tables' and the scores' count.
LATENTS = {'q_lora_rank': 24, 'kv_lora_rank': 16, 'qk_nope_head_dim': 4, 'qk_rope_head_dim': 4, 'v_head_dim': 6}
YARN = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16, 'beta_fast': 4, 'beta_slow': 1, 'mscale': 1.0,
        'mscale_all_dim': 0.5}
# By seed 7 AdamW meets gradients that are rounding alone: PyTorch in float is then 1.6e-5 from PyTorch in double, by seed 8 2.9e-6.
SEEDS = {'gemma3_text': 8}
# GPT-2's modules with weights [in, out].
TURNED = ('c_attn.weight', 'c_proj.weight', 'c_fc.weight')


def model_of(family: str, shape: Shape) -> torch.nn.Module:
    common = {'vocab_size': shape.vocabulary_size, 'tie_word_embeddings': bool(shape.tied_embeddings), 'attn_implementation': 'eager'}
    if family == 'gpt2':
        config = transformers.GPT2Config(n_layer=shape.layers, n_embd=shape.hidden_size, n_inner=shape.ffn_size, n_head=shape.heads,
                                         n_positions=shape.positions, layer_norm_epsilon=shape.norm_epsilon, resid_pdrop=0.0,
                                         embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, **common)
        return transformers.GPT2LMHeadModel(config)
    sizes = {'num_hidden_layers': shape.layers, 'hidden_size': shape.hidden_size, 'intermediate_size': shape.ffn_size,
             'num_attention_heads': shape.heads, 'num_key_value_heads': shape.kv_heads, 'head_dim': shape.head_size,
             'rms_norm_eps': shape.norm_epsilon, 'rope_theta': shape.rope_theta}
    if family == 'deepseek_v3':
        del sizes['head_dim'], sizes['rope_theta']
        common |= {'first_k_dense_replace': shape.layers, 'max_position_embeddings': 64, 'pad_token_id': None}
        ropes = YARN | {'rope_theta': shape.rope_theta}
        return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**sizes, **common, **LATENTS, rope_parameters=ropes))
    if family == 'gemma3_text':
        kinds = ['sliding_attention'] * 5 + ['full_attention']
        ropes = {'sliding_attention': {'rope_type': 'default', 'rope_theta': WINDOW_ROPE_THETA},
                 'full_attention': {'rope_type': 'linear', 'rope_theta': shape.rope_theta, 'factor': 8.0}}
        del sizes['rope_theta']
        common['pad_token_id'] = None  # else the embedding of this token learns nothing
        return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**sizes, **common, sliding_window=shape.sliding_window, layer_types=kinds,
                                                                            rope_parameters=ropes, query_pre_attn_scalar=QUERY_SCALAR))
    if family == 'gemma2':
        common['pad_token_id'] = None
        config = transformers.Gemma2Config(**sizes, **common, **CAPS, sliding_window=shape.sliding_window, query_pre_attn_scalar=QUERY_SCALAR)
        return transformers.Gemma2ForCausalLM(config)
    if family == 'mistral':
        return transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, **common, sliding_window=shape.sliding_window))
    if family == 'qwen2':
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes, **common))
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, **common))


class FamilyShape(Shape):
    """A Shape with what these families need more."""
    positions = 0
    sliding_window = 0


def turned(name: str, weight: torch.Tensor) -> torch.Tensor:
    return weight.T if name.endswith(TURNED) else weight


def use_double(model: torch.nn.Module) -> None:
    """Gemma's and DeepSeek's norms compute in float whatever they are given: many of them are further from the truth than the test allows."""
    for module in model.modules():
        if type(module).__name__ == 'DeepseekV3RMSNorm':
            module.forward = lambda x, norm=module: make_golden.rms_norm(x, norm.weight, norm.variance_epsilon)
        if type(module).__name__ in ('Gemma2RMSNorm', 'Gemma3RMSNorm'):
            module.forward = lambda x, norm=module: norm._norm(x) * (1 + norm.weight)  # pylint: disable=protected-access


def use(family: str) -> None:
    """make_golden's functions make their numbers with this family's model from now on."""
    models: Dict[torch.dtype, torch.nn.Module] = {}

    def initial_weights(shape: Shape) -> Weights:
        generator = torch.Generator().manual_seed(SEEDS.get(family, 7))
        weights = {}
        for name, parameter in model_of(family, shape).named_parameters():
            value = torch.randn(parameter.shape, generator=generator) * 0.12
            is_norm = parameter.dim() == 1 and name.endswith('weight')
            # Gemma's weights of norms count from 1.
            weights[name] = turned(name, 1 + value if is_norm and not family.startswith('gemma') else value).contiguous()
        return weights

    def logits_of(shape: Shape, weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
        dtype = next(iter(weights.values())).dtype
        if dtype not in models:
            models[dtype] = model_of(family, shape).to(dtype).eval()
            if dtype == torch.float64:
                use_double(models[dtype])
        named = {name: turned(name, weight) for name, weight in weights.items()}
        if shape.tied_embeddings:
            named['lm_head.weight'] = next(w for name, w in weights.items() if name.endswith(('embed_tokens.weight', 'wte.weight')))
        return torch.func.functional_call(models[dtype], named, (tokens.long(),), {'use_cache': False}).logits

    make_golden.initial_weights, make_golden.logits_of = initial_weights, logits_of


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = os.path.dirname(os.path.abspath(__file__))
    gemma = FamilyShape(layers=6, tied_embeddings=1)
    shapes = {'deepseek_v3': FamilyShape(kv_heads=4), 'gemma2': FamilyShape(layers=3, tied_embeddings=1),
              'gemma3_text': gemma, 'mistral': FamilyShape(), 'qwen2': FamilyShape(),
              'qwen3': FamilyShape(tied_embeddings=1), 'gpt2': FamilyShape(kv_heads=4, tied_embeddings=1)}
    for family in sys.argv[1:] or shapes:
        shape = shapes[family]
        FamilyShape.positions, FamilyShape.sliding_window = 32 if family == 'gpt2' else 0, 7 if family in ('mistral', 'gemma2', 'gemma3_text') else 0
        use(family)
        path = os.path.join(folder, f'{family}.safetensors')
        tensors = make_golden.golden(shape)
        metadata = {key: str(value) for key, value in shape._asdict().items() if value is not None}
        metadata |= {'family': family, 'positions': str(shape.positions), 'sliding_window': str(shape.sliding_window),
                     'torch': torch.__version__, 'transformers': transformers.__version__}
        make_golden.write(path, tensors, metadata)
        print(f'{path}: {os.path.getsize(path)} bytes, loss {tensors["loss"][0]:.4f} to {tensors["loss"][-1]:.4f}')


if __name__ == '__main__':
    main()
