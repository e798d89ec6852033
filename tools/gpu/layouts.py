"""The part `layouts`: convene-train over NCCL with several processes, on a GPU each or all on one, judged by its loss curves."""

import functools
import math
import os
import re
import signal
import statistics
import tempfile
import time
from typing import AbstractSet, Any, Callable, Dict, List, NamedTuple, Optional

import curves
import machine
import peer
import processes
import recovery
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
# Ranks that take turns on one GPU may take a second a step: so many steps decide, and the rest would only take the time of later items.
STEPS_OVER_NCCL = 40
TEXT_BYTES = 1_000_000
TORCH_SEEDS = (1, 2, 3)
RESTART_STEPS = 50
CHECKPOINT_EVERY = 10
KILL_AFTER_STEP = 25
# So far must a run without the kill have come: the kill's own next steps are then compared with something.
LEAST_RESTART_STEPS = KILL_AFTER_STEP + CHECKPOINT_EVERY
POLL_SECONDS = 0.02
# No step for so long is a hang: 20 steps' time, and what a checkpoint or a busy machine may take besides.
STALLED_AFTER_STEPS = 20
STALLED_AFTER_SECONDS = 10
GRAPH_STEPS = 20
KEPT_STEPS = 20
# No run starts when less time is left.
LEAST_SECONDS = 15
# The time that every run gets to start processes, load libraries and time products; a run without a step by then hangs.
RUN_FLOOR_SECONDS = 45
MANY_RANKS_FLOOR_SECONDS = 90
FLOOR_SLACK_SECONDS = 2  # what an item does between its runs


class Layout(NamedTuple):
    name: str
    tp: int
    pp: int
    dp: int

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def floor_s(self) -> float:
        return RUN_FLOOR_SECONDS if self.ranks <= 2 else MANY_RANKS_FLOOR_SECONDS

    @property
    def least_steps(self) -> int:
        return curves.LEAST_STEPS if self.ranks == 1 else curves.LEAST_STEPS_OVER_NCCL


SINGLE = Layout('one rank', 1, 1, 1)
LAYOUTS = [SINGLE, Layout('dp2', 1, 1, 2), Layout('tp2', 2, 1, 1), Layout('pp2', 1, 2, 1), Layout('dp2 x tp2 x pp2', 2, 2, 2)]
ORACLE = 'oracle: fp32 on the CPU'
DETERMINISTIC = 'deterministic, twice and with a kill -9'
KEPT = 'kept choices of products, fp32, one rank'
KILLED = 'a killed worker, warm and cold'


class Run(NamedTuple):
    name: str
    layout: Layout
    device: str
    precision: str
    steps: int = STEPS
    enough: int = STEPS  # it is stopped after so many; the learning rate follows `steps`
    deterministic: bool = False
    cuda_graphs: bool = False
    tuning: str = ''  # the folder of its choices of products; '': the one that all runs share
    max_restarts: int = 0
    checkpoints: bool = False
    copies: bool = False  # in the node's memory, after each step
    warm_workers: bool = False


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
    if run.tuning:
        train += ['--tuning-dir', f'{place.folder}/{run.tuning}']
    if run.checkpoints:
        train += ['--checkpoint-dir', f'{place.folder}/{file_name(run)}.checkpoints', '--checkpoint-every', str(CHECKPOINT_EVERY)]
    if run.copies:
        train += ['--replicate-every', '1']
    launch = [f'{place.bundle}/bin/convene', 'run', '--standalone', '--nproc-per-node', str(run.layout.ranks), '--max-restarts', str(run.max_restarts)]
    return [*launch, *(['--warm-workers', 'auto'] if run.warm_workers else []), *train]


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
    cut: bool = False  # stopped at its limit, or when it had done enough


