#!/usr/bin/env python3
"""The golden files of the families beside Llama: the same numbers as make_golden.py, from the models of Hugging Face's transformers.

usage: PYTHON_WITH_TORCH_AND_TRANSFORMERS make_family_golden.py    writes deepseek_moe, deepseek_v2, deepseek_v3, gemma2, gemma3_text, glm4_moe, gpt2,
gpt_oss, granite, mistral, mixtral, olmo2, olmo3, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe, seed_oss and smollm3.safetensors beside this file, and
family_optimizers.safetensors; with names of these as arguments, these alone
(transformers 5.23.0 beside the PyTorch that make_golden.py names.) The format is make_golden.py's; matrices are [out, in] here, as
everywhere in Convene, also those that GPT-2 keeps turned round.

family_optimizers.safetensors: loss/FAMILY/NAME and grad_norm/FAMILY/NAME, (STEPS), of the start and the batches of FAMILY.safetensors, with the
optimizers of make_golden.py's OPTIMIZERS; loss_spread/ and grad_norm_spread/: how far the same in double is from it, as a part of it.
"""

import os
import sys
from typing import Dict, List

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
# gpt-oss's, whose bounds are no whole numbers.
GPT_OSS_YARN = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16, 'beta_fast': 4, 'beta_slow': 1, 'truncate': False}
# Of OLMo 3's layers without a window.
OLMO3_YARN = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16, 'beta_fast': 4, 'beta_slow': 1}
# Granite's, of which transformers' own are all 1.
MULTIPLIERS = {'embedding_multiplier': 3.0, 'attention_multiplier': 0.2, 'residual_multiplier': 0.3, 'logits_scaling': 2.5}
# Of models with experts, beside a Shape.
EXPERTS, CHOSEN, EXPERT_FFN = 4, 2, 12
DEEPSEEK_EXPERTS = {'n_routed_experts': EXPERTS, 'moe_intermediate_size': EXPERT_FFN, 'n_group': 2, 'topk_group': 1, 'first_k_dense_replace': 1}
# DeepSeek-V3's bias of a router, which no gradient changes: so large that it changes choices.
ROUTER_BIAS = torch.tensor([0.1, -0.1, 0.05, 0.0])
# By seed 7 AdamW meets gradients that are rounding alone: PyTorch in float is then 1.6e-5 from PyTorch in double, by seed 8 2.9e-6.
# By seed 7 gpt-oss's gradient of a bias of 12 numbers is in PyTorch's bf16 nearer to the truth, by chance, than a quarter of what it is for others.
# By seed 7 two groups of GLM's experts are so near to each other that bf16 chooses the other one.
# By seed 7 Muon's runs of SmolLM3 and OLMo in float and in double are 2e-4 from each other after five steps.
SEEDS = {'gemma3_text': 8, 'glm4_moe': 16, 'gpt_oss': 11, 'olmo2': 8, 'olmo3': 9, 'smollm3': 8}
WITH_ROUTER_BIAS = ('deepseek_moe', 'glm4_moe')
WINDOWED = ('mistral', 'gemma2', 'gemma3_text', 'gpt_oss', 'phi3', 'olmo3')
# Matrices that are one tensor of the files, and the parts of its rows that each has: of Phi-3 as many as its heads.
FUSED = {'c_attn.weight': (1, 1, 1), 'qkv_proj.weight': (2, 1, 1), 'gate_up_proj.weight': (1, 1)}
# GPT-2's modules with weights [in, out].
TURNED = ('c_attn.weight', 'c_proj.weight', 'c_fc.weight')


