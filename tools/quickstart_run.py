#!/usr/bin/python3
"""tools/quickstart after installing: builds, trains on 8 processes, kills one of them, shows that the model learned."""

import argparse
import fcntl
import glob
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from typing import Callable, Dict, List, Optional

import loss_plot

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGETS = {'convene': '//launcher:convene', 'convene-train': '//worker_runtime/trainer:convene-train'}
# Perl's manual, in Debian's perl-doc: 9 MB of English prose and code. The dot: 5.36 is a link to 5.36.0.
DATA = '/usr/share/perl/5.36.*/pod/*.pod'
# One page of the manual, 0.3 MB, comes with Perl itself. The figures that we promise are those of the whole manual.
LEAST_MANUAL_MB = 5
RUN = 'quickstart-run'
METRICS = f'{RUN}/metrics.jsonl'
CHECKPOINTS = f'{RUN}/checkpoints'
WORKERS = 8
STEPS = 300
CHECKPOINT_EVERY = 20
# The loss must fall by at least this much (nats a token) and end below the bound, or the demonstration failed: letter frequencies alone
# give about 3.1, pairs of letters about 2.5.
LEAST_FALL = 2.0
HIGHEST_LAST_LOSS = 2.6
# A shorter run is not promised as much: 42 steps, the fewest, fell by 1.9.
LEAST_FALL_OF_FEWER_STEPS = 1.0
LIMIT_SECONDS = 15 * 60
# Every process has this in its environment, so that we find each one even when its parent is gone.
MARK = f'CONVENE_QUICKSTART={uuid.uuid4()}'


class Failure(Exception):
    """The demonstration did not do what it promises; the text says what and where to look."""


def say(text: str) -> None:
    print(f'\n\033[1m==> {text}\033[0m' if sys.stdout.isatty() else f'\n==> {text}', flush=True)


def build() -> str:
    """Builds the programs and returns their folders' root."""
    say(f'Building {", ".join(TARGETS)} (some minutes the first time, seconds after that)')
    if subprocess.run(['bazel', 'build', *TARGETS.values()], cwd=ROOT, check=False).returncode != 0:
        raise Failure('the build failed; its first error is above')
    return subprocess.run(['bazel', 'info', 'bazel-bin'], cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True).stdout.strip()


def program_paths(programs: Optional[str]) -> Dict[str, str]:
    if programs is None:
        built = build()
        paths = {name: os.path.join(built, target[2:].replace(':', '/')) for name, target in TARGETS.items()}
    else:
        paths = {name: os.path.realpath(os.path.join(programs, name)) for name in TARGETS}
    for path in paths.values():
        if not os.access(path, os.X_OK):
            raise Failure(f'no program at {path}')
    return paths


def short_paths(built: Dict[str, str]) -> Dict[str, str]:
    """Links to the programs in the run's folder: commands that a person can read and type again."""
    os.makedirs(os.path.join(ROOT, RUN, 'bin'))
    for name, path in built.items():
        os.symlink(path, os.path.join(ROOT, RUN, 'bin', name))
    return {name: f'{RUN}/bin/{name}' for name in built}


def precision_for(cpu_flags: List[str]) -> str:
    """bf16 where the processor multiplies it itself; elsewhere fp32 is the faster one."""
    return 'bf16' if {'amx_bf16', 'avx512_bf16'} & set(cpu_flags) else 'fp32'


def cpu_flags() -> List[str]:
    with open('/proc/cpuinfo', encoding='utf-8') as cpuinfo:
        return next((line.split() for line in cpuinfo if line.startswith('flags')), [])


def train_command(paths: Dict[str, str], data: str, steps: int) -> List[str]:
    return [paths['convene'], 'run', '--standalone', '--nproc-per-node', str(WORKERS), '--max-restarts', '3', paths['convene-train'],
            '--model', 'llama-tiny', '--data', data, '--tp-size', '2', '--pp-size', '2', '--steps', str(steps),
            '--global-batch-size', '32', '--micro-batch-size', '8', '--sequence-length', '128', '--learning-rate', '6e-3',
            '--precision', precision_for(cpu_flags()), '--log-every', '20', '--validation-every', '100',
            '--checkpoint-dir', CHECKPOINTS, '--checkpoint-every', str(CHECKPOINT_EVERY), '--metrics-file', METRICS]


def read_metrics() -> List[dict]:
    path = os.path.join(ROOT, METRICS)
    return loss_plot.read_metrics(path) if os.path.exists(path) else []


def step_metrics() -> List[dict]:
    return [line for line in read_metrics() if line.get('loss') is not None]


