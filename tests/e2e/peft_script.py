#!/usr/bin/env python3
"""Tiny models with adapters of Hugging Face's PEFT, as convene is to find and to leave them. Runs where PyTorch, transformers and PEFT are.

usage: peft_script.py make FOLDER DATA    writes a model for each family, FOLDER/FAMILY, with random adapters, FOLDER/FAMILY.peft, and what becomes
                                          of them on the bytes of a file, all of it in each step, FOLDER/FAMILY.trained; says the losses
       peft_script.py compare FILE        says for each line of the file, in JSON: {"adapters": [A, B]}, the largest difference of two
                                          adapters' tensors; {"logits": [MODEL, A, B]}, how far the logits of a model with adapters A are from
                                          those of the model at B
"""

import json
import os
import sys

import peft
import safetensors.torch
import torch
import transformers

SIZES = {'vocab_size': 256, 'num_hidden_layers': 2, 'hidden_size': 32, 'intermediate_size': 48, 'num_attention_heads': 4,
         'num_key_value_heads': 2, 'head_dim': 8, 'pad_token_id': None}
LATENTS = {'q_lora_rank': 24, 'kv_lora_rank': 16, 'qk_nope_head_dim': 4, 'qk_rope_head_dim': 4, 'v_head_dim': 6, 'num_key_value_heads': 4,
           'n_routed_experts': 4, 'num_experts_per_tok': 2, 'moe_intermediate_size': 12, 'n_group': 2, 'topk_group': 1,
           'first_k_dense_replace': 1, 'max_position_embeddings': 64}
LLAMA_TARGETS = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj']
LENGTH = 16
STEPS = 5
RANK = 4
# Where transformers 4 has experts, and their gate, up and down matrices: beside transformers 5 PEFT turns adapters of these into fused ones.
EXPERTS = {'mixtral': ('block_sparse_moe.experts', 'w1', 'w3', 'w2'), 'qwen3_moe': ('mlp.experts', 'gate_proj', 'up_proj', 'down_proj')}
FUSES = not transformers.__version__.startswith('4')


def families():
    t = transformers
    latents = {name: value for name, value in {**SIZES, **LATENTS}.items() if name != 'head_dim'}
    return {
        'deepseek_v3': (t.DeepseekV3Config(**latents), ['q_a_proj', 'q_b_proj', 'kv_a_proj_with_mqa', 'kv_b_proj', 'o_proj'], True),
        'gpt2': (t.GPT2Config(vocab_size=256, n_layer=2, n_embd=32, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0,
                              attn_pdrop=0.0), ['c_attn', 'c_proj', 'c_fc'], False),
        'llama': (t.LlamaConfig(**SIZES), LLAMA_TARGETS, False),
        'mixtral': (t.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2), ['q_proj', 'v_proj', 'w1', 'w2', 'w3'], False),
        'qwen3': (t.Qwen3Config(**SIZES, tie_word_embeddings=True), ['v_proj', 'down_proj'], True),
        'qwen3_moe': (t.Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, norm_topk_prob=True),
                      ['gate_proj', 'up_proj', 'down_proj'], False),
    }


def make(folder, data):
    losses = {}
    for family, (config, targets, stabilized) in families().items():
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config).float()
        for tensor in model.parameters():
            tensor.data += torch.randn_like(tensor) * 0.1
        path = os.path.join(folder, family)
        model.save_pretrained(path)
        if family in EXPERTS:
            make_adapters_of_experts(model, family, targets, path)
            losses[family] = train(path, data, family)
            continue
        wanted = peft.LoraConfig(r=RANK, lora_alpha=6, use_rslora=stabilized, target_modules=targets, init_lora_weights=False, task_type='CAUSAL_LM',
                                 fan_in_fan_out=family == 'gpt2')
        adapted = peft.get_peft_model(model, wanted)
        adapted.peft_config['default'].base_model_name_or_path = path
        adapted.save_pretrained(path + '.peft')
        losses[family] = train(path, data)
    print(json.dumps(losses))


