"""Warm workers: what a script sees is what it sees cold, and whatever is killed, the job goes on with each rank once.

A small package stands in the place of torch, so that each case takes fractions of a second; torch_warm_test.py has the real one.
"""

import glob
import os
import re
import shutil
import signal
import sys
import zipfile

from tests.support import side_by_side
from tests.support.convene_testing import CONVENE, environment_of, find_program, free_port, processes_with, wait_until
from tests.support.terminals import Terminal
from tests.support.warm_testing import PACKAGES, SCRIPT, WORKERS, WarmTestCase, parent_and_age


class WarmTest(WarmTestCase):

    def test_a_script_sees_warm_what_it_sees_cold(self):
        self.check_cold_is_warm(self.train())

    def test_a_module_sees_warm_what_it_sees_cold(self):
        self.check_cold_is_warm(self.train(sys.executable, '-u', '-m', 'script', 'one', PYTHONWARNINGS='ignore', PYTHONHASHSEED='7'))

    def test_what_an_import_changes_in_a_process_is_so_in_spares(self):
        for module in ('seeds', 'impatient'):
            with self.subTest(module):
                self.assertNotIn('only when their script does', self.check_cold_is_warm(self.train(imports=f'import {module}')))
                self.clear()

    def test_a_sitecustomize_that_fails_fails_in_each_worker(self):
        self.write('packages/sitecustomize.py', PACKAGES['sitecustomize.py'] + 'raise RuntimeError("as every day")\n')
        self.assertEqual(self.check_cold_is_warm(self.train()).count('RuntimeError: as every day'), 12)

    def test_a_sitecustomize_that_differs_between_workers_keeps_them_cold_and_runs_no_script(self):
        imports = 'import plain\nif "RANK" not in os.environ: open(os.path.abspath(__file__) + ".alone", "w").close()'
        for line, why in (('os.environ["LOCAL_RANK"]', 'reads LOCAL_RANK, which each worker has for itself'),
                          ('os.environ.get("LOCAL_RANK")', 'reads LOCAL_RANK, which each worker has for itself'),
                          ('socket.socket()', 'opens socket:')):
            with self.subTest(line):
                self.write('packages/sitecustomize.py', f'import os, socket\nheld = {line}\n')
                job = self.train(imports=imports)
                self.facts(1)
                self.said(job, f'no more warm workers: what Python itself imports at its start (sitecustomize): its import {why}')
                self.kill_worker(1)
                self.facts(2)
                self.assertNotIn('start from spares', self.end(job))
                self.assertFalse(os.path.exists(self.path('script.py.alone')))
                self.clear()

    def test_the_hooks_of_an_optimizer_are_all_called_at_each_step(self):
        steps = ('from torch import distributed\nfrom torch.optim import optimizer\ndistributed.init_process_group()\ncalled = []\n'
                 'optimizer.register_optimizer_step_post_hook(lambda: called.append(1))\nfor _ in range(4):\n    optimizer.step()\n'
                 'assert len(called) == 4')
        self.assertNotIn('RuntimeError', self.finish(self.train(sys.executable, '-c', steps), 30))

    def test_a_module_beside_the_script_comes_before_one_of_its_name_in_every_start(self):
        self.write('shared.py', 'value = "beside the script"\n')
        for then in ('', 'os.environ["CHOICE"] = "7"\nimport settled'):
            with self.subTest(then):
                text = self.check_cold_is_warm(self.train(imports=f'import lib\n{then}'))
                self.assertEqual(text.count('only when their script does'), 1, text)
                self.assertIn(f'lib only when their script does: lib: the script has shared from {self.path("shared.py")}, and ', text)
                self.clear()

    def test_spares_are_replaced_and_used_again(self):
        job = self.train()
        for epoch in range(1, 4):
            self.facts(epoch)
            self.wait_for_spares(job)
            self.kill_worker(epoch, rank=epoch % 2)
        self.facts(4)
        self.assertEqual(self.output(job).count('2 of 2 workers start from spares'), 3)
        self.end(job)

    def test_a_killed_spare_is_replaced(self):
        job = self.train()
        self.facts(1)
        self.wait_for_spares(job)
        killed = self.spares(job)[1]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(self.ready_spares(job) - set(killed)) == WORKERS, 30, 'other spares')
        self.kill_worker(1)
        self.said(job, '2 of 2 workers start from spares')
        self.facts(2)
        self.end(job)

    def test_spares_outlive_their_parent_which_is_replaced(self):
        job = self.train()
        self.facts(1)
        self.wait_for_spares(job)
        os.kill(self.spares(job)[0], signal.SIGKILL)
        self.said(job, 'spares that are ready to become workers: 2', 2)
        self.wait_for_spares(job)
        self.kill_worker(1)
        self.said(job, '2 of 2 workers start from spares')
        self.facts(2)
        self.end(job)

    def test_a_parent_that_would_run_the_script_is_not_started(self):
        job = self.train()
        self.facts(1)
        self.wait_for_spares(job)
        shutil.rmtree(os.path.dirname(environment_of(self.starts()[1, 0])['CONVENE_SESSION']))
        os.kill(self.spares(job)[0], signal.SIGKILL)
        self.said(job, 'sitecustomize.py was removed')
        self.kill_worker(1)
        self.said(job, '2 of 2 workers start from spares')
        self.facts(2)
        self.kill_worker(2)
        self.facts(3)
        environment = environment_of(self.starts()[3, 0])
        self.assertTrue(os.path.exists(environment['CONVENE_SESSION']))
        self.assertNotIn('CONVENE_WARM', environment)
        self.end(job)
        self.assertNotIn('start cold, until', self.output(job))

    def test_without_parent_and_spares_the_workers_start_cold(self):
        job = self.train(imports='import held')
        self.facts(1)
        self.wait_for_spares(job)
        self.write('hold', '')  # The next parent stands in its imports: else its spares may be ready before the workers start.
        parent, spares = self.spares(job)
        for pid in [parent, *spares]:
            os.kill(pid, signal.SIGKILL)
        self.kill_worker(1)
        self.facts(2)
        self.end(job)
        self.assertNotIn('start from spares', self.output(job))

    def test_a_spare_that_is_killed_in_its_hand_over_is_a_worker_that_failed(self):
        job = self.train()
        self.facts(1)
        self.wait_for_spares(job)
        spares = self.spares(job)[1]
        for pid in spares:
            os.kill(pid, signal.SIGSTOP)  # So that it is between spare and worker for long.
        self.kill_worker(1)
        self.said(job, '2 of 2 workers start from spares')
        os.kill(spares[0], signal.SIGKILL)
        self.said(job, f'(pid {spares[0]}) failed: killed by SIGKILL')
        self.facts(3)
        self.end(job)

    def test_a_killed_agent_takes_parent_and_spares_with_it(self):
        job = self.train()
        self.facts(1)
        self.wait_for_spares(job)
        job.kill()
        job.wait(10)
        self.assert_nothing_left()

    def test_a_changed_script_starts_cold_and_is_seen_again(self):
        job = self.train()
        self.facts(1)
        self.wait_for_spares(job)
        with open(self.path('script.py'), 'a', encoding='utf-8') as script:
            script.write('# changed\n')
        self.kill_worker(1)
        self.said(job, f'the workers start cold, until a start has been seen again: {self.path("script.py")} has changed')
        self.facts(2)
        wait_until(lambda: self.spares(job) == (None, []), 10, 'the end of the old spares')
        self.kill_worker(2)  # These workers started cold without a word about their imports, the next ones tell.
        self.facts(3)
        self.wait_for_spares(job)
        self.kill_worker(3)
        self.said(job, '2 of 2 workers start from spares', 2)
        self.facts(4)
        self.end(job)

    def test_a_module_that_changes_between_the_two_tellings_of_a_start_is_not_of_the_spares(self):
        """The parent has imported it as it was, and the second record has the stamp of the changed file."""
        self.write('packages/mine.py', 'value = "old"\n')
        steps = ('import plain, mine\nfrom torch import distributed\nfrom torch.optim import optimizer\nEPOCH = int(os.environ["CONVENE_EPOCH"])\n'
                 'distributed.init_process_group()\nwhile not os.path.exists(f"{os.path.dirname(__file__)}/changed"):\n    time.sleep(0.01)\n'
                 'optimizer.step()\noptimizer.step()')
        job = self.train(imports=steps)
        self.said(job, 'spares that are ready to become workers: 2')
        self.write('packages/mine.py', 'value = "new, and longer"\n')
        self.write('changed', '')
        self.facts(1)
        self.said(job, f'the workers start cold, until a start has been seen again: {self.path("packages/mine.py")} has changed')
        self.kill_worker(1)
        self.facts(2)
        self.assertNotIn('start from spares', self.end(job))

    def test_a_zip_of_modules_that_changes_starts_cold(self):
        with zipfile.ZipFile(self.path('packages/modules.zip'), 'w') as modules:
            modules.writestr('zipped.py', 'value = 1\n')
        job = self.train(imports='import zipped', PYTHONPATH=f'{self.path("packages")}:{self.path("packages/modules.zip")}')
        self.facts(1)
        self.wait_for_spares(job)
        with zipfile.ZipFile(self.path('packages/modules.zip'), 'a') as modules:
            modules.writestr('more.py', '')
        self.kill_worker(1)
        self.said(job, f'until a start has been seen again: {self.path("packages/modules.zip")}/zipped.py has changed')
        self.facts(2)
        self.end(job)

    def test_an_interpreter_that_is_replaced_is_the_new_one(self):
        interpreter = self.path('bin/python3')
        os.mkdir(self.path('bin'))
        shutil.copy2(os.path.realpath(sys.executable), interpreter)
        job = self.train(interpreter, '-u', self.path('script.py'), imports='import plain', PYTHONHOME=sys.base_prefix)
        self.facts(1)
        self.wait_for_spares(job)
        shutil.copy2(interpreter, self.path('bin/new'))
        os.rename(self.path('bin/new'), interpreter)
        self.kill_worker(1)
        self.said(job, f'until a start has been seen again: {interpreter} has changed')
        self.facts(2)
        self.assertEqual(os.readlink(f'/proc/{self.starts()[2, 1]}/exe'), interpreter)
        self.end(job)

    def test_what_forks_would_share_is_left_out_in_words(self):
        for module, word in (('threaded', 'starts a thread'), ('opener', 'opens socket:'), ('asks', 'reads RANK'), ('reads', 'reads stdin'),
                             ('whole', "invalid literal for int() with base 10: 'each worker has"), ('keeps', 'keeps all variables'),
                             ('locked', 'shares memory'), ('mapped', 'shares memory'), ('timed', 'sets a timer'), ('alarmed', 'sets a timer')):
            with self.subTest(module):
                job = self.train(imports=f'import {module}')
                self.facts(1)
                self.wait_for_spares(job)
                self.kill_worker(1)
                self.said(job, '2 of 2 workers start from spares')
                warm = self.facts(2)
                self.same(self.facts(1)[0], warm[0])
                text = self.end(job)
                self.assertRegex(text, rf'warm workers import {module} only when their script does: .*{re.escape(word)}')
                for name in ('end', 'starts', *(f'facts.{epoch}.{rank}' for epoch in (1, 2) for rank in range(WORKERS))):
                    os.remove(self.path(name))

    def test_what_is_no_reason_to_leave_a_module_out(self):
        """A module that goes through all variables and keeps its own; and six modules that need one that is left out, whose parents count as no failures."""
        users = [f'user{number}' for number in range(6)]
        for user in users:
            self.write(f'packages/{user}.py', 'import opener\n')
        job = self.train(imports=f'import looks, {", ".join(users)}, opener')
        self.facts(1)
        self.wait_for_spares(job)
        self.kill_worker(1)
        self.said(job, '2 of 2 workers start from spares')
        self.facts(2)
        text = self.end(job)
        self.assertNotIn('import looks only', text)
        for user in users:
            self.assertIn(f'warm workers import {user} only when', text)

    def test_what_follows_a_setting_of_the_script_is_left_to_it(self):
        job = self.train(imports='import plain\nos.environ["CHOICE"] = "7"\nimport settled')
        self.assertEqual(self.facts(1)[0]['settled'], '7')
        self.wait_for_spares(job)
        self.kill_worker(1)
        self.said(job, '2 of 2 workers start from spares')
        self.assertEqual(self.facts(2)[1]['settled'], '7')
        self.assertIn('the script sets CHOICE before it imports settled', self.end(job))

    def run_before(self, **options):
        """An earlier run, which has kept its record. Gives the record's path and the facts of a cold start."""
        job = self.train(**options)
        cold = self.facts(1)
        self.wait_for_spares(job)
        wait_until(lambda: glob.glob(self.path('cache/convene/warm/*.record')), 30, 'the record')
        self.assertNotIn('start from spares', self.end(job))
        self.clear()
        return glob.glob(self.path('cache/convene/warm/*.record'))[0], cold

    def assert_starts_cold(self, job, why):
        self.facts(1)
        self.wait_for_spares(job)
        text = self.end(job)
        self.assertEqual(text.count('the workers start cold, until a start has been seen again: '), 1, text)
        self.assertIn(why, text)
        self.assertNotIn('start from spares', text)
        self.clear()

    def assert_starts_warm(self, job):
        self.said(job, '2 of 2 workers start from spares')
        facts = self.facts(1)
        text = self.end(job)
        self.assertNotIn('start cold', text)
        self.clear()
        return facts, text

    def test_a_second_run_sees_warm_what_the_first_one_saw_cold(self):
        record, cold = self.run_before()
        self.assertEqual([os.stat(path).st_mode & 0o777 for path in (record, os.path.dirname(record))], [0o600, 0o700])
        warm, text = self.assert_starts_warm(self.train())
        of_runs = ('CONVENE_', 'TORCHELASTIC_')
        for before, after in zip(cold, warm):
            for facts in (before, after):
                facts.pop('agent')
                facts['environment'] = {name: value for name, value in facts['environment'].items() if not name.startswith(of_runs)}
            self.same(before, after)
        for line, times in (('torch is imported', 2), ('torch warns', 2), ('rank 1 runs in', 1), ('the end of 1', 1)):
            self.assertEqual(len(re.findall(rf'\[1\] {line}', text)), times, f'{line} in\n{text}')

    def test_a_warm_first_start_is_followed_by_warm_restarts(self):
        self.run_before()
        job = self.train()
        self.facts(1)
        self.wait_for_spares(job)
        self.kill_worker(1)
        self.said(job, '2 of 2 workers start from spares', 2)
        self.facts(2)
        self.end(job)

    def test_what_was_left_out_is_known_to_a_second_run(self):
        self.run_before(imports='import threaded')
        _, text = self.assert_starts_warm(self.train(imports='import threaded'))
        self.assertNotIn('only when their script does', text)
        self.assertIn('threaded left out', text)

    def test_a_second_run_of_a_changed_script_starts_cold_and_is_kept(self):
        self.run_before()
        self.assert_starts_cold(self.train(imports='import plain  # changed'), f'{self.path("script.py")} has changed')
        self.assert_starts_warm(self.train(imports='import plain  # changed'))

    def test_a_second_run_with_another_variable_starts_cold_and_is_kept(self):
        self.run_before()
        self.assert_starts_cold(self.train(CHOICE='8'), 'the variable CHOICE has changed')
        self.assert_starts_warm(self.train(CHOICE='8'))

    def test_a_torn_record_and_that_of_another_user_start_cold(self):
        record, _ = self.run_before()
        with open(record, 'r+b') as file:
            file.truncate(os.path.getsize(record) // 2)
        self.assert_starts_cold(self.train(), f'{record}: it is torn')
        os.chmod(record, 0o666)
        self.assert_starts_cold(self.train(), f'{record} is another user')

    def wrapped(self, line):
        """A Python that is a script, as the shims of pyenv; it runs `line` first."""
        self.write('python3', f'#!/bin/sh\n{line}\nexec {sys.executable} "$@"\n')
        os.chmod(self.path('python3'), 0o755)
        return self.path('python3'), '-u', self.path('script.py')

    def test_later_runs_do_not_wait_for_spares_that_a_wrapper_of_python_spoils(self):
        wrapper = self.wrapped('export PATH="/shim:$PATH"')
        job = self.train(*wrapper)
        self.facts(1)
        self.said(job, 'spares that are ready to become workers: 2')
        wait_until(lambda: glob.glob(self.path('cache/convene/warm/*.record')), 30, 'the record')
        self.end(job)
        self.clear()
        job = self.train(*wrapper)
        self.said(job, f'{wrapper[0]} is a script or a launcher that sets the variable PATH and starts Python')
        self.facts(1)
        self.assertNotIn('has changed', self.end(job))
        self.clear()
        for _ in range(2):
            job = self.train(*wrapper)
            self.facts(1)
            self.said(job, 'spares that are ready to become workers: 2')  # It has told what it imports, which is not kept.
            text = self.end(job)
            self.assertNotIn('the first start waits', text)
            self.assertIn("the first start is cold: in an earlier run the spares had other variables", text)
            self.clear()

    def test_a_worker_that_cannot_be_warm_starts_by_the_wrapper_of_python(self):
        job = self.train(*self.wrapped('export PATH="/shim:$PATH"'))
        self.facts(1)
        self.wait_for_spares(job)
        self.kill_worker(1)
        cold, later = self.facts(1), self.facts(2)
        self.said(job, 'is a script or a launcher that sets the variable PATH and starts Python (a shim of pyenv, say), so each worker starts by it, cold')
        for one, other in zip(cold, later):
            self.same(one, other)
        self.kill_worker(2)
        for one, other in zip(cold, self.facts(3)):
            self.same(one, other)
        self.assertEqual(self.end(job).count('no more warm workers'), 1)

    def test_a_record_has_no_value_that_the_script_sets(self):
        secret = 'sekret-value-123'
        record, _ = self.run_before(imports=f'import plain\nos.environ["WANDB_API_KEY"] = "{secret}"\nimport settled')
        with open(record, 'rb') as file:
            self.assertNotIn(secret.encode(), file.read())
        _, text = self.assert_starts_warm(self.train(imports=f'import plain\nos.environ["WANDB_API_KEY"] = "{secret}"\nimport settled'))
        self.assertIn('the script sets WANDB_API_KEY before it imports settled', text)

    def test_a_value_that_the_script_and_an_import_set_alike_is_no_setting_of_the_script(self):
        imports = 'import torch\nos.environ["SET_BY_TORCH"] = "1"\nimport settled'
        self.run_before(imports=imports)
        self.assertNotIn('the script sets', self.assert_starts_warm(self.train(imports=imports))[1])

    def test_a_folder_that_takes_no_record_is_told_once(self):
        self.write('file', '')
        for environment in ({'XDG_CACHE_HOME': self.path('file')}, {'XDG_CACHE_HOME': '', 'HOME': '/proc'}):
            job = self.train(**environment)
            self.facts(1)
            self.wait_for_spares(job)
            text = self.end(job)
            self.assertEqual(text.count('the first start of every run is cold: '), 1, text)
            self.assertIn('XDG_CACHE_HOME', text)
            self.assertNotIn('until a start has been seen', text)
            self.clear()

    def held(self):
        """A second run, which is linked and waits for its spares, whose parent stands in its imports; the parent's pid."""
        self.write('hold', '')
        job = self.train(imports='import slow', CONVENE_LOG_LEVEL='debug')
        self.said(job, 'fresh store')  # After this the node would be ready.
        return job, wait_until(lambda: self.parent(job), 30, 'the parent of spares')

    def parent(self, job):
        for pid in processes_with('CONVENE_WARM=parent:'):
            if parent_and_age(pid)[0] == job.pid:
                return pid
        return None

    def test_a_parent_that_is_killed_during_the_first_start_is_replaced(self):
        self.run_before(imports='import slow')
        job, killed = self.held()
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: self.parent(job) not in (None, killed), 30, 'another parent')
        os.remove(self.path('hold'))
        self.assert_starts_warm(job)

    def test_a_signal_ends_a_first_start_that_waits_for_its_spares(self):
        self.run_before(imports='import slow')
        for number in (signal.SIGTERM, signal.SIGINT):
            job, _ = self.held()
            job.send_signal(number)
            self.finish(job, 10, 128 + number)
            self.assert_nothing_left()
            self.assertFalse(os.path.exists(self.path('starts')))
            os.remove(self.path('hold'))

    def test_a_first_start_does_not_wait_for_ever(self):
        self.run_before(imports='import slow')
        self.write('hold', '')
        job = self.train(imports='import slow', rendezvous=('--standalone', '--rdzv-conf', 'join_timeout=4'))
        self.said(job, 'the first start waits no longer for its spares: 0 of 2 are ready; the other workers start cold')
        os.remove(self.path('hold'))
        self.facts(1)
        self.end(job)
        self.assertEqual(glob.glob(self.path('cache/convene/warm/*.record')), [], 'later runs do not wait as well')

    def test_no_start_waits_for_a_parent_that_always_dies(self):
        for _ in range(2):
            job = self.train(imports='import dies')
            self.facts(1)
            self.said(job, 'no more warm workers: their parent has ended too often')
            wait_until(lambda: glob.glob(self.path('cache/convene/warm/*')) == [], 30, 'no record')
            self.assertNotIn('the first start waits', self.end(job))
            self.clear()

    def test_a_node_that_joins_a_running_job_starts_warm_too(self):
        self.run_before()
        port = free_port()
        rendezvous = ('--nnodes', '1:2', '--rdzv-id', 'joined', '--rdzv-endpoint', f'127.0.0.1:{port}')
        first = self.train(rendezvous=rendezvous)
        self.said(first, '2 of 2 workers start from spares')
        self.facts(1)
        self.wait_for_spares(first)
        second = self.train(rendezvous=rendezvous)
        for job in (first, second):
            self.said(job, 'ranks 2 to 3 of 4 start here' if job is second else 'ranks 0 to 1 of 4 start here')
        self.said(second, '2 of 2 workers start from spares')
        self.said(first, '2 of 2 workers start from spares', 2)
        wait_until(lambda: len([start for start in self.starts() if start[0] == 2]) == 4, 30, 'four workers')
        self.write('end', '')
        for job in (first, second):
            self.finish(job, 60)
        self.assert_nothing_left()

    def at_a_terminal(self, workers, *flags):
        self.write('script.py', SCRIPT.replace('IMPORTS', 'import plain'))
        return Terminal(self, ['env', '-C', self.directory, f'PYTHONPATH={self.path("packages")}', f'XDG_RUNTIME_DIR={self.path("run")}',
                               f'XDG_CACHE_HOME={self.path("cache")}',
                               find_program(CONVENE), 'run', '--standalone', '--nproc-per-node', str(workers), '--max-restarts', '9', *flags,
                               '--warm-workers', 'auto', '--no-python', sys.executable, self.path('script.py')], log='log').process

    def start_one_warm(self, cold):
        job = self.at_a_terminal(2, '--debug-rank', str(cold))
        self.facts(1)
        self.said(job, 'spares that are ready to become workers: 1')
        self.kill_worker(1, rank=1 - cold)
        self.said(job, '1 of 2 workers start from spares')
        self.assertIn('dev/pts', self.facts(2)[cold]['files'][0])
        self.assertEqual(self.end(job).count(f"the worker of local rank {cold} has this command's terminal, so it starts cold"), 1)

    def test_a_worker_with_a_terminal_starts_cold_with_a_word_and_the_other_one_warm(self):
        self.start_one_warm(cold=1)

    def test_the_spare_is_for_the_second_worker_where_the_first_one_has_the_terminal(self):
        self.start_one_warm(cold=0)

    def test_the_only_worker_at_a_terminal_has_no_spare(self):
        job = self.at_a_terminal(1)
        wait_until(lambda: os.path.exists(self.path('facts.1.0')), 30, 'the worker')
        self.assertEqual(self.spares(job), (None, []))
        self.assertIn("all workers start cold: the worker of local rank 0 has this command's terminal", self.end(job))

    def test_what_cannot_be_warm_starts_cold_with_a_word(self):
        for command, why in ((('/bin/true',), '/bin/true, which is neither convene-train nor Python itself'),
                             ((sys.executable, '-I', '-c', 'pass'), "Python's option -I keeps it")):
            text = self.finish(self.train(*command), 30)
            self.assertIn(f'all workers start cold: ', text)
            self.assertIn(why, text)
        text = self.finish(self.train(sys.executable, '-c', 'import os, sys; sys.exit(os.environ["CONVENE_EPOCH"] == "1")'), 30)
        self.assertIn('the workers start cold: none of them has told the agent what a start needs', text)
        text = self.finish(self.train(sys.executable, '-c', 'pass', rendezvous=('--standalone', '--numa-binding', 'node'), OMP_PLACES='cores'), 30)
        self.assertIn('all workers start cold: OMP_PLACES binds the threads', text)
        self.assertIn('write auto, or a number from 0 to 2', self.finish(self.train('/bin/true', spares=3), 30, 64))


if __name__ == '__main__':
    side_by_side.main(at_once=4)
