#!/usr/bin/env python3
"""EleutherAI's lm-evaluation-harness asks a server of ours; transformers computes the same. Runs where PyTorch, transformers and lm_eval are.

usage: lm_eval_script.py make FOLDER                writes a tiny Llama with a tokenizer
       lm_eval_script.py ask ADDRESS FOLDER WORK    a line of JSON: how many log-probabilities, how far the farthest of the harness is from that
                                                    of transformers, and whether all "is it the likeliest?" are the same; WORK is an empty folder
"""

import json
import os
import sys

import torch
import transformers

QUESTIONS = [
    {'question': 'The capital of France is', 'endings': ['Paris', 'a river', 'London, near the sea']},
    {'question': 'Two and two are', 'endings': ['four', 'five — or so', 'ünëven']},
    {'question': 'Water is', 'endings': ['wet', 'a very long word that nobody ever said before in a sentence as long as this one is']},
]
TEXTS = ['The cat sat on the mat. ' * 9, 'Bär, 猫 and 🐈 are animals; so is the dog.\n\nThe end.']


def make(folder):
    import tokenizers
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=320, special_tokens=['<|end|>'], show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model.train_from_iterator(TEXTS + [one['question'] for one in QUESTIONS], trainer)
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=model, eos_token='<|end|>')
    words.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=len(words), num_hidden_layers=2, hidden_size=32, intermediate_size=48, num_attention_heads=4,
                                      num_key_value_heads=2, eos_token_id=words.eos_token_id, bos_token_id=None, initializer_range=0.3)
    transformers.LlamaForCausalLM(config).float().save_pretrained(folder)


def tasks(work):
    """A YAML file for each task (JSON is YAML)."""
    data = {'choices': QUESTIONS, 'text': [{'text': text} for text in TEXTS]}
    for name, lines in data.items():
        with open(os.path.join(work, f'{name}.jsonl'), 'w', encoding='utf-8') as file:
            file.writelines(json.dumps(line) + '\n' for line in lines)
    kinds = {
        'choices': {'output_type': 'multiple_choice', 'doc_to_text': '{{question}}', 'doc_to_choice': '{{endings}}', 'doc_to_target': 0},
        'text': {'output_type': 'loglikelihood_rolling', 'doc_to_text': '', 'doc_to_target': '{{text}}',
                 'metric_list': [{'metric': 'word_perplexity'}, {'metric': 'bits_per_byte'}]},
    }
    for name, kind in kinds.items():
        task = {'task': f'convene_{name}', 'dataset_path': 'json', 'dataset_kwargs': {'data_files': {'test': os.path.join(work, f'{name}.jsonl')}},
                'test_split': 'test', **kind}
        with open(os.path.join(work, f'{name}.yaml'), 'w', encoding='utf-8') as file:
            json.dump(task, file)
    return [f'convene_{name}' for name in kinds]


def scored(model, context, continuation):
    """The sum of the continuation's log-probabilities, and whether each of its tokens is the likeliest."""
    with torch.no_grad():
        logits = model(torch.tensor([context + continuation])).logits[0, len(context) - 1:-1].double().log_softmax(-1)
    chosen = torch.tensor(continuation)
    return logits.gather(1, chosen[:, None]).sum().item(), bool((logits.argmax(-1) == chosen).all())


def ask(address, folder, work):
    os.environ.update(HF_HOME=os.path.join(work, 'cache'), HF_HUB_OFFLINE='1', HF_DATASETS_OFFLINE='1')
    import lm_eval
    arguments = {'model': folder, 'base_url': f'{address}/completions', 'tokenizer': folder, 'tokenizer_backend': 'huggingface'}
    done = lm_eval.simple_evaluate(
        model='local-completions', model_args=arguments, tasks=tasks(work), bootstrap_iters=0, batch_size=2,
        task_manager=lm_eval.tasks.TaskManager(include_path=work, include_defaults=False))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).float().eval()
    words = transformers.AutoTokenizer.from_pretrained(folder)
    farthest, same, count = 0., True, 0
    for sample in done['samples']['convene_choices']:
        for ending, (response,) in zip(sample['doc']['endings'], sample['resps']):
            question = words.encode(sample['doc']['question'], add_special_tokens=False)
            both = words.encode(sample['doc']['question'] + ' ' + ending, add_special_tokens=False)
            total, greedy = scored(model, question, both[len(question):])
            farthest = max(farthest, abs(total - response[0]))
            same = same and greedy == response[1]
            count += 1
    first = words.bos_token_id if words.bos_token_id is not None else words.eos_token_id
    for sample in done['samples']['convene_text']:
        total, _ = scored(model, [first], words.encode(sample['doc']['text'], add_special_tokens=False))
        farthest = max(farthest, abs(total - sample['resps'][0][0]))
        count += 1
    print(json.dumps({'scores': count, 'farthest': farthest, 'same': same, 'bits': done['results']['convene_text']['bits_per_byte,none']}))


if __name__ == '__main__':
    {'make': make, 'ask': ask}[sys.argv[1]](*sys.argv[2:])
