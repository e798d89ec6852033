#!/usr/bin/python3
"""The whole of tools/gpu_check as a person calls it, on a machine that only looks as if it had a GPU. tools/check runs it.

The driver's library, nvidia-smi, compute-sanitizer and PyTorch are stand-ins, and so are the programs of the bundle: a trainer that writes a curve
and computes nothing, a launcher that restarts it. The test tries gpu_check itself: nothing may fail or be left out where nothing is wrong.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))

DRIVER = 'int cuInit(unsigned flags) { return 0; }\nint cuDeviceGetCount(int* count) { *count = 1; return 0; }\n'

SMI = '''#!/bin/sh
case "$*" in
  *-lms*) while :; do echo 2000; sleep 0.05; done ;;
  *memory.used*) echo 1000 ;;
  *--query-gpu*) echo "Fake H200, 580.1, 143771" ;;
  *) echo "a table of the whole machine" ;;
esac
'''

SANITIZER = '''#!/bin/sh
echo "$*" >> "$FAKE/sanitized"
case "$*" in
  *racecheck*) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;;
  *) echo "========= ERROR SUMMARY: 0 errors" ;;
esac
'''

TORCH = '''
__version__ = '2.9.1'
class version: cuda = '13.0'
class cuda:
    is_available = staticmethod(lambda: True)
    class nccl: version = staticmethod(lambda: (2, 28, 9))
class backends:
    class cudnn: version = staticmethod(lambda: 91400)
'''

TORCH_WORKER = '''
import json, sys
for case in json.loads(sys.argv[1]):
    off = 1.0005 if case['precision'] == 'bf16' else 1.0
    print(json.dumps({'losses': [off * (5.5 - 0.02 * step) for step in range(case['steps'])], 'step_seconds': [0.2] * case['steps'], 'attention': 'none'}))
'''

# Each rank; rank 0 writes the curve. It goes on from the last step of the metrics file, as from a checkpoint.
TRAINER = '''#!/usr/bin/python3
import json, os, sys, time
flags = dict(zip(sys.argv[1:], sys.argv[2:]))
time.sleep(float(os.environ.get('FAKE_START_SECONDS', 0)))
if os.environ.get('RANK') == '0': print('[rank 0] info: NCCL 2.28.9: 2 x P2P/CUMEM', flush=True)
if '--cuda-graphs' in sys.argv: print('[rank 0] CUDA graphs  on, captured in the second step', flush=True)
if '--tuning-dir' in flags:
    known = 8 * os.path.exists(flags['--tuning-dir'])
    os.makedirs(flags['--tuning-dir'], exist_ok=True)
    print(f'info: algorithms of products: {known} known, {8 - known} timed in 0.50 s; kept in here', flush=True)
if '--profile' in sys.argv: print('profile of 20 steps\\\\nproducts  12.5  80.0%', flush=True)
path, steps = flags['--metrics-file'], int(flags['--steps'])
done = len(open(path).readlines()) if os.path.exists(path) else 0
off = 1.0001 if flags['--precision'] == 'bf16' else 1.0
for step in range(done + 1, steps + 1):
    if os.environ.get('RANK', '0') == '0':
        with open(path, 'a') as file:
            file.write(json.dumps({'step': step, 'loss': off * (5.5 - 0.01 * step), 'grad_norm': 1.0, 'epoch': int(os.environ.get('EPOCH', 1)),
                                   'step_seconds': 0.1}) + '\\\\n')
    if '--checkpoint-dir' in flags or '--replicate-every' in flags: time.sleep(0.02)  # it is to be killed in the middle
'''

LAUNCHER = '''#!/usr/bin/python3
import os, subprocess, sys, time
ranks, restarts, rest = int(sys.argv[4]), int(sys.argv[6]), sys.argv[7:]
if rest[0] == '--warm-workers':
    rest = rest[2:]
    print('spares that are ready to become workers: 1', flush=True)
for epoch in range(1, restarts + 2):
    workers = [subprocess.Popen(rest, env={**os.environ, 'RANK': str(rank), 'EPOCH': str(epoch)}) for rank in range(ranks)]
    while any(worker.poll() is None for worker in workers) and not any(worker.poll() for worker in workers): time.sleep(0.005)
    for worker in workers: worker.kill()
    if not any([worker.wait() for worker in workers]): sys.exit(0)
sys.exit(1)
'''

PASSES = '#!/bin/sh\necho "All tests passed (9 assertions in 4 test cases)"\n'
CASES = '#!/bin/sh\ncase "$1" in --list*) echo "a case"; exit 1;; esac\n' + PASSES
BENCH = '#!/bin/sh\necho \'{"name": "copy", "gb_per_s": 4300.0}\' > "$2"\n'
BINARIES = [('//tests/gpu:toolchain_test', 'test', 'ops', PASSES), ('//worker_runtime/trainer:engine_gpu_test', 'test', 'ops', PASSES),
            ('//worker_runtime/ops/cuda:kernels_test', 'test', 'ops', PASSES), ('//worker_runtime/ops/cuda/attention:attention_test', 'test', 'ops', PASSES),
            ('//worker_runtime/comm/nccl:nccl_test', 'test', 'layouts', CASES),
            ('//worker_runtime/ops/cuda:kernels_bench', 'bench', '', BENCH)]


class FakeMachineTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix='gpu_fake.')
        self.addCleanup(shutil.rmtree, self.folder)
        self.write('driver.c', DRIVER)
        os.makedirs(f'{self.folder}/lib')
        subprocess.run(['gcc', '-shared', '-fPIC', '-o', f'{self.folder}/lib/libcuda.so.1', f'{self.folder}/driver.c'], check=True)
        for name, body in (('nvidia-smi', SMI), ('compute-sanitizer', SANITIZER)):
            self.write(f'path/{name}', body)
        self.write('python/torch.py', TORCH)
        for name, body in (('convene', LAUNCHER), ('convened', PASSES), ('convene-train', TRAINER)):
            self.write(f'bundle/bin/{name}', body.replace('\\\\n', '\\n'))
        self.write('bundle/tests/bench/torch_train_worker.py', TORCH_WORKER)
        self.write('bundle/VERSION', json.dumps({'commit': '0123456789abcdef', 'date': 'today'}))
        self.write('bundle/find_cuda', '')
        manifest = []
        for label, kind, part, body in BINARIES:
            manifest.append({'label': label, 'kind': kind, 'part': part, 'file': f'tests/bin/{label.split(":")[1]}'})
            self.write(f'bundle/{manifest[-1]["file"]}', body)
        self.write('bundle/tests/manifest.json', json.dumps(manifest))

    def write(self, path, text):
        whole = f'{self.folder}/{path}'
        os.makedirs(os.path.dirname(whole), exist_ok=True)
        with open(whole, 'w', encoding='utf-8') as file:
            file.write(text)
        os.chmod(whole, 0o755)

    def check(self, *arguments, code=0, **environment):
        """The rows of gpu_check.json, and what was printed."""
        fake = {'FAKE': self.folder, 'LD_LIBRARY_PATH': f'{self.folder}/lib', 'PYTHONPATH': f'{self.folder}/python',
                'PATH': f'{self.folder}/path:{os.environ["PATH"]}'}
        done = subprocess.run([sys.executable, f'{HERE}/gpu_check.py', *arguments, '--bundle', f'{self.folder}/bundle', '--output', f'{self.folder}/out'],
                              check=False, capture_output=True, text=True, env={**os.environ, **fake, **environment})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        if code == 64:
            return None, done.stdout
        with open(f'{self.folder}/out/gpu_check.json', encoding='utf-8') as file:
            return json.load(file)['results'], done.stdout

    def test_where_nothing_is_wrong_nothing_fails_and_nothing_is_left_out(self):
        rows, printed = self.check()
        self.assertTrue(printed.rstrip().endswith(' 0 failed, 0 skipped'), printed)
        self.assertEqual((rows[0]['part'], rows[0]['name']), ('machine', '//tests/gpu:toolchain_test'))
        names = [row['name'] for row in rows]
        for name in ('fp32, one rank', 'bf16, dp2 x tp2 x pp2', 'deterministic bf16, dp2, twice', 'CUDA graphs, deterministic bf16, pp2', 'copy',
                     'kill -9 of rank 1, deterministic bf16, dp2', 'a killed worker, warm and cold', 'PyTorch, llama-3.2-3b, 2 x 4096',
                     'ours beside PyTorch, llama-125m, 32 x 1024'):
            self.assertIn(name, names)
        self.assertIn('; NCCL 2.28.9: 2 x P2P/CUMEM', rows[names.index('bf16, dp2 x tp2 x pp2')]['text'])
        with open(f'{self.folder}/sanitized', encoding='utf-8') as file:
            sanitized = file.read().splitlines()
        self.assertEqual(len(sanitized), 4)  # two tests that launch kernels of ours, under two tools
        self.assertTrue(all('--kernel-name kernel_substring=convene' in line and '~[slow]' in line for line in sanitized), sanitized)
        self.assertEqual(['kernels_test' in line for line in sanitized], [True, False, True, False])

    def test_the_first_session_and_then_what_it_left_and_more(self):
        self.write('bundle/tests/bin/kernels_test', '#!/bin/sh\nexit 9\n')
        self.write('bundle/tests/bin/toolchain_test', '#!/bin/sh\necho "test cases:  4 |  3 passed | 1 failed"\nexit 1\n')
        rows, printed = self.check('first', code=1)
        self.assertEqual([row['name'] for row in rows if row['outcome'] == 'failed'],
                         ['//tests/gpu:toolchain_test', '//worker_runtime/ops/cuda:kernels_test'])
        self.assertEqual({row['item'] for row in rows if row['part'] == 'layouts'}, {'fp32, one rank', 'bf16, one rank', 'fp32, dp2', ''})
        self.assertIn('//worker_runtime/ops/cuda/matmul:matmul_test', [row['name'] for row in rows if row['outcome'] == 'skipped'])  # no such file
        measured = [row['name'] for row in rows if row['outcome'] in ('passed', 'measured')]
        for name in ('fp32, dp2', 'bf16, one rank', 'copy', 'convene-train --profile, llama-3.2-1b, 8 x 2048', 'PyTorch, llama-3.2-1b, 8 x 2048'):
            self.assertEqual(measured.count(name), 1, printed)
        shutil.move(f'{self.folder}/out', f'{self.folder}/first')
        self.write('bundle/tests/bin/kernels_test', PASSES)
        self.write('bundle/tests/bin/toolchain_test', PASSES)
        rows, printed = self.check('second', '--after', f'{self.folder}/first')
        names = [row['name'] for row in rows if row['outcome'] != 'skipped']
        self.assertEqual(names[1], '//worker_runtime/ops/cuda:kernels_test')  # after the toolchain's
        self.assertNotIn('fp32, dp2', names)
        for name in ('memcheck //worker_runtime/ops/cuda:kernels_test', '//worker_runtime/ops/cuda/attention:attention_test', 'fp32, pp2',
                     'kill -9 of rank 1, deterministic bf16, dp2'):
            self.assertIn(name, names)

    def test_pytorch_is_looked_for_when_an_item_needs_it(self):
        self.write('python/torch.py', 'raise SystemExit("PyTorch was asked for")')
        rows, printed = self.check('layouts', 'bench', '--only', 'fp32, one rank', '--only', 'CUDA graphs, deterministic bf16, pp2', '--only',
                                   '//worker_runtime/ops/cuda:kernels_bench, copy')
        self.assertNotIn('PyTorch', printed + str(rows))
        _, printed = self.check('layouts', '--only', 'bf16, one rank')
        self.assertIn('PyTorch none', printed)

    def test_a_session_after_nothing_ends_before_anything_runs(self):
        rows, printed = self.check('second', '--after', f'{self.folder}/nowhere', code=64)
        self.assertEqual((rows, printed), (None, ''))

    def test_a_name_that_is_none_ends_the_call_before_anything_runs(self):
        rows, printed = self.check('layouts', '--only', 'graphs', code=64)
        self.assertEqual((rows, printed), (None, ''))

    def test_only_gets_the_whole_time_of_the_call(self):
        names = [f'CUDA graphs, deterministic bf16, {layout}' for layout in ('one rank', 'dp2', 'pp2')]
        rows, _ = self.check('layouts', *(part for name in names for part in ('--only', name)), '--seconds', '30', FAKE_START_SECONDS='1')
        self.assertEqual([row['outcome'] for row in rows if row['part'] == 'layouts'], ['passed'] * 3)

    def test_a_call_that_is_too_short_skips_and_fails_nothing(self):
        rows, printed = self.check('--seconds', '6')
        self.assertIn(' 0 failed, ', printed)
        self.assertIn('run it again with --only', [row['text'] for row in rows if row['outcome'] == 'skipped'][-1])

    def test_where_the_toolchain_itself_fails_nothing_else_takes_time(self):
        self.write('bundle/tests/bin/toolchain_test', '#!/bin/sh\necho "error while loading shared libraries: libcudnn.so.9"\nexit 127\n')
        rows, printed = self.check('ops', 'layouts', code=1)
        self.assertEqual([(row['part'], row['outcome']) for row in rows[:1]], [('machine', 'failed')])
        self.assertEqual({(row['part'], row['outcome']) for row in rows[1:]}, {('ops', 'skipped'), ('layouts', 'skipped')})
        self.assertTrue(printed.rstrip().endswith('0 passed, 1 failed, 2 skipped'), printed)

    def test_where_one_case_of_the_toolchain_fails_the_rest_is_tried(self):
        self.write('bundle/tests/bin/toolchain_test', '#!/bin/sh\necho "test cases:  4 |  3 passed | 1 failed"\nexit 1\n')
        rows, _ = self.check('ops', code=1)
        self.assertIn(('//worker_runtime/ops/cuda:kernels_test', 'passed'), [(row['name'], row['outcome']) for row in rows])

    def test_a_library_that_is_missing_is_named_first(self):
        subprocess.run(['gcc', '-shared', '-fPIC', '-o', f'{self.folder}/libmissing.so.3', '-Wl,-soname,libmissing.so.3', f'{self.folder}/driver.c'],
                       check=True)
        self.write('main.c', 'int main(void) { return 0; }\n')
        subprocess.run(['gcc', '-o', f'{self.folder}/bundle/tests/bin/kernels_test', f'{self.folder}/main.c', '-Wl,--no-as-needed',
                        f'{self.folder}/libmissing.so.3'], check=True)
        os.remove(f'{self.folder}/libmissing.so.3')
        rows, _ = self.check('ops', code=1)
        self.assertEqual((rows[0]['part'], rows[0]['name'], rows[0]['outcome']), ('machine', 'libmissing.so.3', 'failed'))
        self.assertIn('kernels_test', rows[0]['text'])


if __name__ == '__main__':
    unittest.main()
