"""The second half of `bench`: training steps of Llama shapes in bf16, ours and PyTorch's in turns."""

import os
import re
import statistics
import tempfile
from typing import AbstractSet, Any, Callable, Dict, List, NamedTuple, Optional

import budget as budgets
import curves
import machine
import peer
import processes
import text
from results import Results

# The H100 SXM's and H200's dense bf16 rate, which Megatron and torchtitan divide by too.
PEAK_TFLOPS = 989.0
# The goals of issue 3.
LEAST_SPEED_RATIO = 1.15
MOST_MEMORY_RATIO = 0.9
REFUSED = 64  # convene-train's exit code for what it does not start
LEAST_SHARE_OF_PEAK = 0.55  # at 1B and above
SHARE_FROM_PARAMETERS = 1_000_000_000
WARM_UP_STEPS = 5
STEPS = 25
TURNS = 2
TORCH_SHARE = 0.7  # of a case's time, at most, for PyTorch's turn
LEAST_SECONDS = 20  # with less left nothing is started
# PyTorch reads its libraries, compiles its kernels and gives its figures at the end; cut short, it gives none, and its time is lost.
CASE_FLOOR_SECONDS = 120
TEXT_BYTES = 4_000_000


class Shape(NamedTuple):
    layers: int
    hidden_size: int
    ffn_size: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary_size: int
    tied_embeddings: int


# convene-train's named models of the same names (worker_runtime/model/config.cc).
SHAPES = {
    'llama-15m': Shape(8, 384, 1024, 8, 8, 48, 256, 0),
    'llama-125m': Shape(12, 768, 2048, 12, 12, 64, 50304, 1),
    'llama-350m': Shape(24, 1024, 2816, 16, 16, 64, 50304, 1),
    'llama-3.2-1b': Shape(16, 2048, 8192, 32, 8, 64, 128256, 1),
    'llama-3.2-3b': Shape(28, 3072, 8192, 24, 8, 128, 128256, 1),
}


class Case(NamedTuple):
    model: str
    sequence_length: int
    micro_batch_size: int  # one micro batch a step, large enough to fill the GPU

    @property
    def name(self) -> str:
        return f'{self.model}, {self.micro_batch_size} x {self.sequence_length}'

    @property
    def tokens(self) -> int:
        return self.sequence_length * self.micro_batch_size


# In the order of their worth: one call has time for three or four.
CASES = {
    'cuda': [Case('llama-3.2-1b', 2048, 8), Case('llama-125m', 1024, 32), Case('llama-3.2-3b', 4096, 2), Case('llama-350m', 2048, 16),
             Case('llama-3.2-1b', 8192, 2)],
    'cpu': [Case('llama-15m', 256, 8)],
}


def parameters(shape: Shape) -> int:
    """formulas.md, section 4."""
    h, head = shape.hidden_size, shape.head_size
    layer = 2 * h * shape.heads * head + 2 * h * shape.kv_heads * head + 3 * h * shape.ffn_size + 2 * h
    return shape.layers * layer + (1 if shape.tied_embeddings else 2) * h * shape.vocabulary_size + h


def flops_per_token(shape: Shape, sequence_length: int, causal: bool) -> float:
    """Forward and backward: 6 a matrix parameter (the head's included, the norms' not, an untied embedding's not), and attention's
    12 L h s, of which a causal mask needs half."""
    h, head = shape.hidden_size, shape.head_size
    layer = 2 * h * shape.heads * head + 2 * h * shape.kv_heads * head + 3 * h * shape.ffn_size
    products = 6 * (shape.layers * layer + h * shape.vocabulary_size)
    return products + (6 if causal else 12) * shape.layers * shape.heads * head * sequence_length


class Sample(NamedTuple):
    """One turn of one rival."""
    step_seconds: List[float]  # of the steps that count
    peak_mib: Optional[float]  # on the whole GPU, less what was in use before
    facts: Dict[str, Any]      # what it said of itself


