#!/usr/bin/env python3
"""Our store against PyTorch's own TCPStore server (its default, libuv), in turns, in one run of about three minutes.

usage: tests/bench/store_bench.py [--rounds N] [--seconds S] [--server-threads N] [--most-clients N] [--realtime]
Four tables of medians and ratios:
  - unmodified PyTorch clients, 1 and 64 processes of one: what a job sees, Python included;
  - the same wire from //rendezvous/store/testing:store_bench, 1 and 64 connections driven by one thread;
  - the same with 64 requests in each send, which no PyTorch client does: the servers without the kernel;
  - one barrier of up to 4,096 such connections.
"CPU" is processor time for one operation. Two limits that no server can exceed on this machine, both against PyTorch's server:
  - "floor": the rate with //rendezvous/store/testing:store_floor, which has no store, only answers of the right length and no sleep;
  - "free": the rate if a server took no time at all, that is if only the clients' own processor time (the least of the three servers) were
    left of an operation, on as many processors as there are clients to use them.

All of it runs in a network namespace without a name server (`unshare`): PyTorch's server looks up the name of each client that connects,
one after another in its only thread, and with a slow name server nothing else would be measured. --realtime puts servers and clients before all
other work of the machine (SCHED_FIFO, needs root): the ratios then hold on a machine that is not quiet.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import Callable, Dict, List, NamedTuple, Optional

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INSIDE = 'CONVENE_STORE_BENCH_PROGRAMS'  # set in the namespace: where our programs are
PROGRAMS = ['store_main', 'store_floor', 'store_bench']
VALUE = b'v' * 128  # an ncclUniqueId
WORKLOADS = ['get', 'add', 'set', 'wait']
MANY = 64
DEPTH = 64
TORCH_SERVER = """
import sys
from torch.distributed import TCPStore
store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


class Sample(NamedTuple):
    rate: float
    median_us: float
    server_cpu_us: float
    client_cpu_us: float


class Server:
    """A process that prints its port and ends with its standard input."""

    def __init__(self, *command: str):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.port = int(self.process.stdout.readline())

    def cpu_us(self) -> float:
        total = 0
        folder = f'/proc/{self.process.pid}/task'
        for task in os.listdir(folder):
            with open(f'{folder}/{task}/schedstat', encoding='ascii') as file:
                total += int(file.read().split()[0])
        return total / 1000

    def stop(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)


def enter_namespace(arguments: List[str], realtime: bool) -> None:
    """Builds, then starts this script again: PyTorch's Python, a network of its own."""
    sys.path.insert(0, ROOT)
    from tests.bench import launch_bench  # pylint: disable=import-outside-toplevel
    from tests.support import torch_environment  # pylint: disable=import-outside-toplevel
    try:
        torch_environment.install_torch()
    except torch_environment.NoTorch as error:
        sys.exit(f'store_bench: {error}')
    bazel_bin = launch_bench.build(*(f'//rendezvous/store/testing:{program}' for program in PROGRAMS))
    environment = {**torch_environment.torch_environment(), INSIDE: os.path.join(bazel_bin, 'rendezvous/store/testing'), 'TORCH_CPP_LOG_LEVEL': 'ERROR'}
    first = ['chrt', '--fifo', '10'] if realtime else []
    become_root = ['--map-root-user'] if os.geteuid() else []
    own_network = ['unshare', *become_root, '--net', 'sh', '-c', 'ip link set lo up && exec "$@"', 'sh']
    command = [*first, *own_network, torch_environment.PYTHON, os.path.abspath(__file__), *arguments]
    os.execvpe(command[0], command, environment)


def torch_operation(store, workload: str, key: str) -> Callable[[], object]:
    if workload == 'get':
        return lambda: store.get(key)
    if workload == 'add':
        return lambda: store.add(key + '/n', 1)
    if workload == 'set':
        return lambda: store.set(key, VALUE)
    return lambda: store.wait([key])


