"""Loss curves: reading them, and deciding whether two are the same. No side effects but reading.

How near is near enough:
- fp32: |loss - oracle| of the oracle, which is the same program on the CPU, is at most 1e-6 in the first 40 steps and 1e-4 in the later ones.
  Sums in another order are no fault, and training makes what they change larger, step by step. So both numbers are about 50 times what other
  orders gave at the shape, text and 200 steps of layouts.py, each against one rank on a CPU with AVX-512 (2026-11-25):

      largest distance          1st step   first 40   all 200
      tp 2 on the CPU           2.9e-10    2.1e-8     1.4e-6
      oneDNN held to AVX2       1.2e-10    1.9e-8     0.8e-6
      dp 2 on the CPU           0          2.0e-8     0.7e-6
      pp 2 on the CPU           0          0          0
      our kernels, emulated     4.1e-10    1.3e-8     after 50 steps 2.2e-7, where tp 2 had 2.4e-7

  A GPU's fast exponential may make that ten times as much. TF32, whose roundings are thousands of times coarser, stays far outside.
- bf16 (the self-calibrating rule): d = root of the mean over steps of ((bf16 - fp32) / fp32)^2, both of one program from the same weights and
  the same data. Ours, against the CPU's fp32, is at most twice the largest of PyTorch's (bf16 weights and activations with fp32 master
  weights, against PyTorch's fp32) over three seeds, at the same shape, batch, schedule and text. No constant of ours decides.
- deterministic: every loss and every gradient norm has the same digits (the file keeps a number's exact value).
"""

import json
import math
from typing import Dict, List, NamedTuple, Optional, Sequence

FP32_EARLY_STEPS = 40
FP32_EARLY_TOLERANCE = 1e-6
FP32_TOLERANCE = 1e-4
BF16_FACTOR = 2.0
LEAST_STEPS = 30  # a run cut short by its deadline still counts when it came so far
LEAST_STEPS_OVER_NCCL = 10  # likewise, of several ranks that take turns on one GPU
LEAST_FALL = 0.5  # nats a token: a curve that stays level would prove nothing


class Step(NamedTuple):
    loss: float
    grad_norm: float
    epoch: int
    seconds: float


def parse_metrics(text: str) -> Dict[int, Step]:
    """convene-train's metrics file; a torn last line is left out, and of a step done twice the later counts."""
    curve = {}
    for line in text.split('\n')[:-1]:
        record = json.loads(line)
        if 'loss' in record:
            curve[record['step']] = Step(number(record['loss']), number(record['grad_norm']), record.get('epoch', 0), record.get('step_seconds', 0.0))
    return curve


def number(value: Optional[float]) -> float:
    return math.nan if value is None else float(value)


def read(path: str) -> Dict[int, Step]:
    try:
        with open(path, encoding='utf-8') as file:
            return parse_metrics(file.read())
    except FileNotFoundError:
        return {}


def losses(curve: Dict[int, Step]) -> List[float]:
    """From step 1 on, up to the first that is missing."""
    found = []
    while len(found) + 1 in curve:
        found.append(curve[len(found) + 1].loss)
    return found


def relative(ours: Sequence[float], oracle: Sequence[float]) -> List[float]:
    """NaN (never near enough) where either is no number."""
    return [(a - b) / b if math.isfinite(a) and math.isfinite(b) else math.nan for a, b in zip(ours, oracle)]


def root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values)) if values else math.nan


class Verdict(NamedTuple):
    good: bool
    text: str
    distance: float


def _too_little(ours: Sequence[float], oracle: Sequence[float], least: int) -> Optional[Verdict]:
    steps = min(len(ours), len(oracle))
    if steps < least:
        return Verdict(False, f'only {len(ours)} steps (the oracle has {len(oracle)}): at least {least} are compared', math.nan)
    if not oracle[0] - min(oracle) >= LEAST_FALL:
        return Verdict(False, f'the oracle itself learned nothing: {oracle[0]:.3f} -> {min(oracle):.3f}', math.nan)
    return None


def judge_fp32(ours: Sequence[float], oracle: Sequence[float], least: int = LEAST_STEPS) -> Verdict:
    too_little = _too_little(ours, oracle, least)
    if too_little:
        return too_little
    differences = [abs(value) for value in relative(ours, oracle)]
    early, worst = largest(differences[:FP32_EARLY_STEPS]), largest(differences)
    # Written so that a NaN fails.
    return Verdict(early <= FP32_EARLY_TOLERANCE and worst <= FP32_TOLERANCE,
                   f'{len(differences)} steps, at most {worst:.1e} from the CPU (allowed {FP32_TOLERANCE:.0e}), '
                   f'{early:.1e} in the first {FP32_EARLY_STEPS} (allowed {FP32_EARLY_TOLERANCE:.0e})', worst)


def largest(values: Sequence[float]) -> float:
    return math.nan if any(math.isnan(value) for value in values) else max(values)


def judge_bf16(ours: Sequence[float], oracle: Sequence[float], torch_distances: Sequence[float], least: int = LEAST_STEPS) -> Verdict:
    too_little = _too_little(ours, oracle, least)
    if too_little:
        return too_little
    distance = root_mean_square(relative(ours, oracle))
    allowed = BF16_FACTOR * max(torch_distances, default=math.nan)
    steps = min(len(ours), len(oracle))
    return Verdict(distance <= allowed, f'{steps} steps, {distance:.1e} from fp32 (allowed {allowed:.1e}: {BF16_FACTOR:.0f} x PyTorch\'s)', distance)


def judge_identical(first: Dict[int, Step], second: Dict[int, Step], steps: int) -> Verdict:
    """repr tells every bit of a float."""
    for step in range(1, steps + 1):
        if step not in first or step not in second:
            return Verdict(False, f'step {step} of {steps} is missing in the {"first" if step not in first else "second"} run', math.nan)
        a, b = first[step], second[step]
        if repr((a.loss, a.grad_norm)) != repr((b.loss, b.grad_norm)) or math.isnan(a.loss):
            return Verdict(False, f'step {step} differs: loss {a.loss!r} and {b.loss!r}, gradient norm {a.grad_norm!r} and {b.grad_norm!r}', math.nan)
    return Verdict(True, f'{steps} steps have the same digits', 0.0)