def steady(step_seconds: List[float]) -> List[float]:
    """Without the warm-up; of a run cut short, at least its later half."""
    return step_seconds[min(WARM_UP_STEPS, len(step_seconds) // 2):]


def profile_shares(output: str) -> Dict[str, float]:
    """Shares of a step's time, from the groups in the last table of convene-train --profile (worker_runtime/profile/step_profile.h)."""
    table = output.partition('profile of ')[2]
    return {name: float(share) for name, share in re.findall(r'^(\S+) +-?[\d.]+ +(-?[\d.]+)%$', table, re.MULTILINE)}


def train_command(case: Case, device: str, place: machine.Place, metrics: str, *flags: str) -> List[str]:
    return [f'{place.bundle}/bin/convene-train', '--model', case.model, '--data', f'{place.folder}/text.txt',
            '--token-cache-dir', f'{place.folder}/tokens', '--steps', str(STEPS), '--global-batch-size', str(case.micro_batch_size),
            '--micro-batch-size', str(case.micro_batch_size), '--sequence-length', str(case.sequence_length), '--validation-every', '0',
            '--validation-samples', '1', '--device', device, '--metrics-file', metrics,
            *([] if '--precision' in flags else ['--precision', 'bf16' if device == 'cuda' else 'fp32']), *flags]


def run_ours(case: Case, place: machine.Place, gpu: str, limit_s: float, results: Results, *flags: str) -> Optional[Sample]:
    metrics = f'{place.folder}/metrics.jsonl'
    with machine.MemoryWatch(gpu) as watch:
        done = processes.run(train_command(case, place.device, place, metrics, *flags), place.environment, limit_s)
    name = ' '.join(['convene-train', *flags]) + f', {case.name}'
    results.log(name, done.output)
    seconds = [step.seconds for _, step in sorted(curves.read(metrics).items())]
    if done.code is None and not steady(seconds):
        results.skipped('bench', name, f'stopped after {limit_s:.0f} s, before a step was done: run it again with --only \'{case.name}\'')
        return None
    if done.code == REFUSED and '--precision' in flags:
        results.skipped('bench', name, f'refused on this card: {processes.last_line(done.output)}')
        return None
    if done.code not in (0, None) or not steady(seconds):
        results.failed('bench', name, f'ended with {done.code}: {processes.last_line(done.output)}')
        return None
    os.remove(metrics)
    return Sample(steady(seconds), watch.peak_mib, {})


def run_profiled(case: Case, place: machine.Place, limit_s: float, results: Results) -> None:
    """A run apart from the turns that count, because watching every op costs a little."""
    metrics = f'{place.folder}/metrics.jsonl'
    name = profile_name(case)
    done = processes.run(train_command(case, place.device, place, metrics, '--profile'), place.environment, limit_s)
    results.log(name, done.output)
    if os.path.exists(metrics):
        os.remove(metrics)
    shares = profile_shares(done.output)
    if shares:
        results.measured('bench', name, ', '.join(f'{group} {share:.1f} %' for group, share in shares.items()), shares=shares)
    elif done.code is None:
        results.skipped('bench', name, f'stopped after {limit_s:.0f} s, and a profile comes at the end: run it again with --only \'{case.name}\'')
    else:
        results.failed('bench', name, f'ended with {done.code} and without a profile: {processes.last_line(done.output)}')


def profile_name(case: Case) -> str:
    return f'convene-train --profile, {case.name}'


def run_torch(case: Case, place: machine.Place, gpu: str, limit_s: float, results: Results) -> Optional[Sample]:
    request = {**SHAPES[case.model]._asdict(), 'device': place.device, 'precision': 'bf16' if place.device == 'cuda' else 'fp32', 'compile': True,
               'seed': 1, 'steps': STEPS, 'sequence_length': case.sequence_length, 'micro_batch_size': case.micro_batch_size, 'learning_rate': 1e-4,
               'data': f'{place.folder}/text.txt'}
    # The second turn finds the first one's compiled code.
    cache = {'TORCHINDUCTOR_CACHE_DIR': f'{place.folder}/inductor', 'TRITON_CACHE_DIR': f'{place.folder}/triton'}
    with machine.MemoryWatch(gpu) as watch:
        done = peer.run([request], place._replace(environment={**place.environment, **cache}), limit_s)
    results.log(f'PyTorch, {case.name}', done.output)
    answers = peer.parse(done.output)
    if not answers:
        how = f'stopped after {limit_s:.0f} s' if done.code is None else processes.last_line(done.output)
        results.skipped('bench', f'PyTorch, {case.name}', f'no figure of PyTorch: {how}')
        return None
    return Sample(steady(answers[0].step_seconds), watch.peak_mib, answers[0].facts)


def summary(case: Case, samples: List[Sample]) -> Dict[str, Any]:
    """The figures of one rival over its turns."""
    shape = SHAPES[case.model]
    speed = case.tokens / statistics.median(second for sample in samples for second in sample.step_seconds)
    full, causal = (speed * flops_per_token(shape, case.sequence_length, which) / 1e12 for which in (False, True))
    peaks = [sample.peak_mib for sample in samples if sample.peak_mib is not None]
    return {'tokens_per_second': speed, 'tflops_full': full, 'tflops_causal': causal, 'share_of_peak_full': full / PEAK_TFLOPS,
            'share_of_peak_causal': causal / PEAK_TFLOPS, 'peak_mib': max(peaks) if peaks else None, 'facts': samples[-1].facts,
            'step_seconds': [sample.step_seconds for sample in samples]}


def summary_text(figures: Dict[str, Any]) -> str:
    peak = f', peak {figures["peak_mib"] / 1024:.1f} GiB' if figures['peak_mib'] is not None else ''
    return (f'{figures["tokens_per_second"]:.0f} tokens/s, {figures["tflops_full"]:.1f} TFLOP/s ({figures["share_of_peak_full"]:.1%} of {PEAK_TFLOPS:.0f}; '
            f'causal count {figures["tflops_causal"]:.1f}, {figures["share_of_peak_causal"]:.1%}){peak}')


def facts_text(facts: Dict[str, Any]) -> str:
    return ', '.join(f'{name} {value:.4g}' if isinstance(value, float) else f'{name} {value}' for name, value in facts.items())


def compare(case: Case, ours: Dict[str, Any], theirs: Optional[Dict[str, Any]]) -> str:
    """Ratios beside their goals."""
    parts = []
    if theirs:
        ratio = ours['tokens_per_second'] / theirs['tokens_per_second']
        parts.append(f'{ratio:.2f} x PyTorch\'s speed (goal {LEAST_SPEED_RATIO}{"" if ratio >= LEAST_SPEED_RATIO else ": MISSED"})')
        if ours['peak_mib'] and theirs['peak_mib']:
            memory = ours['peak_mib'] / theirs['peak_mib']
            parts.append(f'{memory:.2f} x its memory (goal {MOST_MEMORY_RATIO}{"" if memory <= MOST_MEMORY_RATIO else ": MISSED"})')
    if parameters(SHAPES[case.model]) >= SHARE_FROM_PARAMETERS:
        share = ours['share_of_peak_full']
        parts.append(f'{share:.1%} of the peak (goal {LEAST_SHARE_OF_PEAK:.0%}{"" if share >= LEAST_SHARE_OF_PEAK else ": MISSED"})')
    return ', '.join(parts)


def measure(case: Case, place: machine.Place, gpu: str, limit_s: float, turns: int, results: Results) -> None:
    """PyTorch runs first: the rest of this case's time is then known, and enough for ours. Both get up to `turns` turns, as many as fit."""
    budget = budgets.Budget(limit_s)
    ours: List[Sample] = []
    theirs: List[Sample] = []
    turn_s = 0.0
    while len(ours) < turns and budget.left() > turn_s:
        before = budget.left()
        if place.torch and (not ours or theirs):
            sample = run_torch(case, place, gpu, budget.left() * TORCH_SHARE, results)
            theirs += [sample] if sample else []
        sample = run_ours(case, place, gpu, budget.left(), results)
        if sample is None:
            break
        ours.append(sample)
        turn_s = before - budget.left()
        if len(ours) == 1:
            measure_more(case, place, gpu, budget, summary(case, ours), results)
    their_figures = summary(case, theirs) if theirs else None
    if their_figures:
        results.measured('bench', f'PyTorch, {case.name}', f'{summary_text(their_figures)}; {facts_text(their_figures["facts"])}', **their_figures)
    if not ours:
        return
    our_figures = summary(case, ours)
    results.measured('bench', f'convene-train, {case.name}', summary_text(our_figures), **our_figures)
    comparison = compare(case, our_figures, their_figures)
    if comparison:
        fewer = f'; {len(ours)} of {turns} turns: no time for more' if len(ours) < turns else ''
        results.measured('bench', f'ours beside PyTorch, {case.name}', comparison + fewer)


def measure_more(case: Case, place: machine.Place, gpu: str, budget: budgets.Budget, without: Dict[str, Any], results: Results) -> None:
    """Extra runs, more useful than second turns: they show where a step's time goes, and what the flags are worth that are off by default."""
    if budget.left() < LEAST_SECONDS:
        results.skipped('bench', profile_name(case), f'no time left for this case: run it again with --only \'{case.name}\'')
    else:
        run_profiled(case, place, budget.left() / 2, results)
    if place.device != 'cuda':
        return
    for flags in (('--cuda-graphs',), ('--precision', 'fp8')):
        name = ' '.join(['convene-train', *flags]) + f', {case.name}'
        if budget.left() < LEAST_SECONDS:
            results.skipped('bench', name, f'no time left for this case: run it again with --only \'{case.name}\'')
            continue
        sample = run_ours(case, place, gpu, budget.left(), results, *flags)
        if sample is None:
            continue
        figures = summary(case, [sample])
        ratio = figures['tokens_per_second'] / without['tokens_per_second']
        results.measured('bench', name, f'{ratio:.3f} x the speed without: {summary_text(figures)}', ratio_to_without=ratio, **figures)


def chosen_cases(device: str, only: AbstractSet[str]) -> List[Case]:
    return [case for case in CASES[device] if not only or case.name in only]


def bench(cases: List[Case], place_in: Callable[[str], machine.Place], gpu: str, turns: int, budget: budgets.Budget, results: Results) -> None:
    """`place_in` makes the place of a folder."""
    with tempfile.TemporaryDirectory(prefix='gpu_check.') as folder:
        place = place_in(folder)
        with open(f'{folder}/text.txt', 'w', encoding='ascii') as file:
            file.write(text.made_up_text(TEXT_BYTES))
        # A larger model takes longer to fill, to compile and to step.
        for case, share in budget.shares(cases, lambda case: 1 + SHAPES[case.model].layers / 24, lambda case: CASE_FLOOR_SECONDS):
            with results.of(case.name):
                if share < LEAST_SECONDS:
                    results.skipped('bench', case.name, f'no time left in this call: run it again with --only \'{case.name}\'')
                else:
                    measure(case, place, gpu, share, turns, results)
