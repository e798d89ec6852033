"""All-reduces of float32 between processes of this machine, over Gloo: `convene bench` beside PyTorch's own process group, in turns.

    tools/torch_environment; ~/.cache/convene/venv/bin/python tests/bench/collective_bench.py [--ranks 2] [--rounds 9] --convene CONVENE

Each round measures every size by both, and who begins alternates from round to round. Both go over the loopback interface with one thread a rank, and
each figure is the slowest rank's mean. The ratio is the median of the rounds' ratios, with their quartiles: two programs that are measured one behind the
other meet the same noise. PyTorch's process group is Gloo's own ring, as Gloo's benchmark runs it.
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
for size in map(int, sys.argv[2:]):
    data = torch.ones(size // 4)
    iterations = int(sys.argv[1])
    for _ in range(5):
        dist.all_reduce(data)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(data)
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
               str(options.iterations), "-w", "5", "-c", "0", "all_reduce"]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment()).stdout
    return json.loads(answer)["rows"][0]["seconds"]


def torchs(options, size):
    script = "/tmp/collective_bench_worker.py"
    with open(script, "w", encoding="ascii") as file:
        file.write(_WORKER)
    command = [options.convene, "run", "--standalone", "--nproc-per-node", str(options.ranks), "--no-python", sys.executable, script,
               str(options.iterations), str(size)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()).stdout
    return next(float(line.split()[-1]) for line in answer.decode().splitlines() if "figure" in line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--convene", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1 << 10, 64 << 10, 1 << 20, 16 << 20], help="bytes")
    options = parser.parse_args()
    pairs = {size: [] for size in options.sizes}
    for number in range(options.rounds):
        for size in options.sizes:
            first, second = (ours, torchs) if number % 2 == 0 else (torchs, ours)
            figures = {first: first(options, size), second: second(options, size)}
            pairs[size].append((figures[ours], figures[torchs]))
    print(f"{options.ranks} ranks, {options.rounds} rounds: medians in microseconds of an all_reduce, ours, PyTorch's; theirs / ours, with quartiles")
    for size, rounds in pairs.items():
        own, peer = (statistics.median(column) for column in zip(*rounds))
        low, ratio, high = statistics.quantiles([theirs / here for here, theirs in rounds], n=4)
        print(f"{size:>10} {own * 1e6:>12.1f} {peer * 1e6:>12.1f} {ratio:>6.2f} ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()
