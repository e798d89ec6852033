"""The part `layouts`: convene-train over NCCL with several processes on one GPU, judged by its loss curves."""

import math
import os
import signal
import statistics
import tempfile
import time
from typing import Any, Dict, List, NamedTuple, Optional

import curves
import machine
import peer
import processes
import text
from budget import Budget
from results import Results

# Small, so that 8 processes that take turns on one GPU, with sockets between them, come far enough; heads of a size that every
# attention kernel takes.
SHAPE = {'layers': 4, 'hidden_size': 128, 'ffn_size': 384, 'heads': 4, 'kv_heads': 2, 'head_size': 32, 'vocabulary_size': 256}
SEQUENCE_LENGTH = 128
GLOBAL_BATCH_SIZE = 8
MICRO_BATCH_SIZE = 2
LEARNING_RATE = 1e-3
STEPS = 200
TEXT_BYTES = 1_000_000
TORCH_SEEDS = (1, 2, 3)
RESTART_STEPS = 60
CHECKPOINT_EVERY = 10
KILL_AFTER_STEP = 25
POLL_SECONDS = 0.02
LEAST_SECONDS = 5
STALLED_AFTER_STEPS = 20
GRAPH_STEPS = 20


class Layout(NamedTuple):
    name: str
    tp: int
    pp: int
    dp: int

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp


SINGLE = Layout('one rank', 1, 1, 1)
LAYOUTS = [SINGLE, Layout('dp2', 1, 1, 2), Layout('tp2', 2, 1, 1), Layout('pp2', 1, 2, 1), Layout('dp2 x tp2 x pp2', 2, 2, 2)]
GRAPHED_LAYOUTS = [layout for layout in LAYOUTS if layout.tp == 1]  # the trainer captures no others


class Run(NamedTuple):
    name: str
    layout: Layout
    device: str
    precision: str
    steps: int = STEPS
    deterministic: bool = False
    cuda_graphs: bool = False
    max_restarts: int = 0
    checkpoints: bool = False


def train_command(run: Run, place: machine.Place) -> List[str]:
    shape = [part for key, value in SHAPE.items() for part in (f'--{key.replace("_", "-")}', str(value))]
    train = [f'{place.bundle}/bin/convene-train', '--model', 'llama-tiny', *shape, '--data', f'{place.folder}/text.txt',
             '--token-cache-dir', f'{place.folder}/tokens', '--steps', str(run.steps), '--sequence-length', str(SEQUENCE_LENGTH),
             '--global-batch-size', str(GLOBAL_BATCH_SIZE), '--micro-batch-size', str(MICRO_BATCH_SIZE), '--learning-rate', str(LEARNING_RATE),
             '--validation-every', '0', '--validation-samples', '1', '--tp-size', str(run.layout.tp), '--pp-size', str(run.layout.pp),
             '--device', run.device, '--precision', run.precision, '--metrics-file', metrics_path(run, place)]
    if run.deterministic:
        train.append('--deterministic')
    if run.cuda_graphs:
        train.append('--cuda-graphs')
    if run.checkpoints:
        train += ['--checkpoint-dir', f'{place.folder}/{file_name(run)}.checkpoints', '--checkpoint-every', str(CHECKPOINT_EVERY)]
    launch = [f'{place.bundle}/bin/convene', 'run', '--standalone', '--nproc-per-node', str(run.layout.ranks), '--max-restarts', str(run.max_restarts)]
    return [*launch, *train]


def file_name(run: Run) -> str:
    return ''.join(letter if letter.isalnum() else '-' for letter in run.name)


def metrics_path(run: Run, place: machine.Place) -> str:
    return f'{place.folder}/{file_name(run)}.jsonl'


def run_environment(run: Run, place: machine.Place) -> Dict[str, str]:
    """The oracle on the CPU has all cores; workers that share the machine are given theirs by the launcher."""
    threads = {'OMP_NUM_THREADS': str(min(os.cpu_count() or 1, 16))} if run.layout.ranks == 1 else {}
    return {**place.environment, **threads}


class Trained(NamedTuple):
    curve: Dict[int, curves.Step]
    failure: str  # it ended badly or hung; '' also for one that was stopped at its limit while it made steps
    seconds: float
    output: str


def train(run: Run, place: machine.Place, limit_s: float, results: Results) -> Trained:
    """One that was stopped at its limit is compared as far as it came."""
    done = processes.run(train_command(run, place), run_environment(run, place), limit_s)
    results.log(run.name, done.output)
    curve = curves.read(metrics_path(run, place))
    failure = ''
    if done.code is None:
        failure = why_stalled(curve, time.time() - os.path.getmtime(metrics_path(run, place)) if curve else math.inf, limit_s)
    elif done.code != 0:
        failure = f'convene run ended with {done.code}: {processes.last_line(done.output)}'
    return Trained(curve, failure, done.seconds, done.output)


