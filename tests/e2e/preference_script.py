#!/usr/bin/env python3
"""Direct preference optimization in PyTorch, on a tiny Llama of transformers; runs where both are.

usage: preference_script.py FOLDER PAIRS STEPS    writes the model to FOLDER and, behind the steps, to FOLDER/trained; a line of JSON: of each step
                                                  with all pairs of PAIRS (JSON lines: prompt, chosen, rejected; a token is a byte) by Adam the
                                                  loss, the gradient's norm, and the rewards: the share of pairs that are right, and the mean margin
"""

import copy
import json
import sys

import torch
import transformers

BETA = 0.3


def log_probability(model, prompt, answer):
    """Of the answer's bytes and the document's end behind the prompt's bytes."""
    ids = torch.tensor([list((prompt + answer).encode()) + [0]])
    logits = model(ids).logits[0, :-1].log_softmax(-1)
    first = len(prompt.encode())
    return logits.gather(1, ids[0, 1:, None])[first - 1:].sum()


def main():
    folder, pairs, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.manual_seed(5)
    config = transformers.LlamaConfig(vocab_size=256, num_hidden_layers=2, hidden_size=32, intermediate_size=48, num_attention_heads=4,
                                      num_key_value_heads=2, eos_token_id=None, bos_token_id=None, initializer_range=0.3)
    model = transformers.LlamaForCausalLM(config).float()
    model.save_pretrained(folder)
    reference = copy.deepcopy(model).eval()
    with open(pairs, encoding='utf-8') as file:
        pairs = [json.loads(line) for line in file]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.95), eps=1e-3)
    said = {'losses': [], 'norms': [], 'right': [], 'margins': []}
    for _ in range(steps):
        losses, margins = [], []
        for pair in pairs:
            ratio = {}
            for side in ('chosen', 'rejected'):
                with torch.no_grad():
                    before = log_probability(reference, pair['prompt'], pair[side])
                ratio[side] = log_probability(model, pair['prompt'], pair[side]) - before
            margins.append(BETA * (ratio['chosen'] - ratio['rejected']))
            losses.append(-torch.nn.functional.logsigmoid(margins[-1]))
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        said['losses'].append(loss.item())
        said['right'].append(sum(margin.item() > 0 for margin in margins) / len(margins))
        said['margins'].append(torch.stack(margins).mean().item())
        said['norms'].append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item())
        optimizer.step()
    model.save_pretrained(folder + '/trained')
    print(json.dumps(said))


if __name__ == '__main__':
    main()