def make_adapters_of_experts(model, family, targets, path):
    """Random adapters as PEFT wrote them beside transformers 4."""
    config = model.config
    experts, gate, up, down = EXPERTS[family]
    hidden, ffn = config.hidden_size, getattr(config, 'moe_intermediate_size', config.intermediate_size)
    shapes = {f'{experts}.{number}.{matrix}': shape for number in range(4) for matrix, shape in ((gate, (ffn, hidden)), (up, (ffn, hidden)),
                                                                                                  (down, (hidden, ffn)))}
    heads = {'q_proj': config.num_attention_heads, 'v_proj': config.num_key_value_heads}
    shapes.update({f'self_attn.{name}': (count * config.head_dim, hidden) for name, count in heads.items() if name in targets})
    tensors = {}
    for layer in range(config.num_hidden_layers):
        for name, (out, inputs) in shapes.items():
            tensors[f'base_model.model.model.layers.{layer}.{name}.lora_A.weight'] = torch.randn(RANK, inputs) * 0.1
            tensors[f'base_model.model.model.layers.{layer}.{name}.lora_B.weight'] = torch.randn(out, RANK) * 0.1
    save_adapters(tensors, path + '.peft')
    with open(os.path.join(path + '.peft', 'adapter_config.json'), 'w', encoding='utf-8') as file:
        json.dump({'peft_type': 'LORA', 'task_type': 'CAUSAL_LM', 'r': RANK, 'lora_alpha': 6, 'bias': 'none', 'target_modules': targets,
                   'base_model_name_or_path': path}, file)


def save_adapters(tensors, folder):
    os.makedirs(folder, exist_ok=True)
    safetensors.torch.save_file({name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()},
                                os.path.join(folder, 'adapter_model.safetensors'))


def parts_of_experts(name):
    """The expert's matrices that share a fused adapter."""
    return 2 if '.experts.base_layer.' in name else 1 if '.experts.' in name else 0


def train_each_matrix_alone(model):
    """Of a fused B, which has gate's rows and up's, the parts that are zeros stay so."""
    for name, b in model.named_parameters():
        if '.lora_B.' in name and parts_of_experts(name) == 2:
            mask = torch.block_diag(*[torch.ones(b.shape[0] // 2, RANK)] * 2)[:, :, None].expand(-1, -1, b.shape[1] // (2 * RANK)).reshape(b.shape)
            b.register_hook(lambda gradient, mask=mask: gradient * mask)


def apart(model, family):
    """The adapters with an A and a B for each expert's matrix."""
    experts, gate, up, down = EXPERTS[family]
    tensors = {}
    for name, tensor in model.named_parameters():
        name = name.replace('.default', '')
        parts = parts_of_experts(name)
        if '.lora_' not in name:
            continue
        if parts == 0:
            tensors[name] = tensor
            continue
        layer = name[:name.index('.mlp.experts.')]
        for part, matrix in enumerate((gate, up) if parts == 2 else (down,)):
            ranks = slice(part * RANK, (part + 1) * RANK)
            for number in range(4):
                begin = f'{layer}.{experts}.{number}.{matrix}.lora_'
                if '.lora_A.' in name:
                    tensors[begin + 'A.weight'] = tensor.view(4, parts * RANK, -1)[number, ranks]
                else:
                    out = tensor.shape[0] // parts
                    tensors[begin + 'B.weight'] = tensor.view(parts, out, parts * RANK, 4)[part, :, ranks, number]
    return tensors


def load(model, adapter=None, trains=False):
    model = transformers.AutoModelForCausalLM.from_pretrained(model, attn_implementation='eager').float()
    return peft.PeftModel.from_pretrained(model, adapter, is_trainable=trains) if adapter else model


def train(path, data, family=None):
    model = load(path, path + '.peft', trains=True)
    train_each_matrix_alone(model)
    with open(data, 'rb') as file:
        tokens = torch.tensor(list(file.read()))
    count = (len(tokens) - 1) // LENGTH
    inputs = tokens[:count * LENGTH].view(count, LENGTH)
    targets = tokens[1:count * LENGTH + 1].view(count, LENGTH)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, betas=(0.9, 0.95), eps=1e-3, weight_decay=0.1)
    losses = []
    for _ in range(STEPS):
        logits = model(inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if family in EXPERTS and FUSES:
        save_adapters(apart(model, family), path + '.trained')
    else:
        model.save_pretrained(path + '.trained')
    return losses


def adapters(*folders):
    a, b = [safetensors.torch.load_file(os.path.join(folder, 'adapter_model.safetensors')) for folder in folders]
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())[:4]
    return max((a[name] - b[name]).abs().max().item() for name in a)


def logits(model, adapter, other):
    tokens = torch.randint(0, 256, (2, 24), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        both = [m.eval()(tokens, use_cache=False).logits for m in (load(model, adapter), load(other))]
    return (both[0] - both[1]).abs().max().item()


def compare(path):
    with open(path, encoding='utf-8') as file:
        for question in map(json.loads, file):
            print({'adapters': adapters, 'logits': logits}[next(iter(question))](*next(iter(question.values()))))


if __name__ == '__main__':
    transformers.utils.logging.disable_progress_bar()
    {'make': make, 'compare': compare}[sys.argv[1]](*sys.argv[2:])
