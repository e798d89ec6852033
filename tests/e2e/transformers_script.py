#!/usr/bin/env python3
"""Tiny models of Hugging Face's transformers, through convene and back. Runs where PyTorch and transformers are.

usage: transformers_script.py make FOLDER        writes a folder for each family, FOLDER/FAMILY, in float32
       transformers_script.py compare A B ...    of each pair a line of JSON: both load without a word; how far their logits are apart, and
                                                 whether their tensors are the same
       transformers_script.py generate FILE N A ...    of each folder a line of JSON: the N ids that follow each list of ids in the JSON file,
                                                 greedily, and the least distance between the best two scores of a step
       transformers_script.py choices FOLDER FILE    writes questions with endings, and tells how many the model answers right
"""

import contextlib
import io
import json
import logging
import os
import struct
import sys
import warnings

import torch
import transformers

V4 = transformers.__version__.startswith('4')
SIZES = {'vocab_size': 256, 'num_hidden_layers': 3, 'hidden_size': 32, 'intermediate_size': 48, 'num_attention_heads': 4,
         'num_key_value_heads': 2, 'head_dim': 8, 'pad_token_id': None, 'bos_token_id': 0, 'eos_token_id': 0}
LLAMA3 = {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0, 'original_max_position_embeddings': 16}
YARN = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16, 'beta_fast': 4.0, 'beta_slow': 1.0, 'mscale': 1.0,
        'mscale_all_dim': 0.5}
UNROUNDED = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16, 'beta_fast': 4.0, 'beta_slow': 1.0, 'truncate': False}
SCALED = {'rope_type': 'yarn', 'factor': 2.0, 'original_max_position_embeddings': 20, 'attention_factor': 1.3}
LATENTS = {'q_lora_rank': 24, 'kv_lora_rank': 16, 'qk_nope_head_dim': 4, 'qk_rope_head_dim': 4, 'v_head_dim': 6, 'num_key_value_heads': 4,
           'n_routed_experts': 4, 'num_experts_per_tok': 2, 'moe_intermediate_size': 12, 'n_group': 2, 'topk_group': 1,
           'first_k_dense_replace': 1, 'max_position_embeddings': 64}
EXPERTS = {'num_experts_per_tok': 2, 'moe_intermediate_size': 12}
PARTIAL = {'rope_theta': 1e6, 'partial_rotary_factor': 0.5} if V4 else {
    'rope_parameters': {'rope_type': 'default', 'rope_theta': 1e6, 'partial_rotary_factor': 0.5}}


def ropes(theta, scaling):
    """Both versions' spelling of the same."""
    return {'rope_theta': theta, 'rope_scaling': scaling} if V4 else {'rope_parameters': {**scaling, 'rope_theta': theta}}


def olmo3_ropes():
    """Both versions' spelling of scaled positions of the layers without a window alone."""
    return ropes(5e5, SCALED) if V4 else {'rope_parameters': {'sliding_attention': {'rope_type': 'default', 'rope_theta': 5e5},
                                                              'full_attention': {**SCALED, 'rope_theta': 5e5}}}


def configs():
    t = transformers
    latents = {name: value for name, value in {**SIZES, **LATENTS}.items() if name != 'head_dim'}
    return {
        'deepseek_v2': t.DeepseekV2Config(**{**latents, 'q_lora_rank': None}, topk_method='group_limited_greedy', n_shared_experts=2,
                                          routed_scaling_factor=2.5, **ropes(1e4, YARN)),
        'deepseek_v3': t.DeepseekV3Config(**latents, **ropes(1e4, YARN)),
        'gemma2': t.Gemma2Config(**SIZES, sliding_window=7, query_pre_attn_scalar=20),
        'gemma3_text': t.Gemma3TextConfig(**{**SIZES, 'num_hidden_layers': 6}, sliding_window=7, query_pre_attn_scalar=20),
        'glm4_moe': t.Glm4MoeConfig(**SIZES, **EXPERTS, attention_bias=True, n_group=2, topk_group=1, first_k_dense_replace=1, n_routed_experts=4, **PARTIAL),
        'gpt_oss': t.GptOssConfig(**SIZES, sliding_window=7, max_position_embeddings=64, num_local_experts=4, num_experts_per_tok=2, **ropes(1.5e5, UNROUNDED)),
        'gpt2': t.GPT2Config(vocab_size=256, n_layer=3, n_embd=32, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0),
        'granite': t.GraniteConfig(**SIZES, embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.3, logits_scaling=2.5),
        'llama': t.LlamaConfig(**SIZES, **ropes(5e5, LLAMA3)),
        'mistral': t.MistralConfig(**SIZES, sliding_window=7),
        'mixtral': t.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
        'olmo2': t.Olmo2Config(**SIZES),
        'olmo3': t.Olmo3Config(**{**SIZES, 'num_hidden_layers': 4}, sliding_window=7, max_position_embeddings=40, **olmo3_ropes()),
        'phi3': t.Phi3Config(**SIZES, sliding_window=7, **PARTIAL),
        'qwen2': t.Qwen2Config(**SIZES, tie_word_embeddings=True),
        'qwen2_moe': t.Qwen2MoeConfig(**SIZES, **EXPERTS, num_experts=4, shared_expert_intermediate_size=20),
        'qwen3': t.Qwen3Config(**SIZES, tie_word_embeddings=True, max_position_embeddings=40, **ropes(1e6, SCALED)),
        'qwen3_moe': t.Qwen3MoeConfig(**SIZES, **EXPERTS, num_experts=4, norm_topk_prob=True),
        'seed_oss': t.SeedOssConfig(**SIZES),
        'smollm3': t.SmolLM3Config(**{**SIZES, 'num_hidden_layers': 5}, tie_word_embeddings=True),
    }