def torch_client(orders, ports: Dict[str, int]) -> None:
    """One process, one connection to each server. An order is (server, workload, from, until) on the monotonic clock; the answer is
    (operations, when they were done, processor time)."""
    from torch.distributed import TCPStore  # pylint: disable=import-outside-toplevel
    stores = {name: TCPStore('127.0.0.1', port, is_master=False) for name, port in ports.items()}
    key = f'client/{os.getpid()}'
    for store in stores.values():
        store.set(key, VALUE)
    orders.send('connected')
    while True:
        name, workload, begin, end = orders.recv()
        if name is None:
            return
        operation = torch_operation(stores[name], workload, key)
        time.sleep(max(0.0, begin - time.monotonic()))
        cpu_before = time.process_time()
        done = 0
        while time.monotonic() < end:
            for _ in range(10):
                operation()
            done += 10
        stores[name].check([key])  # has an answer: the sets before it are done
        orders.send((done, time.monotonic(), time.process_time() - cpu_before))


class TorchClients:
    """Processes that wait for orders: nothing but the operations is measured."""

    def __init__(self, count: int, ports: Dict[str, int]):
        context = multiprocessing.get_context('fork')
        self.orders = []
        for _ in range(count):
            ours, its = context.Pipe()
            context.Process(target=torch_client, args=(its, ports), daemon=True).start()
            self.orders.append(ours)
        for orders in self.orders:
            orders.recv()

    def measure(self, name: str, server: Server, workload: str, clients: int, seconds: float) -> Sample:
        begin = time.monotonic() + 0.02
        active = self.orders[:clients]
        before = server.cpu_us()
        for orders in active:
            orders.send((name, workload, begin, begin + seconds))
        counts, ends, cpu = zip(*(orders.recv() for orders in active))
        operations = sum(counts)
        rate = operations / (max(ends) - begin)
        return Sample(rate, clients / rate * 1e6, (server.cpu_us() - before) / operations, sum(cpu) * 1e6 / operations)

    def stop(self) -> None:
        for orders in self.orders:
            orders.send((None, None, None, None))


def measure_native(server: Server, workload: str, clients: int, seconds: float, depth: int = 1) -> Sample:
    before, children_before = server.cpu_us(), os.times()
    done = subprocess.run([f'{os.environ[INSIDE]}/store_bench', '--port', str(server.port), '--workload', workload, '--clients', str(clients),
                           '--seconds', str(seconds), '--depth', str(depth)], check=True, stdout=subprocess.PIPE, timeout=300)
    result, children = json.loads(done.stdout), os.times()
    client_cpu = children.children_user + children.children_system - children_before.children_user - children_before.children_system
    operations = result['operations']
    return Sample(operations / result['seconds'], result['p50_us'], (server.cpu_us() - before) / operations, client_cpu * 1e6 / operations)


def medians(servers: Dict[str, Server], rounds: int, measure: Callable[[str], Sample]) -> Dict[str, Sample]:
    samples: Dict[str, List[Sample]] = {name: [] for name in servers}
    for number in range(rounds + 1):
        for name in servers:
            sample = measure(name)
            if number > 0:  # the first of each warms up
                samples[name].append(sample)
    return {name: Sample(*(statistics.median(values) for values in zip(*of_name))) for name, of_name in samples.items()}


def print_rates(title: str, clients: int, busy: int, middle: Dict[str, Sample]) -> None:
    """`busy`: processors that the clients can use."""
    ours, theirs, floor = middle['ours'], middle['PyTorch'], middle['floor']
    free_rate = busy * 1e6 / min(sample.client_cpu_us for sample in middle.values())
    print(f'| {title} | {clients} | {ours.rate:.0f}/s | {theirs.rate:.0f}/s | {ours.rate / theirs.rate:.2f} | {floor.rate / theirs.rate:.2f} | '
          f'{free_rate / theirs.rate:.2f} | '
          f'{ours.server_cpu_us:.2f} us | {theirs.server_cpu_us:.2f} us | {theirs.server_cpu_us / ours.server_cpu_us:.2f} | '
          f'{ours.client_cpu_us:.2f}, {theirs.client_cpu_us:.2f} us | {os.getloadavg()[0]:.1f} |', flush=True)