def why_stalled(curve: Dict[int, curves.Step], silent_s: float, limit_s: float) -> str:
    """Empty where steps still came when the run was stopped: it was slow, not hung."""
    if not curve:
        return f'no step was finished in {limit_s:.0f} s'
    usual = statistics.median(step.seconds for step in curve.values())
    patience = processes.GRACE_SECONDS + STALLED_AFTER_STEPS * usual
    return f'it hung after step {max(curve)}: nothing for {silent_s:.0f} s' if silent_s > patience else ''


def learn_torch_distances(place: machine.Place, limit_s: float, results: Results) -> List[float]:
    """PyTorch's own distance of bf16 from fp32, for each seed that was done in time."""
    case = {**SHAPE, 'tied_embeddings': 0, 'device': place.device, 'compile': False, 'steps': STEPS, 'sequence_length': SEQUENCE_LENGTH,
            'micro_batch_size': GLOBAL_BATCH_SIZE, 'learning_rate': LEARNING_RATE, 'data': f'{place.folder}/text.txt'}
    done = peer.run([{**case, 'seed': seed, 'precision': precision} for seed in TORCH_SEEDS for precision in ('fp32', 'bf16')], place, limit_s)
    name = 'PyTorch, bf16 against fp32'
    results.log(name, done.output)
    distances = torch_distances(peer.parse(done.output))
    if distances:
        results.measured('layouts', name, f'{", ".join(f"{distance:.1e}" for distance in distances)} apart', distances=distances)
    else:
        results.skipped('layouts', name, f'stopped after {limit_s:.0f} s' if done.code is None else processes.last_line(done.output))
    return distances


def torch_distances(answers: List[peer.Answer]) -> List[float]:
    """Answers come in pairs: fp32, bf16."""
    return [curves.root_mean_square(curves.relative(bf16.losses, fp32.losses)) for fp32, bf16 in zip(answers[::2], answers[1::2])]


def check_curves(place: machine.Place, budget: Budget, only: str, results: Results) -> None:
    oracle_run = Run('oracle: fp32 on the CPU', SINGLE, 'cpu', 'fp32')
    trained = train(oracle_run, place, budget.left() / 2, results)
    oracle = curves.losses(trained.curve)
    if trained.failure or len(oracle) < curves.LEAST_STEPS:
        results.failed('layouts', oracle_run.name, trained.failure or f'only {len(oracle)} steps in {trained.seconds:.0f} s: nothing can be compared with it')
        return
    results.measured('layouts', oracle_run.name, f'{len(oracle)} steps, loss {oracle[0]:.4f} -> {oracle[-1]:.4f}', losses=oracle)
    distances: Optional[List[float]] = None
    runs = [Run(f'{precision}, {layout.name}', layout, place.device, precision) for precision in ('fp32', 'bf16') for layout in LAYOUTS]
    runs = [run for run in runs if only in run.name]
    for run, share in budget.shares(runs, lambda run: 1 + run.layout.ranks / 2):
        if share < LEAST_SECONDS:
            results.skipped('layouts', run.name, 'no time left in this part: run it again with --only')
            continue
        if run.precision == 'bf16' and distances is None:
            distances = learn_torch_distances(place, budget.left() / 3, results) if place.torch else []
        trained = train(run, place, min(share, budget.left()), results)
        ours = curves.losses(trained.curve)
        if trained.failure:
            results.failed('layouts', run.name, trained.failure, losses=ours)
            continue
        if len(ours) < min(curves.LEAST_STEPS, run.steps):
            results.skipped('layouts', run.name, f'only {len(ours)} steps in {trained.seconds:.0f} s: too few for a verdict')
            continue
        if run.precision == 'bf16' and not distances:
            results.skipped('layouts', run.name, 'PyTorch, whose distance from fp32 is the measure, is not here or did not run')
            continue
        verdict = curves.judge_fp32(ours, oracle) if run.precision == 'fp32' else curves.judge_bf16(ours, oracle, distances)
        results.judged('layouts', run.name, verdict.good, verdict.text, distance=verdict.distance, losses=ours)


