"""`convene doctor` as a person, a program and a job use it."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import unittest

from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase, find_program, free_port, read_metrics, wait_until

GOOD = {"NCCL_SOCKET_IFNAME": None, "NCCL_IB_HCA": None, "GLOO_SOCKET_IFNAME": None}
BAD = {"NCCL_SOCKET_IFNAME": "nothing"}


class DoctorTest(ConveneTestCase):

    def doctor(self, *arguments, code=0, **environment):
        return self.finish(self.start(CONVENE, "doctor", *arguments, **environment), 20, code)

    def findings(self, *arguments, code=0, **environment):
        return json.loads(self.doctor("--json", *arguments, code=code, **environment))["findings"]

    def test_each_subject_is_looked_at_and_the_folders_that_are_named(self):
        found = self.findings(self.path(""), **GOOD)
        subjects = {finding["subject"] for finding in found}
        self.assertLessEqual({"GPUs", "network", "name", "memory", "disk", "shared memory", "limits", "environment"}, subjects)
        self.assertTrue(any(finding["what"].startswith(self.path("")) for finding in found if finding["subject"] == "disk"))
        for finding in found:
            self.assertEqual(finding["why"] == "", finding["severity"] == "good", finding)

    def test_what_training_cannot_do_without_is_71_and_told(self):
        said = self.doctor(self.path("none"), code=71, **GOOD)
        self.assertIn("No such file or directory", said)
        self.assertRegex(said, r"(?m)^error    disk ")
        self.assertRegex(said, r"(?m): 1 error, \d+ warnings?, \d+ notes?$")
        self.assertIn("NCCL_SOCKET_IFNAME=nothing", self.doctor(code=71, **BAD))
        self.doctor(**{**GOOD, "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"})

    def test_it_keeps_a_node_that_cannot_train_out_of_a_job(self):
        check = f"'{CONVENE}' doctor"
        job = ["run", "--standalone", "--health-check", check, "sh", "-c", "echo it runs"]
        self.assertIn("it runs", self.finish(self.start(CONVENE, *job, **GOOD), 30))
        said = self.finish(self.start(CONVENE, *job, **BAD), 30, 71)
        self.assertNotIn("] it runs", said)
        self.assertIn("no interface that is up has such a name", said)

    def nodes(self, *words, count=2, programs=None, **changes):
        """The same words on each node; `programs`: each node's convene; `changes`: the environment of the last one."""
        place = ["--nnodes", str(count), "--rdzv-id", "look", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1"]
        environments = [GOOD] * (count - 1) + [{**GOOD, **changes}]
        return [self.start(program, words[0], *place, *words[1:], **each)
                for program, each in zip(programs or [CONVENE] * count, environments)]

    def test_the_nodes_of_a_job_look_at_each_other(self):
        said = "\n".join(self.finish(node, 60) for node in self.nodes("doctor", self.path(""), count=3, NCCL_DEBUG="INFO"))
        self.assertEqual(said.count("3 nodes: 0 errors"), 1, said)
        self.assertIn("all 6 ways between the nodes are open", said)
        self.assertRegex(said, r"good +clocks +at most 0\.\d+ s apart")
        self.assertIn("is one folder on all nodes", said)
        self.assertRegex(said, r"good +links +usual speed [0-9.]+ GB/s over Gloo|slow (node|link): ")
        self.assertRegex(said, r"good +all_reduce +3 ranks over Gloo, time and busbw: 12 B .* ms .* GB/s, .*, 16.0 MiB [0-9.]+ ms [0-9.]+ GB/s\n")
        self.assertRegex(said, r"warning +nodes differ +NCCL_DEBUG: none on \w+, \w+, INFO on")
        self.assertEqual([name for name in os.listdir(self.path("")) if name.startswith(".convene-doctor")], [])

    def test_where_half_of_the_nodes_are_missing_it_says_how_many_came_and_ends(self):
        place = ["--nnodes", "4", "--rdzv-id", "look", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1"]
        begin = time.monotonic()
        for node in [self.start(CONVENE, "doctor", *place, "--wait", "15", **GOOD) for _ in range(2)]:
            self.assertIn("2 of at least 4 nodes ready when the join timeout of 15s was over", self.finish(node, 60, 69))
        self.assertLess(time.monotonic() - begin, 50)
        self.assertIn("--wait", self.doctor("--wait", "0", code=64))
        self.assertIn("give --nnodes as well", self.doctor("--wait", "5", code=64))

    def test_a_node_with_another_build_and_without_the_trainer_is_told_and_not_waited_for(self):
        other = self.path("bin/convene")
        os.mkdir(self.path("bin"))
        shutil.copy(find_program(CONVENE), other)
        with open(other, "ab") as file:
            file.write(b"another build")
        first, second = self.nodes("doctor", programs=(CONVENE, other), PATH="/usr/bin:/bin")
        begin = time.monotonic()
        said = self.finish(first, 60) + self.finish(second, 60)
        self.assertLess(time.monotonic() - begin, 15)
        self.assertRegex(said, r"warning +nodes differ +Convene: build \w{16} on \w+, build \w{16} on \w+")
        self.assertRegex(said, r"warning +nodes differ +convene-train: (none|build \w{16}) on \w+, (none|build \w{16}) on \w+")
        self.assertRegex(said, r"warning +links +they could not be measured: \w+ has no program convene-train")

    def test_a_job_begins_only_where_all_nodes_are_fit(self):
        program = ["--doctor", "--nproc-per-node", "2", "--max-restarts", "3", "--", "sh", "-c", "echo program of $RANK"]
        said = "\n".join(self.finish(node, 60) for node in self.nodes("run", *program))
        self.assertEqual([said.count(f"program of {rank}") for rank in range(4)], [1] * 4, said)
        self.assertEqual(said.count("2 nodes: 0 errors"), 1, said)
        texts = [self.finish(node, 60, 71) for node in self.nodes("run", *program, **BAD)]
        for text in texts:
            self.assertNotIn("program of", text)
            self.assertIn("a restart would not mend", text)
            self.assertRegex(text, r"Its last lines:\n  environment: .*NCCL_SOCKET_IFNAME=nothing")

    def test_who_comes_after_a_bench_meets_none_of_its_addresses(self):
        """The look's bench, one of the program, and a trainer, in the same workers. A rank that read an address of a bench before it was refused."""
        train = shlex.join([find_program(CONVENE_TRAIN), *self.train_arguments(steps=2)])
        script = f"{find_program(CONVENE)} bench -b 8 -e 8 -n 1 all_reduce && exec {train}"
        for _ in range(3):
            for node in self.nodes("run", "--nproc-per-node", "2", "--doctor", "--", "sh", "-c", script):
                self.finish(node, 60)
            shutil.rmtree(self.path("checkpoints"))

    def test_a_job_of_one_worker_is_looked_at_as_well(self):
        program = ["run", "--standalone", "--doctor", "--nproc-per-node", "1", "--", "sh", "-c", "echo program of $RANK"]
        said = self.finish(self.start(CONVENE, *program, **GOOD), 60)
        self.assertEqual([said.count(": 0 errors"), said.count("program of 0")], [1, 1], said)
        said = self.finish(self.start(CONVENE, *program, **BAD), 60, 71)
        self.assertNotIn("program of", said)

    def test_a_restart_is_not_held_up_and_the_program_behind_the_look_hears_its_agent(self):
        job = ["run", "--standalone", "--nproc-per-node", "2", "--doctor", "--max-restarts", "1", "--no-python", find_program(CONVENE_TRAIN)]
        run = self.start(CONVENE, *job, *self.train_arguments(steps=100000, checkpoint_every=100000), **GOOD)
        self.wait_for_step(2)
        os.kill(self.workers()[1], signal.SIGKILL)
        wait_until(lambda: "restart 1 of 1" in self.output(run) or self.output(run).count("ranks 0 to 1 of 2 start here") == 2, 60, "a restart")
        self.wait_for_step(4)
        run.send_signal(signal.SIGTERM)
        said = self.finish(run, 60, 143)
        self.assertEqual(len(re.findall(r"1 node: 0 errors", said)), 1, said)
        last = read_metrics(self.path("metrics.jsonl"))[-1]["step"]
        self.assertTrue(os.path.exists(self.path(f"checkpoints/step_{last:08d}/manifest")), said[-3000:])

    def test_a_program_behind_the_look_is_judged_as_without_it(self):
        job = ["run", "--standalone", "--nproc-per-node", "2", "--doctor", "--max-restarts", "1", "--stop-grace", "abort=20", "--", "sh", "-c"]
        # 64 is the program's own code, not that of a worker in session; a told one has the whole grace.
        script = (f"cd {self.path('')}; [ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; "
                  "[ $RANK = 1 ] || { until [ -e ready ]; do sleep 0.05; done; exit 64; }; "
                  "trap 'sleep 2; touch saved; exit 1' TERM; touch ready; while :; do sleep 0.1; done")
        self.finish(self.start(CONVENE, *job, script, **GOOD), 60)
        self.assertTrue(os.path.exists(self.path("saved")))

    def test_the_word_doctor_is_a_health_check(self):
        said = self.finish(self.start(CONVENE, "run", "--standalone", "--health-check", "doctor", "true", **BAD), 30, 71)
        self.assertIn("no interface that is up has such a name", said)

    def test_the_word_doctor_wants_no_shell(self):
        shell_less = ["unshare", "--map-root-user", "--mount", "bash", "-c", 'mount --bind /dev/null "$(realpath /bin/sh)" && exec "$@"', "bash"]
        if subprocess.run([*shell_less, "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("this machine gives us no mount namespace")
        job = ["run", "--standalone", "--health-check", "doctor", "--no-python", find_program(CONVENE), "--version"]
        self.assertIn("succeeded", self.finish(self.start(CONVENE, *job, prefix=shell_less, **GOOD), 30))

    def test_what_counts_pods_or_is_an_outer_workers_makes_no_rank_of_it(self):
        pod = ["env", "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=localhost", "MASTER_PORT=23456"]
        outer = [*pod, "RANK=1", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=0", "CONVENE_SESSION=/no/such/session"]
        self.assertRegex(self.finish(self.start(CONVENE, "doctor", prefix=pod, **GOOD), 20), ": 0 errors")
        for environment in (pod, outer):
            job = ["run", "--standalone", "--health-check", "doctor", "--no-python", "true"]
            self.assertIn("succeeded", self.finish(self.start(CONVENE, *job, prefix=environment, **GOOD), 30))

    def test_the_nodes_meet_at_a_daemon_that_wants_a_token(self):
        token = self.path("token")
        with open(token, "w", encoding="ascii", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
            file.write("Xz3Vq0k7sT1mN8bYw5Jr2aPfL9dH4eGc\n")
        daemon = self.start(CONVENE, "serve", "--host", "127.0.0.1", "--port", "0", "--join-token-file", token)
        told = wait_until(lambda: re.search(r"serving the rendezvous on (127\.0\.0\.1:\d+)", self.output(daemon)), 20, "the port")
        place = ["--nnodes", "1", "--rdzv-id", "look", "--rdzv-endpoint", told.group(1)]
        self.assertRegex(self.doctor(*place, "--join-token-file", token, **GOOD), ": 0 errors")


if __name__ == "__main__":
    unittest.main()