def model_with_experts(family: str, shape: Shape, sizes: dict, common: dict) -> torch.nn.Module:
    if family in ('mixtral', 'qwen2_moe', 'qwen3_moe', 'deepseek_moe', 'deepseek_v2', 'glm4_moe', 'gpt_oss'):
        common |= {'num_experts_per_tok': CHOSEN, 'experts_implementation': 'eager'}
    if family == 'mixtral':
        sizes['intermediate_size'] = EXPERT_FFN
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **common, num_local_experts=EXPERTS))
    if family == 'gpt_oss':
        sizes['intermediate_size'] = EXPERT_FFN
        ropes = GPT_OSS_YARN | {'rope_theta': sizes.pop('rope_theta')}
        return transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes, **common, num_local_experts=EXPERTS, rope_parameters=ropes,
                                                                        sliding_window=shape.sliding_window, max_position_embeddings=64, pad_token_id=None))
    if family == 'glm4_moe':
        ropes = {'rope_type': 'default', 'rope_theta': sizes.pop('rope_theta'), 'partial_rotary_factor': 0.5}
        return transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(**sizes, **common, **DEEPSEEK_EXPERTS, attention_bias=True, rope_parameters=ropes,
                                                                          routed_scaling_factor=2.5, pad_token_id=None))
    if family == 'qwen2_moe':
        return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**sizes, **common, num_experts=EXPERTS, moe_intermediate_size=EXPERT_FFN,
                                                                            shared_expert_intermediate_size=EXPERT_FFN))
    if family == 'qwen3_moe':
        return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, **common, num_experts=EXPERTS, norm_topk_prob=True,
                                                                            moe_intermediate_size=EXPERT_FFN))
    if family.startswith('deepseek'):
        del sizes['head_dim'], sizes['rope_theta']
        if family != 'deepseek_v3':
            common |= DEEPSEEK_EXPERTS
        common |= {'first_k_dense_replace': shape.layers if family == 'deepseek_v3' else 1, 'max_position_embeddings': 64, 'pad_token_id': None}
        ropes = YARN | {'rope_theta': shape.rope_theta}
        if family == 'deepseek_v2':
            latents = LATENTS | {'q_lora_rank': None, 'topk_method': 'group_limited_greedy', 'n_shared_experts': 1, 'routed_scaling_factor': 2.5}
            return transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(**sizes, **common, **latents, rope_parameters=ropes))
        return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**sizes, **common, **LATENTS, rope_parameters=ropes))


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
    if family in ('mixtral', 'qwen2_moe', 'qwen3_moe', 'glm4_moe', 'gpt_oss') or family.startswith('deepseek'):
        return model_with_experts(family, shape, sizes, common)
    if family == 'phi3':
        ropes = {'rope_type': 'default', 'rope_theta': sizes.pop('rope_theta'), 'partial_rotary_factor': 0.5}
        return transformers.Phi3ForCausalLM(transformers.Phi3Config(**sizes, **common, rope_parameters=ropes, sliding_window=shape.sliding_window,
                                                                    pad_token_id=None))
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
    if family == 'olmo2':
        return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**sizes, **common, pad_token_id=None))
    if family == 'olmo3':
        ropes = {'sliding_attention': {'rope_type': 'default', 'rope_theta': shape.rope_theta}, 'full_attention': OLMO3_YARN | {'rope_theta': shape.rope_theta}}
        del sizes['rope_theta']
        return transformers.Olmo3ForCausalLM(transformers.Olmo3Config(**sizes, **common, rope_parameters=ropes, sliding_window=shape.sliding_window,
                                                                      max_position_embeddings=64, pad_token_id=None))
    if family == 'granite':
        return transformers.GraniteForCausalLM(transformers.GraniteConfig(**sizes, **common, **MULTIPLIERS))
    if family == 'seed_oss':
        return transformers.SeedOssForCausalLM(transformers.SeedOssConfig(**sizes, **common, pad_token_id=None))
    if family == 'smollm3':
        return transformers.SmolLM3ForCausalLM(transformers.SmolLM3Config(**sizes, **common, pad_token_id=None))
    if family == 'qwen2':
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes, **common))
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, **common))


class FamilyShape(Shape):
    """A Shape with what these families need more."""
    positions = 0
    sliding_window = 0


def per_expert(family: str, weights: Weights) -> Weights:
    """transformers fuses the experts of a layer; here each has its own tensors, under the names of its files."""
    apart: Weights = {}
    for name, weight in weights.items():
        prefix, _, kind = name.partition('.experts.')
        if family == 'gpt_oss' and kind:
            part, _, bias = kind.partition('_proj')
            for e, both in enumerate(weight.transpose(-1, 1)):  # [.., 2 ffn] or [.., hidden]: gate and up take turns
                rows = {'gate': both[0::2], 'up': both[1::2]} if part == 'gate_up' else {'down': both}
                apart |= {f'{prefix}.experts.{e}.{row}_proj.{"bias" if bias else "weight"}': value for row, value in rows.items()}
        elif kind == 'gate_up_proj':
            for e, (gate, up) in enumerate(zip(*weight.chunk(2, 1))):
                apart |= {f'{prefix}.experts.{e}.gate_proj.weight': gate, f'{prefix}.experts.{e}.up_proj.weight': up}
        elif kind == 'down_proj':
            apart |= {f'{prefix}.experts.{e}.down_proj.weight': down for e, down in enumerate(weight)}
        else:
            apart[name] = weight
    if family != 'mixtral':
        return apart
    words = {'mlp.': 'block_sparse_moe.', 'gate_proj': 'w1', 'up_proj': 'w3', 'down_proj': 'w2'}
    return {replaced(name, words): weight for name, weight in apart.items()}


def replaced(name: str, words: Dict[str, str]) -> str:
    for old, new in words.items():
        name = name.replace(old, new)
    return name