def train(run: Run, place: machine.Place, limit_s: float, results: Results) -> Trained:
    """A run that was stopped at its limit, or had done enough, is compared as far as it came."""
    deadline = time.monotonic() + limit_s
    with processes.Program(train_command(run, place), run_environment(run, place)) as program:
        while not program.ended() and time.monotonic() < deadline and not has_done_enough(run, place):
            time.sleep(10 * POLL_SECONDS)
        done = program.wait(0)
    results.log(run.name, done.output)
    curve = curves.read(metrics_path(run, place))
    failure = ''
    if done.code is None and not has_done_enough(run, place):
        failure = why_stalled(curve, silent_seconds(run, place, done), limit_s, run.layout.floor_s)
    elif done.code not in (0, None):
        failure = f'convene run ended with {done.code}: {processes.last_line(done.output)}'
    return Trained(curve, failure, done.seconds, done.output, done.code is None)


def transports(output: str) -> str:
    """The trainer's line about NCCL: whether the ranks met over NVLink, or over sockets. '' where it has none."""
    line = re.search(r'NCCL \d[\d.]*: .*', output)
    return f'; {line.group(0)}' if line else ''


def has_done_enough(run: Run, place: machine.Place) -> bool:
    return run.enough < run.steps and max(curves.read(metrics_path(run, place)), default=0) >= run.enough


def silent_seconds(run: Run, place: machine.Place, done: processes.Done) -> float:
    """From its last step until it was stopped. A step that came while it stopped makes that less than 0."""
    path = metrics_path(run, place)
    return done.ended_at - os.path.getmtime(path) if os.path.exists(path) else math.inf


def why_stalled(curve: Dict[int, curves.Step], silent_s: float, limit_s: float, floor_s: float) -> str:
    """Empty where steps still came when the run was stopped: it was slow, not hung. Likewise where it had less than its floor to begin with."""
    if not curve:
        return f'no step was finished in {limit_s:.0f} s' if limit_s >= floor_s - FLOOR_SLACK_SECONDS else ''
    usual = statistics.median(step.seconds for step in curve.values())
    patience = STALLED_AFTER_SECONDS + STALLED_AFTER_STEPS * usual
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


class Curves:
    """Runs against the oracle, and the measure that all of them share."""

    def __init__(self, place: machine.Place, results: Results):
        self.place = place
        self.results = results
        self.oracle: List[float] = []
        self.distances: List[float] = []

    def learn_oracle(self, limit_s: float) -> None:
        run = Run(ORACLE, SINGLE, 'cpu', 'fp32')
        trained = train(run, self.place, limit_s, self.results)
        losses = curves.losses(trained.curve)
        too_few = f'only {len(losses)} steps in {trained.seconds:.0f} s: nothing can be compared with it' if len(losses) < curves.LEAST_STEPS else ''
        if trained.failure or too_few and not trained.cut:
            self.results.failed('layouts', run.name, trained.failure or too_few)
            return
        if too_few:
            self.results.skipped('layouts', run.name, too_few)
            return
        self.oracle = losses
        self.results.measured('layouts', run.name, f'{len(losses)} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}', losses=losses)

    def learn_distances(self, limit_s: float) -> None:
        self.distances = learn_torch_distances(self.place, limit_s, self.results)

    def check(self, run: Run, limit_s: float) -> None:
        why = '' if self.oracle else 'there is no oracle to compare it with (above)'
        if run.precision == 'bf16' and not self.distances:
            why = why or 'PyTorch, whose distance from fp32 is the measure, is not here or did not run'
        if why:
            self.results.skipped('layouts', run.name, why)
            return
        trained = train(run, self.place, limit_s, self.results)
        ours = curves.losses(trained.curve)
        if trained.failure:
            self.results.failed('layouts', run.name, trained.failure, losses=ours)
        elif trained.cut and len(ours) < run.layout.least_steps:
            self.results.skipped('layouts', run.name, f'only {len(ours)} steps in {trained.seconds:.0f} s: too few for a verdict')
        else:
            verdict = (curves.judge_fp32(ours, self.oracle, run.layout.least_steps) if run.precision == 'fp32' else
                       curves.judge_bf16(ours, self.oracle, self.distances, run.layout.least_steps))
            self.results.judged('layouts', run.name, verdict.good, verdict.text + transports(trained.output), distance=verdict.distance, losses=ours)