def environment_of(pid: int) -> List[str]:
    try:
        with open(f'/proc/{pid}/environ', 'rb') as file:
            return file.read().decode('utf-8', 'replace').split('\0')
    except OSError:  # it ended, or is not ours
        return []


def marked_processes() -> List[int]:
    pids = [int(name) for name in os.listdir('/proc') if name.isdigit() and int(name) != os.getpid()]
    return [pid for pid in pids if MARK in environment_of(pid)]


def worker_of_rank(rank: int) -> Optional[int]:
    return next((pid for pid in marked_processes() if f'RANK={rank}' in environment_of(pid)), None)


def stop_everything(launcher: subprocess.Popen) -> None:
    """Asks the launcher to end the job, then makes sure that no process of it is left."""
    if launcher.poll() is None:
        launcher.terminate()
        try:
            launcher.wait(15)
        except subprocess.TimeoutExpired:
            pass
    for pid in marked_processes():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    launcher.wait()


def kill_one_worker(last: dict, rank: int) -> dict:
    """Kills a worker; `last` is the newest line of the metrics. Returns what verify() needs to know of it."""
    pid = worker_of_rank(rank)
    if pid is None:
        raise Failure(f'no worker with RANK={rank} was found among the launcher\'s processes')
    say(f'Step {last["step"]}: kill -9 {pid}, the worker of rank {rank}. What the launcher says and does now:')
    os.kill(pid, signal.SIGKILL)
    return {'epoch': last['epoch'], 'step': last['step'], 'time': time.monotonic()}


def watch(launcher: subprocess.Popen, steps: int, rank: int) -> dict:
    """Waits for the job's end and kills a worker on the way. Returns what happened around the kill."""
    deadline = time.monotonic() + LIMIT_SECONDS
    kill: dict = {}
    while launcher.poll() is None:
        if time.monotonic() > deadline:
            raise Failure(f'the training did not end within {LIMIT_SECONDS // 60} minutes')
        lines = step_metrics()
        if not kill and lines and lines[-1]['step'] >= steps // 2:
            kill = kill_one_worker(lines[-1], rank)
        elif kill and lines and 'recovery_seconds' not in kill and lines[-1]['epoch'] > kill['epoch']:
            kill['recovery_seconds'] = time.monotonic() - kill['time']
        time.sleep(0.05)
    if launcher.returncode != 0:
        raise Failure(f'the launcher ended with exit code {launcher.returncode}; its last lines are above')
    if not kill:
        raise Failure('the training ended before a worker could be killed: ask for more --steps')
    return kill


def average_loss(lines: List[dict]) -> float:
    return sum(line['loss'] for line in lines) / len(lines)


def train(command: List[str], steps: int, rank: int) -> None:
    """Runs the job and kills the worker of a rank on the way. Raises Failure unless the job went on after that and lost no step."""
    print(shlex.join(command), flush=True)
    name, _, value = MARK.partition('=')
    # The launcher has a session of its own: a Ctrl-C comes to us alone, and stop_everything ends the job in order.
    launcher = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True, env={**os.environ, name: value})
    try:
        kill = watch(launcher, steps, rank)
    finally:
        stop_everything(launcher)
    verify_recovery(kill, steps)


def verify_recovery(kill: dict, steps: int) -> None:
    lines = step_metrics()
    resumed = next((line for line in lines if line['epoch'] > kill['epoch']), None)
    if resumed is None:
        raise Failure(f'no step was made in a new epoch after the kill; see {METRICS}')
    missing = set(range(lines[0]['step'], steps + 1)) - {line['step'] for line in lines}
    if missing or lines[-1]['step'] != steps:
        raise Failure(f'the last step is {lines[-1]["step"]} of {steps}, and these are missing: {sorted(missing)[:10]}; see {METRICS}')
    # The metrics file keeps each step once: lines of steps that were made again are gone from it.
    redone = max(0, kill['step'] - resumed['step'] + 1)
    source = 'checkpoint' if resumed['step'] > 1 else 'beginning'
    say(f'Recovered: step {resumed["step"]} was done {kill.get("recovery_seconds", 0.0):.1f} s after the kill, '
        f'on {resumed["world_size"]} workers, from the {source}; {redone} steps were made again, none is missing')


def verify_learning(steps: int) -> None:
    """Raises Failure unless the loss fell."""
    lines = step_metrics()
    first, last = average_loss(lines[:5]), average_loss(lines[-5:])
    fell, highest = (LEAST_FALL, HIGHEST_LAST_LOSS) if steps >= STEPS else (LEAST_FALL_OF_FEWER_STEPS, math.inf)
    if not math.isfinite(last) or first - last < fell or last > highest:
        raise Failure(f'the loss did not fall enough: {first:.3f} at the beginning, {last:.3f} at the end; see {METRICS}')
    validation = [line['validation_loss'] for line in read_metrics() if line.get('validation_loss') is not None]
    held_out = f'; {validation[-1]:.3f} on text it never saw' if validation else ''
    say(f'Learned: loss {first:.3f} -> {last:.3f} (mean of 5 steps, nats a token){held_out}')


