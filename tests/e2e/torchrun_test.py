"""Our program under the name `torchrun`: its command line, its exit codes, its signals. Needs no PyTorch."""

import json
import os
import re
import signal
import subprocess
import sys
import unittest

from tests.support.convene_testing import CONVENE, CONVENED, ConveneTestCase, find_program, free_port, wait_until

TORCHRUN = "launcher/torchrun"


class TorchrunTest(ConveneTestCase):

    def script(self, text, name="script"):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.path(name)

    def run_torchrun(self, *arguments, expected_code=0, **environment):
        text = self.finish(self.start(TORCHRUN, *arguments, **environment), 20, expected_code)
        self.assert_nothing_left()
        return text

    def test_any_name_runs_under_unbuffered_python(self):
        script = self.script("import sys; print(sys.argv[1:], sys.stdout.write_through)")
        self.assertIn("['--nnodes', '7'] True", self.run_torchrun(script, "--nnodes", "7"))

    def test_a_program_needs_no_python(self):
        self.assertIn("hello", self.run_torchrun("--no-python", "echo", "hello"))
        text = self.run_torchrun("echo", "hello", expected_code=1)
        self.assertIn("write --no-python before it", text)

    def test_each_worker_has_its_local_rank_in_its_arguments(self):
        words = ["${local_rank}", "x$local_rank", "$$local_rank", "$local_ranks", "${LOCAL_RANK}", "$"]
        text = self.run_torchrun("--nproc-per-node", "2", "--no-python", "echo", *words)
        for rank in range(2):
            self.assertIn(f"{rank} x{rank} $local_rank $local_ranks ${{LOCAL_RANK}} $\n", text)
        script = self.script("import sys; print(sys.argv[1:])")
        text = self.run_torchrun("--nproc-per-node", "2", "--warm-workers", "2", script, "--local-rank=${local_rank}")
        self.assertIn("all workers start cold: their arguments have ${local_rank} in them", text)
        for rank in range(2):
            self.assertIn(f"['--local-rank={rank}']", text)
        text = self.finish(self.start(CONVENE, "run", "--standalone", "--no-python", "echo", "${local_rank}"), 20)
        self.assertIn("[0] ${local_rank}\n", text)

    def test_one_node_serves_the_endpoint_that_it_names(self):
        script = self.script("import os; print('rank', os.environ['RANK'])")
        text = self.run_torchrun("--nproc-per-node", "2", f"--rdzv-endpoint=localhost:{free_port()}", script)
        self.assertIn("rank 0\n", text)
        self.assertIn("rank 1\n", text)

    def test_the_dashes_behind_the_script_are_torchruns(self):
        script = self.script("import sys; print(sys.argv[1:])")
        self.assertIn("['--lr', '1']", self.run_torchrun(script, "--", "--lr", "1"))

    def test_a_module(self):
        self.script("import sys; print('module', __name__, sys.argv[1:])", "mine.py")
        text = self.run_torchrun("-m", "mine", "x", PYTHONPATH=self.directory)
        self.assertIn("module __main__ ['x']", text)

    def test_a_script_by_its_path(self):
        script = self.script("import sys; print('path', __name__, sys.argv)")
        self.assertIn(f"path __main__ ['{script}', 'x']", self.run_torchrun("--run-path", script, "x"))

    def test_a_failed_job_ends_with_1_whatever_its_worker_ended_with(self):
        script = self.script("import sys; sys.exit(85)")
        self.assertIn("85", self.run_torchrun(script, expected_code=1))
        self.run_torchrun(self.path("nowhere.py"), expected_code=1)

    def test_a_command_line_that_cannot_be_read_ends_with_2(self):
        self.assertIn("--nproc-per-node", self.run_torchrun("--nproc-per-nodes=2", "x", expected_code=2))
        self.assertIn("torchrun: ", self.run_torchrun(expected_code=2))
        self.run_torchrun("--nnodes", "x", "y", expected_code=2)
        self.assertIn("--rdzv-endpoint", self.run_torchrun("--help"))

    def test_what_a_successful_job_leaves_running_lives_on(self):
        script = self.script('import os\n'
                             f'os.system("(echo held; while ! [ -e {self.directory}/go ]; do sleep 0.05; done; '
                             f'echo done > {self.directory}/upload) > {self.directory}/log 2>&1 &")\n')
        text = self.finish(self.start(TORCHRUN, script), 20)
        self.assertIn("left alone, as under torchrun: sh (pid ", text)
        self.assertFalse(os.path.exists(self.path("upload")))
        with open(self.path("go"), "w", encoding="ascii"):
            pass
        wait_until(lambda: os.path.exists(self.path("upload")), 10, "the upload's end")
        self.assert_nothing_left()

    def test_called_from_a_virtual_environments_bin_the_python_beside_it_runs(self):
        bin_directory = self.path("venv/bin")
        os.makedirs(bin_directory)
        open(self.path("venv/pyvenv.cfg"), "w", encoding="ascii").close()
        self.script(f'#!/bin/sh\necho beside\nexec {sys.executable} "$@"', "venv/bin/python3")
        os.chmod(f"{bin_directory}/python3", 0o755)
        os.symlink(find_program(TORCHRUN), f"{bin_directory}/torchrun")
        script = self.script("print('ran')")
        by_path = self.finish(self.start(f"{bin_directory}/torchrun", script), 20)
        self.assertIn("beside\nran\n", by_path)
        by_name = subprocess.run(["torchrun", script], check=True, capture_output=True, text=True, timeout=20,
                                 env={**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}"})
        self.assertIn("beside\nran\n", by_name.stdout)
        self.assertNotIn("beside", self.run_torchrun(script))

    def test_settings_that_the_backend_never_reads_are_not_looked_at(self):
        text = self.run_torchrun("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port()}",
                                 "--rdzv-conf='join_timeout=5,last_call_timeout=1,timeout=60s'", "--no-python", "echo", "hello")
        self.assertIn("hello", text)
        self.assertIn("--rdzv-conf 'join_timeout=5,timeout=60s' has no effect", text)
        self.run_torchrun("--rdzv-conf", "join_timeout=soon", "--no-python", "true", expected_code=2)

    def test_a_logs_plug_in_is_refused_but_for_torchruns_own(self):
        self.assertIn("hello", self.run_torchrun("--logs-specs", "default", "--no-python", "echo", "hello"))
        text = self.run_torchrun("--logs_specs=DOESNOT_EXIST", "--no-python", "echo", "hello", expected_code=2)
        self.assertIn("--logs-specs DOESNOT_EXIST", text)

    def test_a_failed_workers_error_file_is_named_and_stays(self):
        script = self.script("import json, os, sys\n"
                             "json.dump({'message': 'boom'}, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w'))\n"
                             "sys.exit(3 if os.environ['TORCHELASTIC_RESTART_COUNT'] < sys.argv[1] else 0)")
        os.mkdir(self.path("tmp"))
        text = self.run_torchrun("--max-restarts", 1, script, "2", expected_code=1, TMPDIR=self.path("tmp"))
        named = re.search(r"Its error file (\S+/attempt_1/0/error\.json) says:\n  boom\n", text)
        self.assertTrue(named, text)
        with open(named.group(1), encoding="ascii") as f:
            self.assertEqual(json.load(f), {"message": "boom"})
        os.mkdir(self.path("other"))
        self.run_torchrun("--max-restarts", 1, script, "1", TMPDIR=self.path("other"))
        self.assertEqual(os.listdir(self.path("other")), [])

    def start_waiting(self, *flags):
        """A job of one worker that writes down the first signal it gets."""
        script = self.script(
            "import os, signal, sys, time\n"
            "def told(number, frame):\n"
            f"    open({self.path('told')!r}, 'w').write(signal.Signals(number).name)\n"
            "    sys.exit(0)\n"
            "for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT): signal.signal(number, told)\n"
            f"open({self.path('up')!r}, 'w').close()\n"
            "while True: time.sleep(0.05)\n")
        job = self.start(*flags, script)
        wait_until(lambda: os.path.exists(self.path("up")), 20, "the worker's start")
        return job

    def test_a_signal_to_handle_reaches_the_worker_and_ends_the_job_with_1(self):
        job = self.start_waiting(TORCHRUN, "--signals-to-handle", "SIGTERM,SIGUSR1")
        job.send_signal(signal.SIGUSR1)
        self.finish(job, 20, 1)
        with open(self.path("told"), encoding="ascii") as f:
            self.assertEqual(f.read(), "SIGUSR1")
        self.assert_nothing_left()

    def test_a_signal_that_is_not_to_handle_has_its_own_effect(self):
        job = self.start_waiting(CONVENE, "run", "--signals-to-handle", "SIGTERM", "--no-python",
                                 "python3")
        job.send_signal(signal.SIGINT)
        self.assertEqual(job.wait(20), -signal.SIGINT)
        self.assert_nothing_left()

    def test_ctrl_c_ends_a_command_that_waits_for_a_hosts_name(self):
        job = self.start(CONVENE, "run", "--nnodes", 2, "--rdzv-endpoint", "no-such-host.invalid", "--no-python", "true")
        wait_until(lambda: "trying again" in self.output(job), 20, "the first look-up")
        job.send_signal(signal.SIGINT)
        self.assertEqual(job.wait(5), -signal.SIGINT)  # It tries for 15 s.

    def test_two_static_nodes_are_told_the_masters_place(self):
        port = free_port()
        script = self.script("import os; e = os.environ\n"
                             "print('rank', e['RANK'], 'group', e['GROUP_RANK'], e['MASTER_ADDR'], e['MASTER_PORT'])")
        nodes = [self.start(TORCHRUN, "--nnodes", 2, "--node-rank", rank, "--master-addr",
                            "localhost", "--master-port", port, script) for rank in (1, 0)]
        self.assertIn(f"rank 1 group 1 localhost {port}", self.finish(nodes[0], 20))
        self.assertIn(f"rank 0 group 0 localhost {port}", self.finish(nodes[1], 20))

    def test_workers_of_one_role_have_ranks_of_their_own(self):
        port = free_port()
        script = self.script("import os; e = os.environ\n"
                             "print(*(e[x] for x in ('RANK', 'ROLE_NAME', 'ROLE_RANK', 'ROLE_WORLD_SIZE', 'WORLD_SIZE')))")
        nodes = [self.start(TORCHRUN, "--nnodes", 3, "--node-rank", rank, "--master-port", port, "--role", role,
                            "--nproc-per-node", workers, script)
                 for rank, role, workers in ((2, "actor", 2), (1, "critic", 1), (0, "actor", 1))]
        told = [self.finish(node, 20) for node in nodes]
        self.assertIn("2 actor 1 3 4\n", told[0])
        self.assertIn("3 actor 2 3 4\n", told[0])
        self.assertIn("1 critic 0 1 4\n", told[1])
        self.assertIn("0 actor 0 3 4\n", told[2])

    def complete(self, program, *words):
        """Bash's completions after `words`."""
        command = [find_program(program), "--print-completion", "bash"]
        script = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        name = os.path.basename(program)
        script += (f'COMP_WORDS=({name} {" ".join(map(repr, words))}); COMP_CWORD={len(words)}\n'
                   f'_{name}_complete; echo "${{COMPREPLY[@]}}"')
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_bash_completes_flags_choices_and_commands(self):
        self.assertEqual(self.complete(TORCHRUN, "--nproc"), ["--nproc-per-node", "--nproc_per_node"])
        self.assertEqual(self.complete(TORCHRUN, "--start-method", ""),
                         ["spawn", "fork", "forkserver"])
        self.assertEqual(self.complete(CONVENE, "se"), ["serve"])
        self.assertEqual(self.complete(CONVENE, "run", "--spa"), ["--spares"])
        self.assertEqual(self.complete(CONVENE, "run", "--rdzv-backend", "=", "c"), ["convene", "c10d"])
        self.assertEqual(self.complete(CONVENE, "run", "--rdzv-backend", "="), ["convene", "c10d", "static", "etcd", "etcd-v2"])
        self.assertEqual(self.complete(CONVENE, "--vers"), ["--version"])
        self.assertEqual(self.complete(CONVENE, "data", "pre"), ["prepare"])
        self.assertEqual(self.complete(CONVENE, "data", "prepare", "--form"), ["--format"])
        self.assertEqual(self.complete(CONVENE, "checkpoint", "exp"), ["export"])
        self.assertEqual(self.complete(CONVENE, "data", "--vers"), ["--version"])
        self.assertEqual(self.complete(CONVENE, "status", "--"),
                         ["--help", "--endpoint", "--rdzv-id", "--rdzv_id", "--join-token-file", "--join_token_file", "--tls-cert", "--tls_cert",
                          "--tls-key", "--tls_key", "--tls-ca", "--tls_ca", "--watch", "--json",
                          "--help-exit-codes", "--help_exit_codes", "--version", "--print-completion", "--print_completion"])
        self.assertEqual(self.complete(CONVENED, "--stat"), ["--state-dir", "--state_dir"])
        self.assertEqual(self.complete(CONVENED, "--state-dir", "/proc/self/tas"), ["/proc/self/task"])


if __name__ == "__main__":
    unittest.main()