def judge_same(name: str, first: Trained, second: Trained, steps: int, failure: str, results: Results) -> None:
    """Compares every digit of all steps; for runs that were cut short, of the steps that both made."""
    failure = first.failure or second.failure or failure
    if first.cut or second.cut:
        steps = min(steps, len(curves.losses(first.curve)), len(curves.losses(second.curve)))
        if not failure and steps < curves.LEAST_STEPS_OVER_NCCL:
            results.skipped('layouts', name, f'only {steps} steps in {first.seconds:.0f} and {second.seconds:.0f} s: too few for a verdict')
            return
    verdict = curves.judge_identical(first.curve, second.curve, steps)
    results.judged('layouts', name, verdict.good and not failure, failure or verdict.text)


def check_determinism(place: machine.Place, results: Results, limit_s: float) -> None:
    """Twice the same; and once more with a kill -9 in the middle, which must not show in the curve."""
    budget = Budget(limit_s)
    layout = LAYOUTS[1]
    first, again = (Run(f'deterministic bf16, {layout.name}, {which}', layout, place.device, 'bf16', RESTART_STEPS, deterministic=True)
                    for which in ('first', 'again'))
    killed = Run(f'kill -9 of rank 1, deterministic bf16, {layout.name}', layout, place.device, 'bf16', RESTART_STEPS, deterministic=True,
                 max_restarts=2, checkpoints=True)
    reference = train(first, place, budget.left() / 3, results)
    repeated = train(again, place, budget.left() / 2, results)
    judge_same(f'deterministic bf16, {layout.name}, twice', reference, repeated, RESTART_STEPS, '', results)
    # A run that was cut short still has its first steps to compare with.
    unkilled = max((trained.curve for trained in (reference, repeated) if not trained.failure), key=lambda curve: len(curves.losses(curve)), default={})
    steps = len(curves.losses(unkilled))
    if steps < LEAST_RESTART_STEPS:
        results.skipped('layouts', killed.name, f'the runs without a kill came to step {steps} at most, {LEAST_RESTART_STEPS} are needed to compare with: '
                        'mend that, or run it again with --only deterministic')
    elif budget.left() < LEAST_SECONDS:
        results.skipped('layouts', killed.name, 'no time left in this call: run it again with --only deterministic')
    else:
        check_kill(killed, place, budget.left(), unkilled, results)


def check_kill(run: Run, place: machine.Place, limit_s: float, reference: Dict[int, curves.Step], results: Results) -> None:
    """Compared as far as the reference goes."""
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
    curve = curves.read(metrics_path(run, place))
    if done.code is None:
        # Until the kill it had to make steps; from then on it has a start's time to begin again.
        begun = curve if killed_at is None or recovered_after is not None else {}
        stalled = why_stalled(begun, silent_seconds(run, place, done), limit_s if begun is curve else deadline - killed_at, run.layout.floor_s)
        if stalled:
            results.failed('layouts', run.name, f'{stalled}{"" if begun is curve else " after the kill"}')
        else:
            results.skipped('layouts', run.name, f'stopped after step {max(curve, default=0)}: no time left, run it again with --only deterministic')
        return
    if killed_at is None or recovered_after is None or done.code != 0:
        why = 'no rank could be killed' if killed_at is None else 'no step came after the kill' if recovered_after is None else ''
        results.failed('layouts', run.name, f'ended with {done.code}; {why or processes.last_line(done.output)}')
        return
    verdict = curves.judge_identical(reference, curve, len(curves.losses(reference)))
    results.judged('layouts', run.name, verdict.good, f'next step {recovered_after:.2f} s after the kill; against the run without a kill: {verdict.text}',
                   recovery_seconds=recovered_after)


def why_no_graphs(output: str) -> str:
    """Why a run with --cuda-graphs proves nothing about graphs; '' when it does. The messages are
    worker_runtime/trainer/device_choice.cc's and schedule/graphed_stage.cc's."""
    if 'CUDA graphs  on' not in output:
        return 'the trainer did not switch its graphs on'
    failed = [line.strip() for line in output.splitlines() if 'CUDA graphs are off from here on' in line]
    return failed[0][:300] if failed else ''