def fused(family: str, weights: Weights) -> Weights:
    """The inverse of per_expert."""
    if family == 'gpt_oss':
        return fused_turned(weights)
    words = {'block_sparse_moe.': 'mlp.', 'w1': 'gate_proj', 'w3': 'up_proj', 'w2': 'down_proj'} if family == 'mixtral' else {}
    weights = {replaced(name, words): weight for name, weight in weights.items()}
    together: Weights = {name: weight for name, weight in weights.items() if '.experts.' not in name}
    for prefix in sorted({name.partition('.experts.')[0] for name in weights if '.experts.' in name}):
        def of(kind: str, at: str = prefix) -> torch.Tensor:
            return torch.stack([weights[f'{at}.experts.{e}.{kind}_proj.weight'] for e in range(EXPERTS)])
        together |= {f'{prefix}.experts.gate_up_proj': torch.cat([of('gate'), of('up')], 1), f'{prefix}.experts.down_proj': of('down')}
    return together


def fused_turned(weights: Weights) -> Weights:
    """The same of gpt-oss's: [expert, in, out], gate and up columns in turn, and biases."""
    together: Weights = {name: weight for name, weight in weights.items() if '.experts.' not in name}
    for prefix in sorted({name.partition('.experts.')[0] for name in weights if '.experts.' in name}):
        for kind, suffix in (('weight', ''), ('bias', '_bias')):
            def of(row: str, at: str = prefix, end: str = kind) -> torch.Tensor:
                return torch.stack([weights[f'{at}.experts.{e}.{row}_proj.{end}'] for e in range(EXPERTS)])
            both = torch.stack([of('gate'), of('up')], 2).flatten(1, 2)
            together |= {f'{prefix}.experts.gate_up_proj{suffix}': both.transpose(-1, 1), f'{prefix}.experts.down_proj{suffix}': of('down').transpose(-1, 1)}
    return together


def turned(name: str, weight: torch.Tensor) -> torch.Tensor:
    return weight.T if name.endswith(TURNED) else weight


def use_double(model: torch.nn.Module) -> None:
    """Gemma's, DeepSeek's and gpt-oss's norms compute in float whatever they are given: many of them are further from the truth than the test allows."""
    for module in model.modules():
        if type(module).__name__ in ('DeepseekV2RMSNorm', 'DeepseekV3RMSNorm', 'Glm4MoeRMSNorm', 'GptOssRMSNorm'):
            module.forward = lambda x, norm=module: make_golden.rms_norm(x, norm.weight, norm.variance_epsilon)
        if type(module).__name__ in ('Gemma2RMSNorm', 'Gemma3RMSNorm'):
            module.forward = lambda x, norm=module: norm._norm(x) * (1 + norm.weight)  # pylint: disable=protected-access


def router_biases(shape: Shape) -> List[str]:
    return [f'model.layers.{layer}.mlp.gate.e_score_correction_bias' for layer in range(1, shape.layers)]


