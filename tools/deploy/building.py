"""Shared by the commands that pack Convene: they build its programs, and copy them and the libraries that they need."""

import os
import shutil
import subprocess
import sys
import tempfile
from typing import Dict, Iterable, List

import bundling
import packaging_rules

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAMS = {'convene': '//launcher:convene', 'convene-train': '//worker_runtime/trainer:convene-train'}
LIMIT_BYTES = 50 * 1000 * 1000
CUDA_COMPILER = '/usr/local/cuda/bin/nvcc'


class Failure(Exception):
    """The package cannot be made; the text says why."""


def output_of(*command: str, **environment: str) -> str:
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode != 0:
        raise Failure(f'{" ".join(command)[:200]} ended with {done.returncode}:\n{done.stderr[-2000:]}')
    return done.stdout


def require(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        raise Failure(f'no {", ".join(missing)}: tools/install_packages deploy')


def ready(folder: str, *tools: str) -> str:
    """Before the build: the folder for the package, made where it is absent, as a whole path. Failure when no file can be made there, or a tool
    is missing."""
    require(*tools)
    folder = os.path.abspath(folder)
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise Failure(f'no file can be made in the folder {folder}: {error.strerror}. Name another one') from error


def builds_for_cuda(without_cuda: bool, package: str) -> bool:
    """Whether the trainer is built for GPUs; says on stdout when it is not."""
    if os.path.exists(CUDA_COMPILER) and not without_cuda:
        return True
    why = 'asked to leave CUDA out' if without_cuda else 'no CUDA toolkit at /usr/local/cuda'
    print(f'{package}: {why}: this {package} trains on CPUs only')
    return False


def build(labels: Iterable[str], config: List[str]) -> None:
    command = ['bazel', 'build', '--curses=no', '--show_progress_rate_limit=20', *config, *labels]
    if subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr).returncode != 0:
        raise Failure('the build failed; its first error is above')


def built_path(bazel_bin: str, label: str) -> str:
    return os.path.join(bazel_bin, label[2:].replace(':', '/'))


def build_programs(with_cuda: bool, *more_labels: str) -> str:
    """Builds the programs and `more_labels`; returns the folder of what is built. Programs alone have code for every card. Tests hold the kernels again
    and again, and the package must stay small: with `more_labels` all of it is for the one card of Bazel's `cuda_archs`."""
    config = ['--config=cuda'] if with_cuda else []
    if with_cuda and not more_labels:
        config += ['--config=every_card']
    build([*PROGRAMS.values(), *more_labels], config)
    return output_of('bazel', 'info', *config, 'bazel-bin').strip()


def built_programs(with_cuda: bool) -> Dict[str, str]:
    """Builds the programs; returns name -> path."""
    bazel_bin = build_programs(with_cuda)
    return {name: built_path(bazel_bin, label) for name, label in PROGRAMS.items()}


def read_elf(path: str) -> bundling.Elf:
    return bundling.parse_readelf(output_of('readelf', '-dVW', path))


def place(source: str, target: str, path: str) -> None:
    """Copies a program or library without its debug information, and tells it where its libraries are."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(source, target)
    os.chmod(target, 0o755)
    output_of('strip', '--strip-debug' if target.endswith('.so') or '.so.' in target else '--strip-all', target)
    output_of('patchelf', '--set-rpath', path, target)


def needed_libraries(sources: Iterable[str]) -> Dict[str, str]:
    """Library -> path of all that these programs need and that no machine surely has."""
    return bundling.libraries_to_pack(output_of('ldd', source) for source in sources)


def copy_licences(folder: str, libraries: Iterable[str]) -> List[str]:
    """The copyright file of each Debian package of which these libraries, or the programs themselves, hold something."""
    packages = set(bundling.STATICALLY_LINKED)
    for path in libraries:
        # dpkg knows a file by the path it was installed under, which the merged /usr may spell differently.
        spellings = {os.path.realpath(path), os.path.realpath(path).replace('/usr/lib', '/lib', 1), path}
        done = subprocess.run(['dpkg-query', '-S', *spellings], check=False, capture_output=True, text=True)
        owners = {line.split(':')[0] for line in done.stdout.splitlines()}
        if not owners:
            raise Failure(f'no Debian package owns {path}: whose licence is it under?')
        packages |= owners
    os.makedirs(folder)
    for package in sorted(packages):
        shutil.copyfile(f'/usr/share/doc/{package}/copyright', f'{folder}/{package}')
    return sorted(packages)


def read_version(program: str) -> packaging_rules.Version:
    """The version that the built launcher says, with this checkout's commit."""
    base = output_of(program, '--version').split()[-1]
    commit, seconds = output_of('git', 'log', '-1', '--format=%H %ct').split()
    return packaging_rules.Version(
        base=base, commit=commit, seconds=int(seconds), count=int(output_of('git', 'rev-list', '--count', 'HEAD')),
        changed=bool(output_of('git', 'status', '--porcelain').strip()),
        released=f'v{base}' in output_of('git', 'tag', '--points-at', 'HEAD').split())


def check_size(path: str, what: str) -> int:
    size = os.path.getsize(path)
    if size > LIMIT_BYTES:
        os.remove(path)
        raise Failure(f'the {what} has {size / 1e6:.1f} MB, more than {LIMIT_BYTES / 1e6:.0f}: what is new in the libraries or the programs?')
    return size