def check_graphs(layout: Layout, place: machine.Place, results: Results, limit_s: float) -> None:
    """Passes that are queued as CUDA graphs must not change a digit of the curve."""
    budget = Budget(limit_s)
    name = graphs_name(layout)
    plain = Run(f'{name}: without', layout, place.device, 'bf16', GRAPH_STEPS, deterministic=True)
    without = train(plain, place, budget.left() / 2, results)
    graphed = train(plain._replace(name=name, cuda_graphs=True), place, budget.left(), results)
    # A run that was stopped before its first step had no time to report that.
    unused = '' if graphed.cut and not graphed.curve else why_no_graphs(graphed.output)
    judge_same(name, without, graphed, GRAPH_STEPS, unused, results)


class Timed(NamedTuple):
    """The trainer's line about products (worker_runtime/tuning/job_choices.cc)."""
    known: int
    timed: int
    seconds: float


def how_timed(output: str) -> Optional[Timed]:
    found = re.search(r'algorithms of products: (\d+) known, (\d+) timed in ([\d.]+) s', output)
    return found and Timed(int(found.group(1)), int(found.group(2)), float(found.group(3)))


def check_kept(place: machine.Place, results: Results, limit_s: float) -> None:
    """Two starts with a folder of their own: the second one times no product, and changes no digit of fp32's curve (attention by our own kernels)."""
    budget = Budget(limit_s)
    first = Run(f'{KEPT}: first', SINGLE, place.device, 'fp32', KEPT_STEPS, tuning='kept-choices')
    starts = [train(first, place, budget.left() / 2, results), train(first._replace(name=KEPT), place, budget.left(), results)]
    failure = next((start.failure for start in starts if start.failure), '')
    if not failure and not all(start.curve for start in starts):
        results.skipped('layouts', KEPT, f'a start made no step in its share of {limit_s:.0f} s: run it again with --only \'{KEPT}\'')
        return
    timed, kept = (how_timed(start.output) for start in starts)
    if not failure and (timed is None or kept is None or timed.timed == 0 or kept.timed > 0):
        failure = f'the first start was to time products and the second one none: {timed}, then {kept}'
    if failure:
        results.failed('layouts', KEPT, failure)
        return
    verdict = curves.judge_identical(starts[0].curve, starts[1].curve, min(max(start.curve) for start in starts))
    seconds = [start.curve[min(start.curve)].seconds for start in starts]
    results.judged('layouts', KEPT, verdict.good, f'first step {seconds[0]:.2f} s with {timed.timed} products timed in {timed.seconds:.2f} s, '
                   f'{seconds[1]:.2f} s with kept choices; {verdict.text}', first_step_seconds=seconds, timing_seconds=timed.seconds)


def check_recovery(place: machine.Place, results: Results, limit_s: float) -> None:
    """A worker is killed, and its place taken by a new process or by a spare that has opened the GPU before; the state comes from memory."""
    budget = Budget(limit_s)
    seconds: Dict[str, List[float]] = {}
    turn_s = 0.0
    for turn in range(recovery.TURNS):
        before = budget.left()
        if turn > 0 and before < 1.5 * turn_s:
            break
        for kind in ('cold', 'warm'):
            run = Run(f'{KILLED}: {kind} {turn}', SINGLE, place.device, 'bf16' if place.device == 'cuda' else 'fp32', steps=100_000, max_restarts=2,
                      copies=True, warm_workers=kind == 'warm')
            recovered = recovery.recover(train_command(run, place), run_environment(run, place), metrics_path(run, place), run.warm_workers, budget.left())
            results.log(run.name, recovered.output)
            if recovered.seconds is not None:
                seconds.setdefault(kind, []).append(recovered.seconds)
            elif recovered.cut:
                results.skipped('layouts', KILLED, f'{kind}: {recovered.why}: run it again with --only \'{KILLED}\'')
                return
            else:
                results.failed('layouts', KILLED, f'{kind}: {recovered.why}')
                return
        turn_s = before - budget.left()
    results.measured('layouts', KILLED, recovery.summary(seconds), recovery_seconds=seconds)


