#!/usr/bin/env python3
"""The cached virtual environment with PyTorch that tests and benchmarks use: ~/.cache/convene/venv.

usage: tools/torch_environment [--quiet | --transformers | --libraries]
Makes it when it is not there (about 1 GB from PyPI, once; needs python3-venv) and prints how to use it. Exit status: 0 PyTorch can be
imported; 69 it cannot be had here, the last line says why. With --transformers Hugging Face's transformers, PEFT and PyTorch Lightning come
into it as well; with --libraries the same and other programs' clients, such as OpenAI's (openai), and beside it, each in a folder of its own, what
would replace a package there: an older transformers, lm-evaluation-harness, a peer of benchmarks.

PyPI's wheel is the CUDA build. It imports on a machine without a GPU once the loader finds CUDA's libraries: LD_LIBRARY_PATH names
the folders of NVIDIA's wheels, then /usr/local/cuda/lib64. With the toolkit installed there, its own 2.5 GB of nvidia-* wheels are left out,
but for the libraries that the toolkit does not have, or has too old; without it pip takes them all.
"""

import fcntl
import glob
import os
import pwd
import shutil
import subprocess
import sys
from typing import Dict

# The folder is not $HOME, because Bazel gives tests another one.
CACHE = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, '.cache/convene')
VENV = os.path.join(CACHE, 'venv')
PYTHON = os.path.join(VENV, 'bin/python')
TORCHRUN = os.path.join(VENV, 'bin/torchrun')
CUDA_LIBRARIES = '/usr/local/cuda/lib64'
# torch and what `import torch` needs.
TORCH_PACKAGES = ['torch', 'typing_extensions', 'sympy', 'mpmath', 'networkx', 'jinja2', 'markupsafe', 'filelock', 'fsspec', 'numpy',
                  'setuptools']
EXTRA_WHEELS = ['nvidia-nccl-cu13', 'nvidia-cusparselt-cu13', 'nvidia-cufile', 'nvidia-nvshmem-cu13']
TRANSFORMERS = 'transformers==5.23.0'
# Without what they need: that comes with PyTorch and transformers.
ADDITIONS = ['peft==0.21.2', 'accelerate==1.15.0', 'psutil==7.2.2', 'pytorch-lightning==2.6.6', 'lightning-utilities==0.15.3', 'torchmetrics==1.9.0']
LIBRARIES = ['openai==3.57.0']
# In folders of their own, for PYTHONPATH.
TRANSFORMERS_4 = os.path.join(CACHE, 'transformers4')
OLDER = ['transformers==4.57.6']
LM_EVAL = os.path.join(CACHE, 'lm_eval')
HARNESS = ['lm_eval[api]==0.4.13']
# NVRx, a peer of benchmarks. Not in VENV, because PyTorch takes nvidia-ml-py where it finds it; the rest of its needs is in VENV.
NVRX = os.path.join(CACHE, 'nvrx')
PEERS = ['nvidia-resiliency-ext==0.4.1', 'defusedxml==0.7.1', 'nvidia-ml-py==13.615.71', 'psutil==7.2.2']
INSTALL_LIMIT_S = 15 * 60
IMPORT_LIMIT_S = 120


class NoTorch(Exception):
    """PyTorch cannot be had here; the text says why and what to do."""


def torch_environment() -> Dict[str, str]:
    """This process's environment, and where CUDA's libraries are. The wheels' first: a new PyTorch wants a newer NCCL than the toolkit's."""
    folders = glob.glob(f'{VENV}/lib/python3*/site-packages/nvidia/*/lib') + [CUDA_LIBRARIES]
    return {**os.environ, 'LD_LIBRARY_PATH': ':'.join(folders)}


def torch_version() -> str:
    """'' where torch cannot be imported."""
    command = [PYTHON, '-c', 'import torch; print(torch.__version__)']
    try:
        done = subprocess.run(command, env=torch_environment(), capture_output=True, text=True, check=True, timeout=IMPORT_LIMIT_S)
    except (OSError, subprocess.SubprocessError):
        return ''
    return done.stdout.strip()


def _run(what: str, command) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise NoTorch(f'{what}: not done after {INSTALL_LIMIT_S} s') from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ['no word of why']
        raise NoTorch(f'{what}: {lines[-1]}')


