"""Decides what stands in the .deb and in the wheel: versions, tags, run paths, the control files. PURE: no side effects."""

import base64
import hashlib
import re
import textwrap
from typing import Dict, Iterable, List, NamedTuple, Tuple

import bundling

SUMMARY = "launcher, rendezvous daemon and trainer for distributed training"
DESCRIPTION = ('convene starts a distributed training job on each node and keeps it running when a worker or a node dies. It takes the flags of '
               "PyTorch's torchrun and gives workers the same environment. convened is its rendezvous daemon, convene-train a trainer in C++.")
CUDA_FOLDER = '/usr/local/cuda/lib64'
# PEP 600's platforms promise these two besides the C library; auditwheel's manylinux-policy.json says since which platform a GLIBCXX is there.
PROMISED = re.compile(r'^lib(stdc\+\+|gcc_s)\.so[.\d]*$')
PLATFORM_OF_GLIBCXX = {(3, 4, 28): (2, 31), (3, 4, 29): (2, 34), (3, 4, 30): (2, 35), (3, 4, 33): (2, 39)}
# The packages of PyPI that hold the libraries which a trainer for GPUs needs, with the versions whose files have the names that it asks for.
CUDA_WHEELS = ['nvidia-cublas<14,>=13', 'nvidia-cudnn-cu13<10,>=9', 'nvidia-nccl-cu13', 'nvidia-cuda-runtime<14,>=13', 'nvidia-cuda-nvrtc<14,>=13']


class Version(NamedTuple):
    """The launcher's own version, and the commit that it was built from."""
    base: str       # as `convene --version` says it, such as 0.1.0
    commit: str
    seconds: int    # the commit's time, since 1970: each file of a package has it, so that the same commit gives the same package
    count: int      # commits up to this one
    changed: bool   # files differ from the commit
    released: bool  # the commit has the tag v<base>

    def _is_release(self) -> bool:
        return self.released and not self.changed

    def _local(self) -> str:
        return f'g{self.commit[:12]}{".changed" if self.changed else ""}'

    def python(self) -> str:
        """By PEP 440; a development build comes before the release."""
        return self.base if self._is_release() else f'{self.base}.dev{self.count}+{self._local()}'

    def debian(self) -> str:
        """By deb-version(7); likewise."""
        return self.base if self._is_release() else f'{self.base}~dev{self.count}+{self._local()}'


# ---- the .deb ----

def debian_run_path(program: bundling.Elf) -> str:
    """Of a program; '$ORIGIN' is a library's. Relative, so that the files work below another root too. Debian's packages bring the rest."""
    return ':'.join(['$ORIGIN/../lib/convene'] + ([CUDA_FOLDER] if bundling.cuda_libraries([program]) else []))


def control(version: Version, architecture: str, depends: str, installed_kib: int, cuda: Iterable[str]) -> str:
    needs = f'This trainer needs {", ".join(cuda)} of CUDA 13 where it runs.' if cuda else 'This trainer trains on CPUs.'
    return (f'Package: convene\nVersion: {version.debian()}\nArchitecture: {architecture}\nMaintainer: Convene <convene@convene.invalid>\n'
            f'Installed-Size: {installed_kib}\nDepends: {depends}\nRecommends: libhwloc15, openssh-client\nSuggests: python3\n'
            f'Section: science\nPriority: optional\nDescription: {SUMMARY}\n'
            + ''.join(f' {line}\n' for line in textwrap.wrap(DESCRIPTION, 78) + textwrap.wrap(needs, 78)))


def man_page(name: str, summary: str, date: str, texts: Dict[str, str]) -> str:
    """A page of section 1 whose sections hold `--help` as it is printed."""
    def plain(text: str) -> str:
        lines = text.rstrip().replace('\\', '\\e').replace('-', '\\-').splitlines()
        return '\n'.join(f'\\&{line}' if line[:1] in ('.', "'") else line for line in lines)
    sections = ''.join(f'.SH {title}\n.nf\n{plain(text)}\n.fi\n' for title, text in texts.items())
    return f'.TH {name.upper()} 1 {date} Convene\n.SH NAME\n{plain(name)} \\- {plain(summary)}\n{sections}'


# ---- the wheel ----

def of_the_wheel(library: str) -> bool:
    """Whether the wheel carries a library that the bundle carries."""
    return not PROMISED.match(library)


def wheel_run_path(kind: str, library: str = '') -> str:
    """kind: convene, convene-train or library."""
    if kind == 'library':
        return bundling.run_path('library', library)
    lib = '$ORIGIN/../libexec/convene/lib' if kind == 'convene' else '$ORIGIN/lib'
    return ':'.join([lib, *bundling.NODE_FOLDERS, f'{lib}/{bundling.FALLBACK}'] + ([CUDA_FOLDER] if kind == 'convene-train' else []))


def platform_tag(elves: Iterable[bundling.Elf], machine: str) -> str:
    """manylinux by PEP 600: the oldest platform whose C library and libstdc++ all of these run on."""
    elves = list(elves)
    glibcxx = max(elf.glibcxx for elf in elves)
    platforms = [platform for version, platform in sorted(PLATFORM_OF_GLIBCXX.items()) if version >= glibcxx]
    if not platforms:
        raise ValueError(f'PLATFORM_OF_GLIBCXX ends before {bundling.version_text(glibcxx)}: add what auditwheel knows of it')
    major, minor = max(platforms[0], *(elf.glibc[:2] for elf in elves))
    return f'manylinux_{major}_{minor}_{machine}'


def unmet(elves: Iterable[bundling.Elf], carried: Iterable[str]) -> List[str]:
    """Libraries that are neither in the wheel nor promised by the platform nor CUDA's: with one, the tag would not be true."""
    carried = set(carried)
    return sorted({name for elf in elves for name in elf.needed
                   if name not in carried and not any(known.match(name) for known in (bundling.C_LIBRARY, bundling.CUDA, PROMISED))})


def wheel_metadata(version: Version, readme: str, cuda: List[str]) -> str:
    """cuda: what the trainer needs of it; [] for a trainer on CPUs. Their packages come only when asked for: torch brings them as well."""
    extras = [('notebook', 'cloudpickle')] + [('cuda', package) for package in (CUDA_WHEELS if cuda else [])]
    names = dict.fromkeys(extra for extra, _ in extras)
    lines = ['Metadata-Version: 2.1', 'Name: convene', f'Version: {version.python()}', f'Summary: {SUMMARY}', 'Requires-Python: >=3.9',
             *[f'Provides-Extra: {extra}' for extra in names],
             *[f"Requires-Dist: {package}; extra == '{extra}'" for extra, package in extras],
             'Description-Content-Type: text/markdown']
    return '\n'.join(lines) + '\n\n' + readme


def wheel_file(tag: str) -> str:
    return f'Wheel-Version: 1.0\nGenerator: convene-tools-deploy-wheel\nRoot-Is-Purelib: false\nTag: {tag}\n'


def record(files: Iterable[Tuple[str, bytes]], own_name: str) -> str:
    """The RECORD of a wheel, of its other files."""
    lines = [f'{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()},{len(data)}' for name, data in files]
    return '\n'.join([*lines, f'{own_name},,']) + '\n'