def describe_text(data: str, sizes: List[int]) -> str:
    """Names the text that the model learns from; `sizes`: of the files, in bytes. Raises Failure where it is not the promised one."""
    megabytes = sum(sizes) / 1e6
    many = '' if len(sizes) == 1 else 's'
    if data != DATA and sizes:
        return f'{len(sizes)} file{many} of {data} ({megabytes:.1f} MB)'
    if data != DATA:
        raise Failure(f'no text at {data}')
    if megabytes < LEAST_MANUAL_MB:
        raise Failure(f'of Perl\'s manual only {len(sizes)} page{many} ({megabytes:.1f} MB) stand at {data}. They are in the package perl-doc:\n'
                      '  without the package (--programs installs nothing):  tools/install_packages quickstart\n'
                      '  without its files (dpkg\'s path-exclude):            apt-get install --reinstall '
                      '-o Dpkg::Options::=--path-include=\'/usr/share/perl/*\' perl-doc\n'
                      '  or take other text:                                 tools/quickstart --data \'DIR/*.txt\'')
    return f'{len(sizes)} page{many} of Perl\'s manual ({megabytes:.1f} MB)'


def claim_folder() -> None:
    """Keeps every other quickstart of this clone away from the run's folder until this process ends."""
    lock = os.open(__file__, os.O_RDONLY)  # stays open; the programs that this process starts do not get it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Failure(f'another tools/quickstart runs in this clone and writes to {RUN}: wait until it ends, or stop it with ^C') from error
    except OSError:
        pass  # NFS locks only what is open for writing: there nobody is kept away


def prepare(programs: Optional[str]) -> Dict[str, str]:
    """An empty folder for the run, and the programs in it."""
    claim_folder()
    run_folder = os.path.join(ROOT, RUN)
    try:
        os.makedirs(run_folder, exist_ok=True)
    except OSError as error:
        raise Failure(f'the run needs the folder {run_folder}: {error.strerror}') from error
    built = program_paths(programs)
    shutil.rmtree(run_folder, ignore_errors=True)
    return short_paths(built)


def check_steps(steps: int, checkpoint_every: int) -> None:
    """Raises Failure where the worker would be killed, half-way, before the first checkpoint is there."""
    least = 2 * checkpoint_every + 2
    if steps < least:
        raise Failure(f'--steps {steps} is too few for a checkpoint, every {checkpoint_every} steps, before the kill half-way: give {least} or more')


def demonstrate(arguments: argparse.Namespace) -> None:
    check_steps(arguments.steps, CHECKPOINT_EVERY)
    text = describe_text(arguments.data, [os.path.getsize(path) for path in glob.glob(arguments.data)])
    paths = prepare(arguments.programs)
    command = train_command(paths, arguments.data, arguments.steps)
    say(f'Training llama-tiny on {text} with {WORKERS} processes: 2 data x 2 tensor x 2 pipeline')
    train(command, arguments.steps, rank=5)
    verify_learning(arguments.steps)
    print(flush=True)
    loss_plot.show(os.path.join(ROOT, METRICS))
    say(f'The checkpoints are in {CHECKPOINTS}, the metrics in {METRICS}. To go on training from there:')
    print(shlex.join(train_command(paths, arguments.data, 2 * arguments.steps)))


def run(demonstration: Callable[[], None]) -> int:
    """The exit status of a demonstration."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    try:
        demonstration()
    except Failure as failure:
        print(f'\nquickstart FAILED: {failure}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('\nquickstart: stopped; nothing is left running', file=sys.stderr)
        return 130
    say(f'quickstart finished in {time.monotonic() - started:.0f} s')
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog='tools/quickstart', description='Trains a small model on 8 processes, kills one of them on the way, '
                                     'and shows that the job recovered and learned.')
    parser.add_argument('--steps', type=int, default=STEPS, help='optimizer steps (default: %(default)s)')
    parser.add_argument('--data', default=DATA, help='a glob of text files (default: %(default)s)')
    parser.add_argument('--programs', help=f'a folder with {", ".join(TARGETS)}: nothing is installed or built then')
    arguments = parser.parse_args()
    return run(lambda: demonstrate(arguments))


if __name__ == '__main__':
    sys.exit(main())