def use(family: str) -> None:
    """make_golden's functions make their numbers with this family's model from now on."""
    models: Dict[torch.dtype, torch.nn.Module] = {}

    def initial_weights(shape: Shape) -> Weights:
        generator = torch.Generator().manual_seed(SEEDS.get(family, 7))
        weights = {}
        for name, parameter in model_of(family, shape).named_parameters():
            value = torch.randn(parameter.shape, generator=generator) * 0.12
            if name.endswith('gate_up_proj_bias'):
                value += 9 * value.sign() * (value.abs() > 0.15)  # some gates and ups are far behind their limits, none near them
            is_norm = parameter.dim() == 1 and name.endswith('weight')
            # Gemma's weights of norms count from 1.
            weights[name] = turned(name, 1 + value if is_norm and not family.startswith('gemma') else value)
        return {name: weight.contiguous() for name, weight in per_expert(family, weights).items()}

    def logits_of(shape: Shape, weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
        dtype = next(iter(weights.values())).dtype
        if dtype not in models:
            models[dtype] = model_of(family, shape).to(dtype).eval()
            if dtype == torch.float64:
                use_double(models[dtype])
        named = {name: turned(name, weight) for name, weight in fused(family, weights).items()}
        if family in WITH_ROUTER_BIAS:
            named |= {name: ROUTER_BIAS.to(dtype) for name in router_biases(shape)}
        if shape.tied_embeddings:
            named['lm_head.weight'] = next(w for name, w in weights.items() if name.endswith(('embed_tokens.weight', 'wte.weight')))
        return torch.func.functional_call(models[dtype], named, (tokens.long(),), {'use_cache': False}).logits

    make_golden.initial_weights, make_golden.logits_of = initial_weights, logits_of


def split(weights: Weights) -> Weights:
    """GPT-2's and Phi-3's query, key and value rows, which are one tensor of their files, as three matrices: so Muon takes them."""
    apart: Weights = {}
    for name, weight in weights.items():
        shares = next((shares for end, shares in FUSED.items() if name.endswith(end)), (1,))
        parts = weight.split([len(weight) * share // sum(shares) for share in shares])
        apart |= {name + (f'.{i}' if len(parts) > 1 else ''): part.clone() for i, part in enumerate(parts)}
    return apart


def joined(weights: Weights) -> Weights:
    """The inverse of split."""
    together = {name: weight for name, weight in weights.items() if not name.endswith(('.0', '.1', '.2'))}
    for name in [name[:-2] for name in weights if name.endswith('.0')]:
        together[name] = torch.cat([weights[f'{name}.{i}'] for i in range(3) if f'{name}.{i}' in weights])
    return together


def optimizers_of_family(shape: Shape) -> Weights:
    """Of the family that use() named."""
    whole_start, whole_logits = make_golden.initial_weights, make_golden.logits_of
    make_golden.initial_weights = lambda shape: split(whole_start(shape))
    make_golden.logits_of = lambda shape, weights, tokens: whole_logits(shape, joined(weights), tokens)
    tokens, targets = make_golden.tokens_and_targets(shape)
    result = {}
    for name, optimizers_of in make_golden.OPTIMIZERS.items():
        with make_golden.unrounded_muon():
            runs = [make_golden.losses_and_norms(shape, optimizers_of, tokens, targets, dtype) for dtype in (torch.float32, torch.float64)]
        for what, single, double in zip(('loss', 'grad_norm'), *runs):
            result |= {f'{what}/{name}': single, f'{what}_spread/{name}': ((single - double) / double).abs().cummax(0).values}
    return result


def write_optimizers(folder: str, shapes: Dict[str, FamilyShape]) -> None:
    tensors = {}
    for family, shape in shapes.items():
        prepare(family)
        for name, values in optimizers_of_family(shape).items():
            what, _, optimizer = name.partition('/')
            tensors[f'{what}/{family}/{optimizer}'] = values
            print(family, name, f'{values[0]:.3g} to {values[-1]:.3g}', flush=True)
    make_golden.write(os.path.join(folder, 'family_optimizers.safetensors'), tensors, {'torch': torch.__version__, 'transformers': transformers.__version__})


def prepare(family: str) -> None:
    FamilyShape.positions, FamilyShape.sliding_window = 32 if family == 'gpt2' else 0, 7 if family in WINDOWED else 0
    use(family)


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = os.path.dirname(os.path.abspath(__file__))
    gemma = FamilyShape(layers=6, tied_embeddings=1)
    shapes = {'deepseek_moe': FamilyShape(kv_heads=4), 'deepseek_v2': FamilyShape(kv_heads=4), 'deepseek_v3': FamilyShape(kv_heads=4), 'mixtral': FamilyShape(),
              'qwen2_moe': FamilyShape(), 'qwen3_moe': FamilyShape(), 'gemma2': FamilyShape(layers=3, tied_embeddings=1),
              'gemma3_text': gemma, 'mistral': FamilyShape(), 'qwen2': FamilyShape(),
              'glm4_moe': FamilyShape(), 'gpt_oss': FamilyShape(), 'qwen3': FamilyShape(tied_embeddings=1),
              'smollm3': FamilyShape(layers=5, tied_embeddings=1), 'phi3': FamilyShape(), 'seed_oss': FamilyShape(), 'granite': FamilyShape(tied_embeddings=1),
              'olmo2': FamilyShape(), 'olmo3': FamilyShape(layers=4),
              'gpt2': FamilyShape(kv_heads=4, tied_embeddings=1)}
    for family in sys.argv[1:] or [*shapes, 'family_optimizers']:
        if family == 'family_optimizers':
            write_optimizers(folder, shapes)
            continue
        shape = shapes[family]
        prepare(family)
        path = os.path.join(folder, f'{family}.safetensors')
        tensors = make_golden.golden(shape)
        if family in WITH_ROUTER_BIAS:
            tensors |= {'weight/' + name: ROUTER_BIAS for name in router_biases(shape)}
        metadata = {key: str(value) for key, value in shape._asdict().items() if value is not None}
        metadata |= {'family': family, 'positions': str(shape.positions), 'sliding_window': str(shape.sliding_window),
                     'torch': torch.__version__, 'transformers': transformers.__version__}
        make_golden.write(path, tensors, metadata)
        print(f'{path}: {os.path.getsize(path)} bytes, loss {tensors["loss"][0]:.4f} to {tensors["loss"][-1]:.4f}')


if __name__ == '__main__':
    main()