def make(folder):
    for family, config in configs().items():
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config).float()
        for tensor in [*model.parameters(), *(b for name, b in model.named_buffers() if 'correction_bias' in name)]:
            tensor.data += torch.randn_like(tensor) * 0.1
        model.save_pretrained(os.path.join(folder, family))


def load(path):
    """The model; any word of the library's beside its progress bars is an error."""
    said = io.StringIO()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.get_logger('transformers').addHandler(logging.StreamHandler(said))
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(said):
        warnings.simplefilter('always')
        model, info = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, attn_implementation='eager')
    words = said.getvalue() + ''.join(str(warning.message) for warning in caught)
    lost = {key: list(names) for key, names in info.items() if names}
    if words.strip() or lost:
        sys.exit(f'{path}: {words} {lost}')
    return model.float().eval()


def compare(*paths):
    tokens = torch.randint(0, 256, (2, 24), generator=torch.Generator().manual_seed(3))
    for pair in zip(paths[::2], paths[1::2]):
        models = [load(path) for path in pair]
        with torch.no_grad():
            logits = [model(tokens, use_cache=False).logits for model in models]
        states = [model.state_dict() for model in models]
        same = states[0].keys() == states[1].keys() and all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        print(json.dumps({'logits': (logits[0] - logits[1]).abs().max().item(), 'same': same}))


def generate(path, new_tokens, *folders):
    with open(path, encoding='ascii') as file:
        prompts = json.load(file)
    for folder in folders:
        model, said, distances = load(folder), [], []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=int(new_tokens), eos_token_id=None, pad_token_id=0,
                                 output_scores=True, return_dict_in_generate=True)
            said.append(out.sequences[0, len(prompt):].tolist())
            distances += [float(-score[0].topk(2).values.diff()) for score in out.scores]
        print(json.dumps({'tokens': said, 'distance': min(distances)}))


def questions():
    """60 questions of random tokens with endings of unlike lengths."""
    numbers = torch.Generator().manual_seed(9)

    def draw(least, most):
        return int(torch.randint(least, most, (1,), generator=numbers))
    return [([draw(0, 256) for _ in range(draw(1, 9))], [[draw(0, 256) for _ in range(draw(1, 5))] for _ in range(4)], draw(0, 4)) for _ in range(60)]


def write_choices(path):
    """llm.c's file of them (dev/data/data_common.py, write_evalfile)."""
    numbers = []
    for index, (context, endings, right) in enumerate(questions()):
        body = [index, right, len(endings), len(context), *context]
        for ending in endings:
            body += [len(ending), *ending]
        numbers += [65535, 2 * (len(body) + 2), *body]
    with open(path, 'wb') as file:
        file.write(struct.pack('<256i', 20240522, 1, 60, 100, *[0] * 252) + struct.pack(f'<{len(numbers)}H', *numbers))


def choices(folder, path):
    """Writes the file, and says how many of its questions the model answers right: by the loss of an ending, and by its mean."""
    write_choices(path)
    model, right_by_sum, right_by_mean = load(folder), 0, 0
    for context, endings, right in questions():
        losses = []
        for ending in endings:
            tokens = torch.tensor([context + ending])
            with torch.no_grad():
                rows = model(tokens, use_cache=False).logits[0, len(context) - 1:-1].log_softmax(-1)
            losses.append(-rows[range(len(ending)), ending].sum().item())
        means = [loss / len(ending) for loss, ending in zip(losses, endings)]
        right_by_sum += losses.index(min(losses)) == right
        right_by_mean += means.index(min(means)) == right
    print(json.dumps({'acc': right_by_sum / 60, 'acc_norm': right_by_mean / 60}))


if __name__ == '__main__':
    {'make': make, 'compare': compare, 'generate': generate, 'choices': choices}[sys.argv[1]](*sys.argv[2:])