def check_determinism(place: machine.Place, budget: Budget, results: Results) -> None:
    """Twice the same; and once more with a kill -9 in the middle, which must not show in the curve."""
    layout = LAYOUTS[1]
    first, again = (Run(f'deterministic bf16, {layout.name}, {which}', layout, place.device, 'bf16', RESTART_STEPS, deterministic=True)
                    for which in ('first', 'again'))
    killed = Run(f'kill -9 of rank 1, deterministic bf16, {layout.name}', layout, place.device, 'bf16', RESTART_STEPS, deterministic=True,
                 max_restarts=2, checkpoints=True)
    if budget.left() < 3 * LEAST_SECONDS:
        results.skipped('layouts', killed.name, 'no time left in this part: run it again with --only deterministic')
        return
    reference = train(first, place, budget.left() / 3, results)
    repeated = train(again, place, budget.left() / 2, results)
    verdict = curves.judge_identical(reference.curve, repeated.curve, RESTART_STEPS)
    results.judged('layouts', f'deterministic bf16, {layout.name}, twice', verdict.good, reference.failure or repeated.failure or verdict.text)
    check_kill(killed, place, budget.left(), reference.curve, results)


def check_kill(run: Run, place: machine.Place, limit_s: float, reference: Dict[int, curves.Step], results: Results) -> None:
    deadline = time.monotonic() + limit_s
    killed_at = recovered_after = None
    with processes.Program(train_command(run, place), run_environment(run, place)) as program:
        while not program.ended() and time.monotonic() < deadline and recovered_after is None:
            curve = curves.read(metrics_path(run, place))
            newest = curve[max(curve)] if curve else None
            if killed_at is None and newest and max(curve) >= KILL_AFTER_STEP:
                pid = processes.worker_of_rank(1, 'convene-train')
                if pid is not None:
                    epoch, killed_at = newest.epoch, time.monotonic()
                    os.kill(pid, signal.SIGKILL)
            elif killed_at is not None and newest and newest.epoch > epoch:
                recovered_after = time.monotonic() - killed_at
            time.sleep(POLL_SECONDS)
        done = program.wait(deadline - time.monotonic())
    results.log(run.name, done.output)
    if killed_at is None or recovered_after is None or done.code != 0:
        why = 'no rank could be killed' if killed_at is None else 'no step came after the kill' if recovered_after is None else ''
        how = 'stopped at its deadline' if done.code is None else f'ended with {done.code}'
        results.failed('layouts', run.name, f'{how}; {why or processes.last_line(done.output)}')
        return
    verdict = curves.judge_identical(reference, curves.read(metrics_path(run, place)), RESTART_STEPS)
    results.judged('layouts', run.name, verdict.good, f'next step {recovered_after:.2f} s after the kill; against the run without a kill: {verdict.text}',
                   recovery_seconds=recovered_after)


def why_no_graphs(output: str) -> str:
    """Of a run with --cuda-graphs: why it proves nothing about them; '' when it does. Its words are worker_runtime/trainer/device_choice.cc's
    and schedule/graphed_stage.cc's."""
    if 'CUDA graphs  on' not in output:
        return 'the trainer did not switch its graphs on'
    failed = [line.strip() for line in output.splitlines() if 'CUDA graphs are off from here on' in line]
    return failed[0][:300] if failed else ''


def check_graphs(place: machine.Place, budget: Budget, results: Results) -> None:
    """Passes that are queued as CUDA graphs must not change a digit of the curve."""
    if place.device != 'cuda':
        results.skipped('layouts', 'CUDA graphs', 'there are none on a CPU')
        return
    for layout, share in budget.shares(GRAPHED_LAYOUTS, lambda layout: layout.ranks):
        name = f'CUDA graphs, deterministic bf16, {layout.name}'
        if share < 2 * LEAST_SECONDS:
            results.skipped('layouts', name, 'no time left in this part: run it again with --only graphs')
            continue
        plain = Run(f'{name}: without', layout, place.device, 'bf16', GRAPH_STEPS, deterministic=True)
        without = train(plain, place, share / 2, results)
        graphed = train(plain._replace(name=name, cuda_graphs=True), place, min(share, budget.left()), results)
        verdict = curves.judge_identical(without.curve, graphed.curve, GRAPH_STEPS)
        failure = without.failure or graphed.failure or why_no_graphs(graphed.output)
        results.judged('layouts', name, verdict.good and not failure, failure or f'with and without: {verdict.text}')


def check(bundle: str, device: str, environment: Dict[str, str], torch: Dict[str, Any], budget: Budget, only: str, results: Results) -> None:
    with tempfile.TemporaryDirectory(prefix='gpu_check.') as folder:
        place = machine.Place(bundle, folder, device, environment, torch)
        with open(f'{folder}/text.txt', 'w', encoding='ascii') as file:
            file.write(text.made_up_text(TEXT_BYTES))
        if not only or only in 'deterministic kill':
            check_determinism(place, budget.part(0.3), results)
        if not only or only in 'CUDA graphs':
            check_graphs(place, budget.part(0.15), results)
        check_curves(place, budget, only, results)