def install_torch() -> str:
    """PyTorch's version, after making the environment where that is needed. Raises NoTorch."""
    os.makedirs(CACHE, exist_ok=True)
    with open(os.path.join(CACHE, 'venv.lock'), 'w', encoding='ascii') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two checkouts may check at once
        version = torch_version()
        if version:
            return version
        print(f'installing PyTorch into {VENV} (once)', flush=True)
        if not os.path.exists(f'{VENV}/bin/pip'):
            _run('this Python cannot make a virtual environment (apt-get install python3-venv)', [sys.executable, '-m', 'venv', VENV])
        pip = [f'{VENV}/bin/pip', 'install', '--quiet', '--disable-pip-version-check', '--retries=1', '--timeout=15']
        if os.path.isdir(CUDA_LIBRARIES):
            _run('pip install', [*pip, '--no-deps', *TORCH_PACKAGES, *EXTRA_WHEELS])
        else:
            _run('pip install', [*pip, 'torch', 'numpy'])
        version = torch_version()
        if not version:
            raise NoTorch(f'PyTorch is installed but `import torch` fails: try {PYTHON} -c "import torch"')
        return version


def install_transformers() -> str:
    """The version of Hugging Face's transformers, which comes with PEFT and Lightning, and which only some tests need. After install_torch. Raises NoTorch."""
    command = [PYTHON, '-c', 'import peft, pytorch_lightning, transformers; print(transformers.__version__)']
    with open(os.path.join(CACHE, 'venv.lock'), 'w', encoding='ascii') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if subprocess.run(command, env=torch_environment(), capture_output=True, check=False, timeout=IMPORT_LIMIT_S).returncode != 0:
            print(f'installing transformers into {VENV} (once)', flush=True)
            pip = [f'{VENV}/bin/pip', 'install', '--quiet', '--disable-pip-version-check', '--retries=1', '--timeout=15']
            _run('pip install', [*pip, TRANSFORMERS])
            _run('pip install', [*pip, '--no-deps', *ADDITIONS])
        done = subprocess.run(command, env=torch_environment(), capture_output=True, text=True, check=False, timeout=IMPORT_LIMIT_S)
    if done.returncode != 0:
        raise NoTorch(f'transformers is installed but cannot be imported: try {PYTHON} -c "import peft, pytorch_lightning, transformers"')
    return done.stdout.strip()


def _install_beside(pip, folder: str, *arguments: str) -> None:
    """Packages in a folder of their own, which is there whole or not at all. A list of what is in it tells whether it is up to date."""
    content = os.path.join(folder, 'installed.txt')
    if os.path.exists(content):
        with open(content, encoding='ascii') as file:
            if file.read().split() == list(arguments):
                return
    part = folder + '.part'
    shutil.rmtree(part, ignore_errors=True)
    print(f'installing {" ".join(arguments)} into {folder} (once)', flush=True)
    _run('pip install', [*pip, '--target', part, *arguments])
    with open(os.path.join(part, 'installed.txt'), 'w', encoding='ascii') as file:
        file.write('\n'.join(arguments) + '\n')
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(part, folder)


def install_libraries() -> None:
    """Clients of other programs, an older transformers, and peers of benchmarks. After install_torch. Raises NoTorch."""
    with open(os.path.join(CACHE, 'venv.lock'), 'w', encoding='ascii') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pip = [f'{VENV}/bin/pip', 'install', '--quiet', '--disable-pip-version-check', '--retries=1', '--timeout=15']
        _run('pip install', [*pip, *LIBRARIES])
        _install_beside(pip, TRANSFORMERS_4, *OLDER)
        _install_beside(pip, LM_EVAL, *HARNESS)
        _install_beside(pip, NVRX, '--no-deps', *PEERS)


def main() -> int:
    arguments = sys.argv[1:]
    if arguments not in ([], ['--quiet'], ['--transformers'], ['--libraries']):
        print(__doc__.strip())
        return 0 if arguments in (['--help'], ['-h']) else 64
    try:
        version = install_torch()
    except NoTorch as error:
        print(f'torch_environment: no PyTorch: {error}; tests that need it are skipped')
        return 69
    print(f'PyTorch {version} in {VENV}')
    if arguments in (['--transformers'], ['--libraries']):  # the libraries' scripts import it
        try:
            print(f'transformers {install_transformers()} and {", ".join(ADDITIONS)}')
        except NoTorch as error:
            print(f'torch_environment: {error}')
            return 69
    if arguments == ['--libraries']:
        try:
            install_libraries()
        except NoTorch as error:
            print(f'torch_environment: {error}')
            return 69
        print(', '.join([*LIBRARIES, *OLDER, *HARNESS, *PEERS]))
    if not arguments:
        print(f'    export LD_LIBRARY_PATH={torch_environment()["LD_LIBRARY_PATH"]}\n'
              f'    {PYTHON} -c "import torch"')
    return 0


if __name__ == '__main__':
    sys.exit(main())
