"""All-reduces of float32 between processes of this machine, over Gloo: `convene bench` beside PyTorch's own process group, in turns.

    tools/torch_environment; ~/.cache/convene/venv/bin/python tests/bench/collective_bench.py [--ranks 2] [--rounds 5] --convene CONVENE
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


def ours(options, sizes):
    seconds = {}
    for size in sizes:
        command = [options.convene, "bench", "--nproc-per-node", str(options.ranks), "--json", "-b", str(size), "-e", str(size), "-n",
                   str(options.iterations), "-w", "5", "all_reduce"]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout
        seconds[size] = json.loads(answer)["rows"][0]["seconds"]
    return seconds


def torchs(options, sizes):
    script = "/tmp/collective_bench_worker.py"
    with open(script, "w", encoding="ascii") as file:
        file.write(_WORKER)
    command = [options.convene, "run", "--standalone", "--nproc-per-node", str(options.ranks), "--no-python", sys.executable, script,
               str(options.iterations), *map(str, sizes)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout
    lines = [line.split() for line in answer.decode().splitlines() if "figure" in line]
    return {int(line[-2]): float(line[-1]) for line in lines}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--convene", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=50)
    options = parser.parse_args()
    sizes = [1 << 10, 64 << 10, 1 << 20, 16 << 20]
    rounds = [(ours(options, sizes), torchs(options, sizes)) for _ in range(options.rounds)]
    print(f"{options.ranks} ranks, medians of {options.rounds} rounds in turns: microseconds of an all_reduce, ours, PyTorch's, theirs / ours")
    for size in sizes:
        own = statistics.median(pair[0][size] for pair in rounds)
        peer = statistics.median(pair[1][size] for pair in rounds)
        print(f"{size:>10} {own * 1e6:>12.1f} {peer * 1e6:>12.1f} {peer / own:>6.2f}")


if __name__ == "__main__":
    main()