def graphed_layouts(device: str) -> List[Layout]:
    """Without tensor parallelism: the trainer captures no other. There are no graphs on a CPU."""
    return [layout for layout in LAYOUTS if layout.tp == 1 and device == 'cuda']


def graphs_name(layout: Layout) -> str:
    return f'CUDA graphs, deterministic bf16, {layout.name}'


class Item(NamedTuple):
    """An item that --only can choose; it gets a share of the time."""
    name: str
    floor_s: float
    work: Callable[[float], None]  # with the seconds it may take


def runs_of(layouts: List[Layout], device: str) -> List[Run]:
    return [Run(f'{precision}, {layout.name}', layout, device, precision, enough=STEPS if layout.ranks == 1 else STEPS_OVER_NCCL)
            for layout in layouts for precision in ('fp32', 'bf16')]


def all_items(compared: Curves, place: machine.Place, results: Results) -> List[Item]:
    """In the order of their worth: runs of one rank come first, because all others rest on them."""
    alone, together = ([Item(run.name, run.layout.floor_s, functools.partial(compared.check, run)) for run in runs_of(layouts, place.device)]
                       for layouts in ([SINGLE], LAYOUTS[1:]))
    deterministic = Item(DETERMINISTIC, 3 * RUN_FLOOR_SECONDS, functools.partial(check_determinism, place, results))
    graphs = [Item(graphs_name(layout), 2 * RUN_FLOOR_SECONDS, functools.partial(check_graphs, layout, place, results))
              for layout in graphed_layouts(place.device)]
    kept = [Item(KEPT, 2 * RUN_FLOOR_SECONDS, functools.partial(check_kept, place, results))] if place.device == 'cuda' else []
    killed = Item(KILLED, 2 * RUN_FLOOR_SECONDS, functools.partial(check_recovery, place, results))
    return [*alone, deterministic, *kept, killed, *together, *graphs]


def plan(place: machine.Place, only: AbstractSet[str], results: Results) -> List[Item]:
    """`only`: the names of the items; empty: all of them. The measures that they need come first."""
    compared = Curves(place, results)
    chosen = [item for item in all_items(compared, place, results) if not only or item.name in only]
    precisions = {run.precision for run in runs_of(LAYOUTS, place.device) if any(item.name == run.name for item in chosen)}
    measures = [Item(ORACLE, RUN_FLOOR_SECONDS, compared.learn_oracle)] if precisions else []
    if place.torch and 'bf16' in precisions:
        measures.append(Item('PyTorch, bf16 against fp32', RUN_FLOOR_SECONDS, compared.learn_distances))
    return measures + chosen


def names(device: str) -> List[str]:
    """The names that --only knows."""
    kept = [KEPT] if device == 'cuda' else []
    return [*(run.name for run in runs_of(LAYOUTS, device)), DETERMINISTIC, *kept, KILLED, *map(graphs_name, graphed_layouts(device))]


def needs_torch(device: str, only: AbstractSet[str]) -> bool:
    """Whether PyTorch's distance is the measure of a chosen item."""
    return any(run.precision == 'bf16' and (not only or run.name in only) for run in runs_of(LAYOUTS, device))


def check(bundle: str, device: str, environment: Dict[str, str], torch: Callable[[], Dict[str, Any]], budget: Budget, only: AbstractSet[str],
          results: Results) -> None:
    """`torch` tells PyTorch's facts, and is asked where an item needs them."""
    with tempfile.TemporaryDirectory(prefix='gpu_check.') as folder:
        place = machine.Place(bundle, folder, device, environment, torch() if needs_torch(device, only) else {})
        with open(f'{folder}/text.txt', 'w', encoding='ascii') as file:
            file.write(text.made_up_text(TEXT_BYTES))
        for item, share in budget.shares(plan(place, only, results), floor=lambda item: item.floor_s):
            with results.of(item.name if item.name in names(device) else ''):  # a measure comes with each item that needs it
                if share < LEAST_SECONDS:
                    results.skipped('layouts', item.name, f'no time left in this call: run it again with --only \'{item.name}\'')
                else:
                    item.work(share)
