"""convene.elastic_launch: functions in workers, their results, and each way in which a launch ends badly. Needs no PyTorch."""

import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

from tests.support.convene_testing import CONVENE, ConveneTestCase, find_program, free_port, processes_with, wait_until

PACKAGE = os.path.dirname(find_program("tools/deploy/python/convene/run.py"))

JOBS = """
import os, signal, sys, time
RANK = lambda: int(os.environ['RANK'])
def add(a, b): return RANK(), a + b
def large(): return bytes(20_000_000)
def boom():
    if RANK() == 1: raise ValueError('shard 17 is truncated')
    time.sleep(60)
def ends_with(code): sys.exit(code)
def unpicklable(): return lambda: 0
def killed():
    if RANK() == 0: os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
def second_try(folder):
    restarts = int(os.environ['TORCHELASTIC_RESTART_COUNT'])
    if restarts == 0 and RANK() == 1:
        while not [name for name in os.listdir(folder) if name == 'first']: time.sleep(0.01)
        sys.exit(3)
    if restarts == 0: open(os.path.join(folder, 'first'), 'w').close()
    return restarts
def waits(folder):
    open(os.path.join(folder, 'started.' + os.environ['RANK']), 'w').close()
    time.sleep(600)
"""

HEAD = """
import os, signal, sys, threading, time
import convene, jobs
from convene import *
def launch(function, *args, **settings):
    settings = {'min_nodes': 1, 'max_nodes': 1, 'nproc_per_node': 2, 'max_restarts': 0, **settings}
    return elastic_launch(LaunchConfig(**settings), function)(*args)
"""


class ElasticLaunchTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        # As pip's --target has it: the package, and the program beside it.
        shutil.copytree(PACKAGE, self.path("site/convene"))
        os.makedirs(self.path("site/bin"))
        os.symlink(find_program(CONVENE), self.path("site/bin/convene"))
        self.write("site/jobs.py", JOBS)
        # The tests run without cloudpickle, also where this machine has it.
        self.write("site/cloudpickle.py", "raise ImportError('hidden by this test')\n")

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def start_python(self, *words, log="log"):
        name, value = self.marker.split("=", 1)
        environment = {**os.environ, name: value, "PYTHONPATH": self.path("site"), "TMPDIR": self.directory}
        with open(self.path(log), "wb") as out:
            process = subprocess.Popen([sys.executable, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
                                       cwd=self.directory)
        process.log_path = self.path(log)
        self.addCleanup(process.wait, 10)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def script(self, body):
        return self.write("script.py", HEAD + "if __name__ == '__main__':\n" + re.sub("^", "    ", body.strip(), flags=re.M) + "\n")

    def run_script(self, body, expected_code=0):
        text = self.finish(self.start_python("-u", self.script(body)), 30, expected_code)
        self.assertEqual(processes_with(self.marker), [])
        self.assertEqual(self.folders(), [])
        return text

    def folders(self):
        return [name for name in os.listdir(self.directory) if name.startswith("convene_launch_")]

    def test_each_workers_result_comes_back_by_its_rank_however_large(self):
        text = self.run_script("print(launch(jobs.add, 2, 3))\n"
                               "print({rank: len(result) for rank, result in launch(jobs.large).items()})\n"
                               "print(launch(jobs.ends_with, 0))")
        self.assertIn("{0: (0, 5), 1: (1, 5)}\n", text)
        self.assertIn("{0: 20000000, 1: 20000000}\n", text)
        self.assertIn("{0: None, 1: None}\n", text)

    def test_a_programs_words_have_each_workers_local_rank(self):
        # As torch.distributed.launch writes them.
        text = self.run_script("print(launch('echo', '--local-rank=${local_rank}'))")
        self.assertIn("--local-rank=0\n", text)
        self.assertIn("--local-rank=1\n", text)

    def test_a_function_of_the_script_itself(self):
        script = self.write("own.py", HEAD + "class Answer:\n    def __init__(self, x): self.x = x\n"
                            "def own(answer): return Answer(answer.x + 1)\n"
                            "if __name__ == '__main__':\n    print({rank: one.x for rank, one in launch(own, Answer(41)).items()})\n")
        self.assertIn("{0: 42, 1: 42}", self.finish(self.start_python(script), 30))

    def test_a_script_without_a_guard_is_refused_by_its_workers_and_does_not_multiply(self):
        script = self.write("own.py", HEAD + "def own(): return 1\nlaunch(own)\n")
        text = self.finish(self.start_python(script), 30, expected_code=1)
        self.assertIn("Put the call under `if __name__ == '__main__':`", text)

    def test_a_session_that_workers_cannot_import_is_refused_without_cloudpickle(self):
        text = self.finish(self.start_python("-c", HEAD + "def own(): return 1\nlaunch(own)"), 30, expected_code=1)
        self.assertRegex(text, "ValueError: elastic_launch cannot send own .*notebook.*pip install cloudpickle")
        text = self.run_script("launch(jobs.add, threading.Lock())", expected_code=1)
        self.assertRegex(text, "ValueError: elastic_launch cannot send add or its arguments .*lock")

    def test_an_exception_is_told_with_its_traceback_rank_and_record(self):
        text = self.run_script("try:\n    launch(jobs.boom)\nexcept ChildFailedError as error:\n"
                               "    rank, failure = error.get_first_failure()\n"
                               "    print('told:', error)\n"
                               "    print(rank, failure.local_rank, failure.exitcode, os.path.exists(failure.error_file))\n"
                               "    print(failure.error_file_data['message']['message'])")
        told = text.split("told:", 1)[1]
        self.assertRegex(told, r"boom failed: rank 1 \(local rank 1, pid \d+\) on \S+: exit code 1\nTraceback")
        self.assertIn("line 7, in boom", told)
        self.assertIn("\n1 1 1 True\nValueError: shard 17 is truncated", told)

    def test_other_ends_of_a_worker(self):
        text = self.run_script("for job, args in ((jobs.killed, ()), (jobs.ends_with, (3,)), (jobs.unpicklable, ())):\n"
                               "    try:\n        launch(job, *args)\n    except ChildFailedError as error:\n"
                               "        print('told:', job.__name__, error.get_first_failure()[1].exitcode, str(error).splitlines()[-1])")
        self.assertRegex(text, "told: killed -9 .*SIGKILL")
        self.assertRegex(text, "told: ends_with 3 SystemExit: 3")
        self.assertRegex(text, "told: unpicklable 1 TypeError: the function returned a function that cannot be sent back: .*Return plain values")

    def test_after_a_restart_only_the_last_epochs_results_count(self):
        self.assertIn("{0: 1, 1: 1}", self.run_script(f"print(launch(jobs.second_try, {self.directory!r}, max_restarts=1))"))

    def test_two_nodes_get_their_own_ranks(self):
        port = free_port()
        script = self.script(f"print(launch(jobs.add, 1, 1, min_nodes=2, max_nodes=2, nproc_per_node=1, run_id='r', rdzv_backend='static',\n"
                             f"             rdzv_endpoint='127.0.0.1:{port}', rdzv_configs={{'rank': int(sys.argv[1])}}))")
        nodes = [self.start_python(script, str(rank), log=f"log{rank}") for rank in (0, 1)]
        for rank, node in enumerate(nodes):
            self.assertIn(f"{{{rank}: ({rank}, 2)}}", self.finish(node, 30))

    def test_a_program_instead_of_a_function(self):
        text = self.run_script("print(launch('sh', '-c', 'echo I am $RANK'))\n"
                               "try:\n    launch('sh', '-c', 'exit 7')\nexcept ChildFailedError as error:\n"
                               "    print('told:', error.get_first_failure()[1].exitcode)")
        self.assertIn("I am 1", text)
        self.assertIn("\n{}\n", text)
        self.assertIn("told: 7\n", text)

    def test_a_job_that_never_begins(self):
        text = self.run_script("for settings in ({'rdzv_endpoint': 'localhost:%d' % PORT, 'rdzv_configs': {'join_timeout': 1}}, {}):\n"
                               "    try:\n        launch(jobs.add, 1, 1, min_nodes=2, max_nodes=2, **settings)\n"
                               "    except LaunchError as error:\n        print('told:', error.exit_code, error)".replace("PORT", str(free_port())))
        self.assertRegex(text, "told: 69 .*--nnodes")
        self.assertRegex(text, "told: 2 .*before the job began")

    def start_waiting(self, body):
        process = self.start_python("-u", self.script(body.replace("FOLDER", repr(self.directory))))
        wait_until(lambda: all(os.path.exists(self.path(f"started.{rank}")) for rank in (0, 1)), 20, "both workers run")
        return process

    def test_signals_end_the_workers_in_order(self):
        for number, name in ((signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "SignalException")):
            process = self.start_waiting("try:\n    launch(jobs.waits, FOLDER)\nexcept BaseException as error:\n"
                                         "    print('told:', type(error).__name__, error)")
            process.send_signal(number)
            self.assertIn(f"told: {name}", self.finish(process, 20))
            self.assertEqual(processes_with(self.marker), [])
            for rank in (0, 1):
                os.remove(self.path(f"started.{rank}"))

    def test_nothing_outlives_a_launching_process_that_is_killed(self):
        process = self.start_waiting("launch(jobs.waits, FOLDER)")
        process.kill()
        wait_until(lambda: not processes_with(self.marker), 15, "launcher and workers have ended")
        # Its folder is left, and the next launch removes that.
        self.assertEqual(len(self.folders()), 1)
        self.run_script("launch(jobs.add, 1, 2)")

    def test_the_folder_of_a_launch_that_runs_is_nobody_elses(self):
        first = self.start_waiting("try:\n    launch(jobs.waits, FOLDER)\nexcept BaseException as error:\n    print('told:', type(error).__name__)")
        others = self.write("others.py", HEAD + "if __name__ == '__main__':\n    print(launch(jobs.add, 1, 2))\n")
        launches = [self.start_python(others, log=f"log{i}") for i in range(3)]
        for launch in launches:
            self.assertIn("{0: (0, 3), 1: (1, 3)}", self.finish(launch, 30))
        self.assertEqual(len(self.folders()), 1)
        first.send_signal(signal.SIGTERM)
        self.assertIn("told: SignalException", self.finish(first, 20))
        self.assertEqual(self.folders(), [])


if __name__ == "__main__":
    unittest.main()
