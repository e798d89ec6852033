#!/usr/bin/env python3
"""Starting and ending a job of two empty workers: `convene run` against torchrun, in turns, in one run.

usage: tests/bench/launch_bench.py [--runs N] [--convene PATH] [--without-torch]
Prints the medians of wall time and of the peak resident memory (of the largest process), and the ratios. PyTorch comes
from PyPI into ~/.cache/convene/venv; CUDA's libraries come from /usr/local/cuda where that is installed.
"""

import argparse
import glob
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import Dict, List, NamedTuple

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VENV = os.path.expanduser('~/.cache/convene/venv')
CUDA_LIBRARIES = '/usr/local/cuda/lib64'
# torch and what `import torch` needs; with the toolkit installed its own 2.5 GB of nvidia-* wheels are left out, but
# for the libraries that the toolkit does not have, or has too old.
TORCH_PACKAGES = ['torch', 'typing_extensions', 'sympy', 'mpmath', 'networkx', 'jinja2', 'markupsafe', 'filelock', 'fsspec', 'numpy',
                  'setuptools']
EXTRA_WHEELS = ['nvidia-nccl-cu13', 'nvidia-cusparselt-cu13', 'nvidia-cufile', 'nvidia-nvshmem-cu13']
JOB = ['--standalone', '--nproc-per-node', '2']
TRUE = '/bin/true'


class Sample(NamedTuple):
    seconds: float
    peak_mib: float


def torch_environment() -> Dict[str, str]:
    # The wheels' libraries first: a new PyTorch wants a newer NCCL than the toolkit's.
    folders = glob.glob(f'{VENV}/lib/python3*/site-packages/nvidia/*/lib') + [CUDA_LIBRARIES]
    return {**os.environ, 'LD_LIBRARY_PATH': ':'.join(folders)}


def torch_version() -> str:
    """'' where torch cannot be imported."""
    command = [f'{VENV}/bin/python', '-c', 'import torch; print(torch.__version__)']
    try:
        return subprocess.run(command, env=torch_environment(), capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ''


def install_torch() -> str:
    version = torch_version()
    if version:
        return version
    print(f'installing PyTorch into {VENV} (once)', flush=True)
    if not os.path.exists(f'{VENV}/bin/pip') and subprocess.run([sys.executable, '-m', 'venv', VENV], check=False).returncode != 0:
        sys.exit('launch_bench: this Python cannot make a virtual environment: apt-get install python3-venv')
    pip = [f'{VENV}/bin/pip', 'install', '--quiet', '--disable-pip-version-check']
    if os.path.isdir(CUDA_LIBRARIES):
        subprocess.run([*pip, '--no-deps', *TORCH_PACKAGES, *EXTRA_WHEELS], check=True)
    else:
        subprocess.run([*pip, 'torch', 'numpy'], check=True)
    version = torch_version()
    if not version:
        sys.exit(f'launch_bench: PyTorch is installed but `import torch` fails: try {VENV}/bin/python -c "import torch"')
    return version


def measure(command: List[str], environment: Dict[str, str]) -> Sample:
    started = time.monotonic()
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    errors = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)  # the child's and its children's peak, the larger of them
    seconds = time.monotonic() - started
    if status != 0:
        sys.exit(f'launch_bench: {" ".join(command)} ended with {os.waitstatus_to_exitcode(status)}:\n{errors.decode()[-2000:]}')
    return Sample(seconds, usage.ru_maxrss / 1024)


def build_convene() -> str:
    subprocess.run(['bazel', 'build', '//launcher:convene'], cwd=ROOT, check=True)
    bazel_bin = subprocess.run(['bazel', 'info', 'bazel-bin'], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    return os.path.join(bazel_bin, 'launcher/convene')


def median(samples: List[Sample]) -> Sample:
    return Sample(statistics.median(s.seconds for s in samples), statistics.median(s.peak_mib for s in samples))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--runs', type=int, default=11)
    parser.add_argument('--convene', help='the program to measure (default: builds //launcher:convene)')
    parser.add_argument('--without-torch', action='store_true', help='measure convene alone')
    arguments = parser.parse_args()

    commands = {'convene run': ([arguments.convene or build_convene(), 'run', *JOB, TRUE], dict(os.environ))}
    if not arguments.without_torch:
        version = install_torch()
        commands[f'torchrun {version}'] = ([f'{VENV}/bin/torchrun', *JOB, '--no-python', TRUE], torch_environment())

    samples: Dict[str, List[Sample]] = {name: [] for name in commands}
    for number in range(arguments.runs + 1):
        for name, (command, environment) in commands.items():
            sample = measure(command, environment)
            if number > 0:  # the first of each warms the page cache
                samples[name].append(sample)

    print(f'{platform.node()}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {arguments.runs} runs each, in turns; medians')
    for name, of_name in samples.items():
        fastest, slowest = min(s.seconds for s in of_name), max(s.seconds for s in of_name)
        middle = median(of_name)
        print(f'{name:24} {middle.seconds * 1000:9.1f} ms ({fastest * 1000:.1f}-{slowest * 1000:.1f})  {middle.peak_mib:7.1f} MiB')
    if len(samples) == 2:
        ours, theirs = (median(of_name) for of_name in samples.values())
        print(f'convene: 1/{theirs.seconds / ours.seconds:.0f} of the time (goal 1/50), 1/{theirs.peak_mib / ours.peak_mib:.0f} of the memory (goal 1/10)')
    return 0


if __name__ == '__main__':
    sys.exit(main())
