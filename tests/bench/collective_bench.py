"""Collectives of float32 between processes of this machine, over Gloo: `convene bench` beside Gloo's own algorithms, and PyTorch's process group.

    bazel build //worker_runtime/comm/testing:gloo_peer; tests/bench/collective_bench.py --convene CONVENE --gloo-peer PATH [--ranks 2] [--rounds 9]
    ~/.cache/convene/venv/bin/python tests/bench/collective_bench.py ... --peers torch --operation all_gather    (after tools/torch_environment)

The peer of every operation but all_reduce is PyTorch's process group alone, which calls Gloo's algorithms. A size counts as in nccl-tests: the whole
of what a rank gives or gets, the larger one. Gloo's own benchmark times the same three functions of its library; Debian has the library, and
gloo_peer calls them. Each round measures each size by all programs, whose order is turned round from round to round. All go over the loopback
interface with one thread a rank, and each figure is the slowest rank's mean. A ratio is the median of the rounds' ratios, with their quartiles:
programs that are measured one behind the other meet the same noise.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

_WORKER = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
operation, ranks = sys.argv[2], dist.get_world_size()
for size in map(int, sys.argv[3:]):
    data, other = torch.ones(size // 4), torch.ones(size // 4)
    part = torch.ones(size // 4 // ranks)
    call = {
        "all_reduce": lambda: dist.all_reduce(data),
        "all_gather": lambda: dist.all_gather_into_tensor(data, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, data),
        "all_to_all": lambda: dist.all_to_all_single(other, data),
        "broadcast": lambda: dist.broadcast(data, 0),
    }[operation]
    iterations = int(sys.argv[1])
    for _ in range(5):
        call()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(iterations):
        call()
    seconds = torch.tensor((time.perf_counter() - begin) / iterations, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print("figure", size, seconds.item(), flush=True)
dist.destroy_process_group()
"""


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def ours(options, size):
    command = [options.convene, "bench", "--nproc-per-node", str(options.ranks), "--json", "-b", str(size), "-e", str(size), "-n",
               str(options.iterations), "-w", "5", "-c", "0", options.operation]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment()).stdout
    return json.loads(answer)["rows"][0]["seconds"]


def torchs(options, size):
    script = "/tmp/collective_bench_worker.py"
    with open(script, "w", encoding="ascii") as file:
        file.write(_WORKER)
    command = [options.convene, "run", "--standalone", "--nproc-per-node", str(options.ranks), "--no-python", sys.executable, script,
               str(options.iterations), options.operation, str(size)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()).stdout
    return next(float(line.split()[-1]) for line in answer.decode().splitlines() if "figure" in line)


def gloos(options, algorithm, size):
    command = [options.gloo_peer, algorithm, str(options.ranks), str(options.iterations), str(size)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=120).stdout)


def figure(options, program, size):
    if program == "ours":
        return ours(options, size)
    return torchs(options, size) if program == "torch" else gloos(options, program, size)


def main():
    algorithms = ["new_ring", "ring_chunked", "halving_doubling"]
    parser = argparse.ArgumentParser()
    parser.add_argument("--convene", required=True)
    parser.add_argument("--gloo-peer", help="the program //worker_runtime/comm/testing:gloo_peer")
    parser.add_argument("--peers", nargs="+", default=algorithms, choices=[*algorithms, "torch"])
    parser.add_argument("--operation", default="all_reduce", choices=["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1 << 10, 64 << 10, 1 << 20, 16 << 20], help="bytes")
    options = parser.parse_args()
    if options.operation != "all_reduce" and options.peers != ["torch"]:
        parser.error("the peer of this operation is PyTorch alone: give --peers torch")
    programs = ["ours", *options.peers]
    rounds = {size: [] for size in options.sizes}
    for number in range(options.rounds):
        for size in options.sizes:
            order = programs if number % 2 == 0 else programs[::-1]
            rounds[size].append({program: figure(options, program, size) for program in order})
    print(f"{options.ranks} ranks, {options.rounds} rounds: median microseconds of {options.operation}, and the peer's by ours with quartiles")
    for size, figures in rounds.items():
        for program in programs:
            low, ratio, high = statistics.quantiles([each[program] / each["ours"] for each in figures], n=4)
            median = statistics.median(each[program] for each in figures)
            print(f"{size:>10} {program:>17} {median * 1e6:>12.1f}" + (f" {ratio:>6.2f} ({low:.2f} to {high:.2f})" if program != "ours" else ""), flush=True)


if __name__ == "__main__":
    main()