def print_barrier(clients: int, middle: Dict[str, Sample]) -> None:
    ours, theirs = middle['ours'], middle['PyTorch']
    print(f'| {clients} | {ours.median_us / 1000:.2f} ms | {theirs.median_us / 1000:.2f} ms | {theirs.median_us / ours.median_us:.2f} | '
          f'{ours.server_cpu_us / 1000:.2f} ms | {theirs.server_cpu_us / 1000:.2f} ms | {theirs.server_cpu_us / ours.server_cpu_us:.2f} | '
          f'{os.getloadavg()[0]:.1f} |', flush=True)


def head(title: str, columns: Optional[List[str]] = None) -> None:
    columns = columns or ['what', 'clients', 'ours', 'PyTorch', 'ratio', 'floor', 'free', 'our CPU', 'its CPU', 'ratio', 'client CPU: ours, its', 'load']
    print(f'\n{title}\n\n| {" | ".join(columns)} |\n' + '|---' * len(columns) + '|', flush=True)


def run_tables(servers: Dict[str, Server], arguments) -> None:
    clients = TorchClients(MANY, {name: server.port for name, server in servers.items()})
    head('Unmodified PyTorch clients, a process each')
    for count in (1, MANY):
        for workload in WORKLOADS:
            print_rates(workload, count, min(count, os.cpu_count()), medians(servers, arguments.rounds,
                        lambda name: clients.measure(name, servers[name], workload, count, arguments.seconds)))
    clients.stop()
    for depth in (1, DEPTH):
        head(f'Clients in C++, one thread, {depth} requests in a send')
        for count in (1, MANY) if depth == 1 else (MANY,):
            for workload in WORKLOADS:
                print_rates(workload, count, 1, medians(servers, arguments.rounds,
                            lambda name: measure_native(servers[name], workload, count, arguments.seconds, depth)))
    head('One barrier, clients in C++ of one thread; CPU with connecting', ['clients', 'ours', 'PyTorch', 'ratio', 'our CPU', 'its CPU', 'ratio', 'load'])
    stores = {name: server for name, server in servers.items() if name != 'floor'}
    count = 16
    while count <= arguments.most_clients:
        print_barrier(count, medians(stores, arguments.rounds, lambda name: measure_native(servers[name], 'barrier', count, arguments.seconds)))
        count *= 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument('--seconds', type=float, default=0.25, help='of each measurement')
    parser.add_argument('--server-threads', type=int, default=0, help='of our server (default: its own)')
    parser.add_argument('--most-clients', type=int, default=4096, help='of the barrier')
    parser.add_argument('--realtime', action='store_true', help='before all other work of the machine; needs root')
    arguments = parser.parse_args()
    if INSIDE not in os.environ:
        enter_namespace(sys.argv[1:], arguments.realtime)

    import torch  # pylint: disable=import-outside-toplevel
    programs = os.environ[INSIDE]
    servers = {
        'ours': Server(f'{programs}/store_main', str(arguments.server_threads)),
        'PyTorch': Server(sys.executable, '-c', TORCH_SERVER),
        'floor': Server(f'{programs}/store_floor'),
    }
    print(f'{platform.node()}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; PyTorch {torch.__version__}; {arguments.rounds} rounds of '
          f'{arguments.seconds} s, in turns; medians{"; SCHED_FIFO" if arguments.realtime else ""}')
    run_tables(servers, arguments)
    for server in servers.values():
        server.stop()
    return 0


if __name__ == '__main__':
    sys.exit(main())
