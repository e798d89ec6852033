#!/usr/bin/env python3
"""Two hosts with two workers each, from the command to the first step: by hand, by `convene launch` over ssh, and by mpirun; in turns, in one run.

usage: tests/bench/hosts_bench.py [--runs N] --convene PATH --trainer PATH
The hosts are network namespaces with an sshd each (tools/install_packages hosts; root). Prints the medians of the seconds until all workers run, and
until the first step is in the metrics, and the time of `ssh HOST true`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, ROOT)
from tests.support.convene_testing import ConveneTestCase, read_metrics, wait_until  # noqa: E402  (after the line above)
from tests.support.ssh_hosts import SshHosts  # noqa: E402


class Bench(ConveneTestCase):
    """Of a test case it needs the folder, the cleaning up and the trainer's arguments."""
    arguments = None

    def runTest(self):
        ssh = SshHosts(self, 2)
        self.ssh = ssh
        first = ssh.hosts[0]
        with open(self.path('hosts'), 'w', encoding='ascii') as out:
            out.writelines(f'{host.address} slots=2\n' for host in ssh.hosts)
        convene = self.arguments.convene
        by_hand = [[*host.prefix, convene, 'run', '--nnodes', '2', '--nproc-per-node', '2', '--rdzv-endpoint', f'{first.address}:29400']
                   for host in ssh.hosts]
        launch = [[*ssh.login.prefix, convene, 'launch', '--hostfile', self.path('hosts'), f'--ssh-options=-F {ssh.config}']]
        mpirun = [[*first.prefix, 'unshare', '-u', 'sh', '-c', 'hostname n0; exec "$@"', 'sh', 'mpirun', '--allow-run-as-root', '--bind-to', 'none',
                   '--hostfile', self.path('hosts'), '--map-by', 'ppr:1:node', '--mca', 'plm_rsh_args', f'-F {ssh.config}', '--mca', 'routed', 'direct',
                   convene, 'run', '--nproc-per-node', '2']]
        samples = {'by hand': [], 'convene launch': [], 'mpirun': []}
        log_in = []
        for number in range(self.arguments.runs):
            log_in.append(self.seconds_of([*ssh.login.prefix, 'ssh', '-F', ssh.config, first.address, 'true']))
            for name, commands in zip(samples, (by_hand, launch, mpirun)):
                samples[name].append(self.measure(f'{name}.{number}', commands))
        print(f'ssh HOST true: {statistics.median(log_in):.2f} s')
        for name, pairs in samples.items():
            workers, step = (statistics.median(values) for values in zip(*pairs))
            print(f'{name:15} all workers run {workers:.2f} s, first step {step:.2f} s')

    @staticmethod
    def seconds_of(command):
        started = time.monotonic()
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return time.monotonic() - started

    def measure(self, name, commands):
        metrics = self.path(name + '.metrics')
        marks = self.path(name + '.marks')
        os.mkdir(marks)
        train = self.train_arguments(steps=1, checkpoint_dir=None, checkpoint_every=None, metrics_file=metrics)
        worker = ['--no-python', '--', 'sh', '-c', f': > "{marks}/$RANK"; exec "$0" "$@"', self.arguments.trainer, *train]
        with open(self.path(name + '.log'), 'wb') as log:
            started = time.monotonic()
            running = [subprocess.Popen([*command, *worker], stdin=subprocess.DEVNULL, stdout=log, stderr=log) for command in commands]
        try:
            wait_until(lambda: len(os.listdir(marks)) == 4, 60, f'the workers of {name}')
            workers = time.monotonic() - started
            wait_until(lambda: read_metrics(metrics), 60, f'the first step of {name}')
            step = time.monotonic() - started
            for process in running:
                self.assertEqual(process.wait(60), 0)
        except AssertionError as failed:
            with open(self.path(name + '.log'), encoding='utf-8', errors='replace') as log:
                sys.exit(f'hosts_bench: {failed}\n{log.read()[-4000:]}')
        return workers, step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--runs', type=int, default=5)
    parser.add_argument('--convene', required=True)
    parser.add_argument('--trainer', required=True)
    Bench.arguments = parser.parse_args()
    bench = Bench()
    result = bench.run()
    for _, text in result.errors + result.failures:
        print(text)
    return 0 if result.wasSuccessful() else 1


if __name__ == '__main__':
    sys.exit(main())
