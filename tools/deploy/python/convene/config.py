"""The settings of a launch, with the fields and defaults of torch.distributed.launcher.api, and the flags that say the same."""

import dataclasses
import enum
import os
from typing import Any, Dict, Iterable, List, Optional, Set, Union


class Std(enum.IntFlag):
    """Streams of a worker."""
    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


Streams = Union[Std, Dict[int, Std]]  # of all workers, or by local rank


class DefaultLogsSpecs:
    """Where the workers' output goes; see `convene run --help`, --log-dir, --redirects, --tee and --local-ranks-filter."""

    def __init__(self, log_dir: Optional[str] = None, redirects: Streams = Std.NONE, tee: Streams = Std.NONE,
                 local_ranks_filter: Optional[Set[int]] = None) -> None:
        # Under these names PyTorch's class has them too.
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter


@dataclasses.dataclass
class LaunchConfig:
    """One node's part of a job. Each field means what it means in torch.distributed.launcher.api.LaunchConfig.

    Without effect, as in `convene run`: monitor_interval (nothing polls), start_method (workers are always new programs),
    event_log_handler, metrics_cfg.
    """
    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Optional[Any] = None  # a DefaultLogsSpecs, from here or from PyTorch
    run_id: str = ''
    role: str = 'default_role'
    rdzv_endpoint: str = ''
    rdzv_backend: str = 'c10d'
    rdzv_configs: Dict[str, Any] = dataclasses.field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = 'spawn'
    log_line_prefix_template: Optional[str] = None
    metrics_cfg: Dict[str, str] = dataclasses.field(default_factory=dict)
    local_addr: Optional[str] = None
    event_log_handler: str = 'null'
    numa_options: Optional[Any] = None  # PyTorch's NumaOptions, or 'node', 'socket', 'exclusive', 'core-complex'
    signals_to_handle: str = 'SIGTERM,SIGINT,SIGHUP,SIGQUIT'
    duplicate_stdout_filters: Optional[List[str]] = None
    duplicate_stderr_filters: Optional[List[str]] = None
    virtual_local_rank: bool = False
    shutdown_timeout: Optional[int] = None


def _streams(streams: Streams) -> str:
    if isinstance(streams, dict):
        return ','.join(f'{rank}:{int(chosen)}' for rank, chosen in sorted(streams.items())) or '0'
    return str(int(streams))


def _words(words: Iterable[str]) -> str:
    return ','.join(word.replace(',', ',,') for word in words)


def _log_flags(specs: Any) -> List[str]:
    if specs is None:
        return []
    if type(specs).__name__ != 'DefaultLogsSpecs':
        raise ValueError(f'logs_specs is a {type(specs).__name__}: the launcher is no Python program and cannot call it. '
                         'Use DefaultLogsSpecs(log_dir, redirects, tee, local_ranks_filter)')
    flags = []
    if specs._root_log_dir and specs._root_log_dir != os.devnull:
        flags.append(f'--log-dir={specs._root_log_dir}')
    flags += [f'--redirects={_streams(specs._redirects)}', f'--tee={_streams(specs._tee)}']
    if specs._local_ranks_filter:
        flags.append(f'--local-ranks-filter={",".join(map(str, sorted(specs._local_ranks_filter)))}')
    return flags


def _rendezvous_flags(config: Any) -> List[str]:
    settings = {'timeout': config.rdzv_timeout} if config.rdzv_timeout != -1 else {}
    settings = {**config.rdzv_configs, **settings}
    flags = [f'--rdzv-backend={config.rdzv_backend}']
    if config.rdzv_backend == 'static':
        host, colon, port = config.rdzv_endpoint.strip().rpartition(':')
        if not colon or not port.isdigit():
            raise ValueError(f'rdzv_endpoint is {config.rdzv_endpoint!r}: the static backend needs "host:port", the place of the first node')
        flags += [f'--master-addr={host}', f'--master-port={port}', f'--node-rank={settings.pop("rank", 0)}']
    elif config.rdzv_endpoint:
        flags.append(f'--rdzv-endpoint={config.rdzv_endpoint}')
    if settings:
        flags.append('--rdzv-conf=' + ','.join(f'{key}={value}' for key, value in settings.items()))
    return flags


def flags_of(config: Any) -> List[str]:
    """The flags of `torchrun`, which convene has too, for a LaunchConfig from here or from any version of PyTorch. A flag and its value are one word: so a
    value may begin with a dash.

    ValueError: a field that no flag can say.
    """
    if config.min_nodes < 1 or config.max_nodes < config.min_nodes or config.nproc_per_node < 1:
        raise ValueError(f'min_nodes {config.min_nodes}, max_nodes {config.max_nodes}, nproc_per_node {config.nproc_per_node}: '
                         'write 1 <= min_nodes <= max_nodes and 1 <= nproc_per_node')
    flags = [f'--nnodes={config.min_nodes}:{config.max_nodes}', f'--nproc-per-node={config.nproc_per_node}', f'--role={config.role}',
             f'--max-restarts={config.max_restarts}', *_rendezvous_flags(config)]
    if config.run_id:
        flags.append(f'--rdzv-id={config.run_id}')
    flags += _log_flags(getattr(config, 'logs_specs', None))
    numa = getattr(config, 'numa_options', None)
    numa = getattr(numa, 'affinity_mode', numa)
    optional = {
        '--local-addr': config.local_addr,
        '--log-line-prefix-template': getattr(config, 'log_line_prefix_template', None),
        '--numa-binding': getattr(numa, 'value', numa),
        '--signals-to-handle': getattr(config, 'signals_to_handle', None),
        '--duplicate-stdout-filters': _words(getattr(config, 'duplicate_stdout_filters', None) or []),
        '--duplicate-stderr-filters': _words(getattr(config, 'duplicate_stderr_filters', None) or []),
        '--shutdown-timeout': getattr(config, 'shutdown_timeout', None),
    }
    for flag, value in optional.items():
        if value is not None and value != '':
            flags.append(f'{flag}={value}')
    return flags + (['--virtual-local-rank'] if getattr(config, 'virtual_local_rank', False) else [])
