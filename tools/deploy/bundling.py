"""Decides which files go into a bundle, from names and from the output of readelf and bazel. No side effects."""

import re
from typing import Dict, Iterable, List, NamedTuple, Tuple

# The C library's own family belongs to the node: it must fit the node's kernel and loader.
C_LIBRARY = re.compile(r'^(libc|libm|libdl|librt|libpthread|libresolv|libutil|libnsl|libanl|libBrokenLocale|ld-linux[\w-]*)\.so[.\d]*$')
# The driver's and the toolkit's belong to the node too: they are gigabytes, and fit its driver.
CUDA = re.compile(r'^lib(cuda|cudart|cublas|cublasLt|cudnn\w*|nccl|nvrtc[\w.-]*|nvJitLink|nvidia-ml|cupti)\.so[.\d]*$')
# The bundle's copies are only for nodes that have none. NCCL loads the node's verbs library by name, and the node's drivers fit it
# alone: Gloo, which links it too, must take the same one. The node's libstdc++ suits its C library, and whatever else of the node
# comes into the process.
OF_THE_NODE_IF_THERE = re.compile(r'^lib(ibverbs|nl-3|nl-route-3|stdc\+\+|gcc_s|gomp)\.so[.\d]*$')
# No program names it: cuDNN loads it to compile its fused kernels, attention's for example.
LOADED_BY = {'libcudnn.so.9': 'libnvrtc.so.13'}
NODE_FOLDERS = ['/usr/lib/x86_64-linux-gnu', '/usr/lib/aarch64-linux-gnu', '/usr/lib64', '/lib64', '/usr/lib']
FALLBACK = 'fallback'

# Linked into the programs themselves, so their licences travel although no file of them does.
STATICALLY_LINKED = ['libabsl-dev', 'libgrpc++-dev', 'libgrpc-dev', 'libprotobuf-dev', 'libssl-dev', 'libc-ares-dev', 'libre2-dev', 'zlib1g-dev',
                     'catch2']


class Elf(NamedTuple):
    """One program or library, as `readelf -dVW` tells."""
    needed: List[str]
    glibc: Tuple[int, ...]    # the newest version it asks for; () for none
    glibcxx: Tuple[int, ...]  # likewise of libstdc++


def parse_readelf(text: str) -> Elf:
    needed = re.findall(r'\(NEEDED\)\s+Shared library: \[([^\]]+)\]', text)
    return Elf(needed, *(max((tuple(int(part) for part in found.split('.')) for found in re.findall(rf'Name: {name}_([\d.]+)', text)), default=())
                         for name in ('GLIBC', 'GLIBCXX')))


def destination(library: str) -> str:
    """The folder below lib/ for a library, '' being lib/ itself; None (as 'node') for one that the node brings."""
    if C_LIBRARY.match(library) or CUDA.match(library):
        return 'node'
    return FALLBACK if OF_THE_NODE_IF_THERE.match(library) else ''


def parse_ldd(text: str) -> Dict[str, str]:
    """Library -> path; '' for `not found`."""
    found = {}
    for line in text.splitlines():
        match = re.match(r'\s*(\S+) => (not found|/\S+)', line)
        if match:
            found[match.group(1)] = '' if match.group(2) == 'not found' else match.group(2)
    return found


def libraries_to_pack(ldd_outputs: Iterable[str]) -> Dict[str, str]:
    """Library -> path of all that the bundle must bring. ValueError names one that this machine has not."""
    chosen: Dict[str, str] = {}
    for text in ldd_outputs:
        for library, path in parse_ldd(text).items():
            if destination(library) == 'node':
                continue
            if not path:
                raise ValueError(f'{library} is needed and is not on this machine: tools/install_packages')
            chosen[library] = path
    return dict(sorted(chosen.items()))


def run_path(kind: str, library: str = '') -> str:
    """Where the loader looks, in order, for what a file of the bundle needs. kind: program, test or library."""
    cuda = '/usr/local/cuda/lib64'  # the usual place; LD_LIBRARY_PATH, which env.sh sets, comes before it
    if destination(library) == FALLBACK:
        return ':'.join([*NODE_FOLDERS, '$ORIGIN'])
    lib = {'program': '$ORIGIN/../lib', 'test': '$ORIGIN/../../lib', 'library': '$ORIGIN'}[kind]
    return ':'.join([lib, *NODE_FOLDERS, f'{lib}/{FALLBACK}'] + ([cuda] if kind != 'library' else []))


def cuda_libraries(elves: Iterable[Elf]) -> List[str]:
    """CUDA's libraries that the node must have, without the driver."""
    named = {name for elf in elves for name in elf.needed if CUDA.match(name) and not name.startswith('libcuda.')}
    return sorted(named | {LOADED_BY[name] for name in named if name in LOADED_BY})


class GpuBinary(NamedTuple):
    label: str
    kind: str  # test or bench
    part: str  # ops or layouts; '' for a bench

    @property
    def file_name(self) -> str:
        return self.label[2:].replace('/', '-').replace(':', '-')


def gpu_binaries(query: str) -> List[GpuBinary]:
    """From `bazel query --output=label_kind`: tests of collectives belong to `layouts`, the others to `ops`."""
    binaries = []
    for line in query.splitlines():
        match = re.match(r'(cc_test|cc_binary) rule (//\S+)', line)
        if not match:
            continue
        rule, label = match.groups()
        part = 'layouts' if label.startswith('//worker_runtime/comm') else 'ops'
        if rule == 'cc_test':
            binaries.append(GpuBinary(label, 'test', part))
        elif label.endswith('_bench'):
            binaries.append(GpuBinary(label, 'bench', ''))
    return sorted(binaries)


def version_text(version: Tuple[int, ...]) -> str:
    return '.'.join(str(part) for part in version)
