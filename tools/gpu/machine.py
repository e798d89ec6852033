"""The machine: its GPU, the versions of everything, a Python with PyTorch, and the environment in which CUDA's libraries are found."""

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional

TORCH_VERSIONS = '''
import json, torch
gpu = torch.cuda.is_available()
print(json.dumps({'torch': torch.__version__, 'torch_cuda': torch.version.cuda, 'cudnn': torch.backends.cudnn.version() if gpu else None,
                  'nccl': '.'.join(map(str, torch.cuda.nccl.version())) if gpu else None, 'torch_sees_gpu': gpu}))
'''


FIND_CUDA_SECONDS = 60
LDD_SECONDS = 60  # for all programs together, from a cold disk


class Place(NamedTuple):
    """Where runs happen."""
    bundle: str
    folder: str  # the text, the metrics and the checkpoints
    device: str  # cuda; cpu tries this tool itself
    environment: Dict[str, str]
    torch: Dict[str, Any]


def why_no_gpu() -> str:
    """Empty where the NVIDIA driver shows a GPU."""
    try:
        driver = ctypes.CDLL('libcuda.so.1')
    except OSError:
        return 'no NVIDIA driver here (libcuda.so.1 is not found)'
    error = driver.cuInit(0)
    if error != 0:
        return f'the NVIDIA driver finds no GPU (cuInit: error {error})'
    count = ctypes.c_int(0)
    error = driver.cuDeviceGetCount(ctypes.byref(count))
    return '' if error == 0 and count.value > 0 else f'the NVIDIA driver shows no GPU to this process (cuDeviceGetCount: error {error})'


def inherited_gpus() -> str:
    """The GPUs that this process was given, by CUDA's numbers or by UUID, a comma between; '0' where nobody chose."""
    return os.environ.get('CUDA_VISIBLE_DEVICES') or '0'


def first_gpu(gpus: str) -> str:
    return gpus.split(',')[0].strip()


def smi(gpu: str, query: str) -> str:
    try:
        command = ['nvidia-smi', '-i', gpu, f'--query-gpu={query}', '--format=csv,noheader,nounits']
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ''


def torch_environment(variables: Dict[str, str]) -> Dict[str, str]:
    """PyTorch finds its own libraries, and refuses other versions of cuDNN: its search path stays as we found it."""
    found = {key: value for key, value in variables.items() if key != 'LD_LIBRARY_PATH'}
    return {**found, **{key: value for key, value in os.environ.items() if key == 'LD_LIBRARY_PATH'}}


def torch_python(variables: Dict[str, str], limit_s: float) -> Dict[str, Any]:
    """{'python': path, 'torch': version, ...} of the first Python that has PyTorch; {} where none has, or none answered in time."""
    deadline = time.monotonic() + limit_s
    for python in dict.fromkeys((sys.executable, shutil.which('python3'))):
        if not python:
            continue
        try:
            done = subprocess.run([python, '-c', TORCH_VERSIONS], env=torch_environment(variables), check=True, capture_output=True, text=True,
                                  timeout=max(0.1, deadline - time.monotonic()))
            return {'python': python, **json.loads(done.stdout.splitlines()[-1])}
        except (subprocess.SubprocessError, ValueError, IndexError):
            continue
    return {}


def smi_text() -> str:
    """nvidia-smi's table of the whole machine, for the log."""
    try:
        return subprocess.run(['nvidia-smi'], check=False, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f'nvidia-smi: {error}'


class Libraries(NamedTuple):
    missing: Dict[str, List[str]]  # library -> the programs that the loader would not start for want of it
    unknown: List[str]             # the programs of which ldd did not tell in time


def needed_libraries(programs: List[str], variables: Dict[str, str]) -> Libraries:
    """Both empty where there is no ldd to ask."""
    found = Libraries({}, [])
    deadline = time.monotonic() + LDD_SECONDS
    for program in programs if shutil.which('ldd') else []:
        try:
            done = subprocess.run(['ldd', program], env=variables, check=False, capture_output=True, text=True,
                                  timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            found.unknown.append(os.path.basename(program))
            continue
        for line in done.stdout.splitlines():
            if line.endswith('=> not found'):
                found.missing.setdefault(line.split()[0], []).append(os.path.basename(program))
    return found


def environment(bundle: str, gpus: str) -> Dict[str, str]:
    """The environment of all programs that are started here: they see these GPUs. RuntimeError when CUDA's libraries are not on this machine."""
    try:
        done = subprocess.run([sys.executable, os.path.join(bundle, 'find_cuda')], check=False, capture_output=True, text=True,
                              timeout=FIND_CUDA_SECONDS)
    except subprocess.TimeoutExpired as expired:
        raise RuntimeError(f'find_cuda did not find CUDA\'s libraries in {FIND_CUDA_SECONDS} s') from expired
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    variables = {**os.environ, 'CUDA_VISIBLE_DEVICES': gpus, 'PYTHONDONTWRITEBYTECODE': '1', 'PYTHONUNBUFFERED': '1'}
    if gpus != os.environ.get('CUDA_VISIBLE_DEVICES'):
        # In the order of nvidia-smi, which is asked about the same number. Numbers that were given to this process stay what they were.
        variables['CUDA_DEVICE_ORDER'] = 'PCI_BUS_ID'
    if done.stdout.strip():
        variables['LD_LIBRARY_PATH'] = done.stdout.strip()
    return variables


def describe(bundle: str, gpu: str) -> Dict[str, Any]:
    with open(os.path.join(bundle, 'VERSION'), encoding='utf-8') as file:
        version = json.load(file)
    name, _, rest = smi(gpu, 'name,driver_version,memory.total').partition(', ')
    driver, _, memory = rest.partition(', ')
    return {'gpu': name or 'none', 'driver': driver, 'gpu_memory_mib': memory, 'cores': os.cpu_count(), 'system': platform.platform(),
            'bundle': version}


class MemoryWatch:
    """The most memory in use on the GPU while it watches, less what was in use before: contexts and libraries are counted, for all alike."""

    def __init__(self, gpu: str):
        self.before = _mib(smi(gpu, 'memory.used'))
        self.most = self.before
        self._child: Optional[subprocess.Popen] = None
        self._thread: Optional[threading.Thread] = None
        self._gpu = gpu

    def __enter__(self) -> 'MemoryWatch':
        if self.before is not None:
            command = ['nvidia-smi', '-i', self._gpu, '--query-gpu=memory.used', '--format=csv,noheader,nounits', '-lms', '100']
            self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self._thread = threading.Thread(target=self._read)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._child:
            self._child.terminate()
            self._child.wait()
            self._thread.join()

    def _read(self) -> None:
        for line in self._child.stdout:
            used = _mib(line)
            if used is not None:
                self.most = max(self.most, used)

    @property
    def peak_mib(self) -> Optional[float]:
        return None if self.before is None else self.most - self.before


def _mib(text: str) -> Optional[float]:
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return None


def compute_sanitizer() -> Optional[str]:
    folders: List[str] = ['/usr/local/cuda/bin', '/usr/local/cuda/compute-sanitizer']
    return shutil.which('compute-sanitizer') or shutil.which('compute-sanitizer', path=':'.join(folders))
