#!/usr/bin/env python3
"""The golden file of generation: the tokens with which Hugging Face's transformers goes on with some prompts, greedily, with its own cache.

usage: PYTHON_WITH_TORCH_AND_TRANSFORMERS make_generation_golden.py    writes generation.json beside this file, from the weights of the
other golden files; after make_golden.py and make_family_golden.py, whose environment it needs.

For each file's name: "prompts", and what follows each of them under the two settings of "tokens". It prints the least distance between the
largest two scores of a step: the choice is no matter of rounding where that is far above 1e-5.
"""

import json
import os
import struct
from typing import Dict, List, Tuple

import torch
import transformers
from make_family_golden import FamilyShape, fused, model_of, turned

LENGTHS = (1, 19, 5, 11)  # of the prompts; the window of families that have one is 7
NEW_TOKENS = 13
SETTINGS: Dict[str, Dict[str, float]] = {'plain': {}, 'penalty': {'repetition_penalty': 1.3}}


def read(path: str) -> Tuple[Dict[str, str], Dict[str, torch.Tensor]]:
    with open(path, 'rb') as file:
        header = json.loads(file.read(struct.unpack('<Q', file.read(8))[0]))
        data = bytearray(file.read())
    metadata, weights = header.pop('__metadata__'), {}
    for name, item in header.items():
        begin, end = item['data_offsets']
        if name.startswith('weight/'):
            weights[name[len('weight/'):]] = torch.frombuffer(data[begin:end], dtype=torch.float32).reshape(item['shape'])
    return metadata, weights


def load(path: str) -> torch.nn.Module:
    metadata, weights = read(path)
    family = metadata.get('family', 'llama')
    values = {key: type(default)(float(metadata[key])) for key, default in FamilyShape._field_defaults.items() if default is not None}
    shape = FamilyShape(**values)
    FamilyShape.positions, FamilyShape.sliding_window = int(metadata.get('positions', 0)), int(metadata.get('sliding_window', 0))
    if family == 'llama':
        config = transformers.LlamaConfig(vocab_size=shape.vocabulary_size, hidden_size=shape.hidden_size, intermediate_size=shape.ffn_size,
                                          num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
                                          head_dim=shape.head_size, rms_norm_eps=shape.norm_epsilon, rope_theta=shape.rope_theta,
                                          tie_word_embeddings=bool(shape.tied_embeddings))
        model = transformers.LlamaForCausalLM(config)
    else:
        model = model_of(family, shape)
    state = {name: turned(name, weight) for name, weight in fused(family, weights).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {'lm_head.weight'}, (path, missing, unexpected)
    model.tie_weights()
    return model.eval()


def generate(model: torch.nn.Module, prompt: List[int], setting: Dict[str, float]) -> Tuple[List[int], float]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, use_cache=True, max_new_tokens=NEW_TOKENS, eos_token_id=None,
                         pad_token_id=0, output_scores=True, return_dict_in_generate=True, **setting)
    distances = [float(-score[0].topk(2).values.diff()) for score in out.scores]
    return out.sequences[0, len(prompt):].tolist(), min(distances)


def main() -> None:
    torch.set_num_threads(1)
    folder = os.path.dirname(os.path.abspath(__file__))
    result: Dict[str, object] = {'transformers': transformers.__version__}
    for name in ('untied', 'tied', 'qwen2', 'qwen3', 'gpt2', 'mistral', 'gemma2', 'gemma3_text', 'deepseek_v3', 'mixtral', 'qwen3_moe', 'deepseek_moe',
                 'gpt_oss', 'smollm3', 'phi3', 'granite', 'olmo3'):
        model = load(os.path.join(folder, name + '.safetensors'))
        generator = torch.Generator().manual_seed(5)
        prompts = [torch.randint(0, 64, (length,), generator=generator).tolist() for length in LENGTHS]
        made = {key: [generate(model, prompt, setting) for prompt in prompts] for key, setting in SETTINGS.items()}
        result[name] = {'prompts': prompts, 'tokens': {key: [tokens for tokens, _ in rows] for key, rows in made.items()}}
        least = min(distance for rows in made.values() for _, distance in rows)
        print(f'{name}: least distance {least:.1e}')
    with open(os.path.join(folder, 'generation.json'), 'w', encoding='utf-8') as file:
        file.write(json.dumps(result, indent=1) + '\n')


if __name__ == '__main__':
    main()
