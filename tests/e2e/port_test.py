"""The daemon's one port, as agents, PyTorch programs, browsers and Prometheus meet it; and `convene status`."""

import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import unittest

from tests.support import torch_environment
from tests.support.convene_testing import CONVENE, CONVENED, ConveneTestCase, find_program, wait_until
from tests.support.torch_testing import need_torch

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? ([^ ]+)")


def parse_prometheus(text):
    """{'name{labels}': value} of a text in format 0.0.4; AssertionError where Prometheus would refuse or promtool complain."""
    assert text.endswith("\n"), "the last line has no end"
    samples, types, helped, family = {}, {}, set(), None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            assert family not in helped, f"{family} begins twice"
            assert line.split(" ", 3)[3], f"{family} has no help"
            helped.add(family)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family and name not in types, f"the type of {name} is out of place"
            assert kind in ("counter", "gauge", "histogram"), kind
            assert (kind == "counter") == name.endswith("_total"), f"{name} is a {kind}"
            types[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, f"no sample: {line!r}"
            name, labels, value = match.groups()
            base = re.sub("_(bucket|sum|count)$", "", name) if types.get(family) == "histogram" else name
            assert base == family and base in types, f"{line!r} stands among {family}"
            key = name + (f"{{{labels}}}" if labels else "")
            assert key not in samples, f"{key} twice"
            samples[key] = float(value)
            assert types[base] != "counter" or samples[key] >= 0, line
    for name in (name for name, kind in types.items() if kind == "histogram"):
        buckets = [value for key, value in samples.items() if key.startswith(name + "_bucket{")]
        assert buckets == sorted(buckets), f"{name} is not cumulative"
        assert buckets[-1] == samples[f'{name}_bucket{{le="+Inf"}}'] == samples[name + "_count"], name
    return samples


class PortTestCase(ConveneTestCase):
    def start_daemon(self):
        self.daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", "0")
        told = wait_until(lambda: re.search(r"serving the rendezvous on 127\.0\.0\.1:(\d+)", self.output(self.daemon)), 20,
                          "the daemon's port")
        self.port = int(told.group(1))
        self.endpoint = f"127.0.0.1:{self.port}"

    def setUp(self):
        super().setUp()
        self.start_daemon()

    def connect(self):
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        self.addCleanup(client.close)
        return client

    def get(self, path, method="GET", client=None):
        client = client or self.connect()
        client.request(method, path)
        response = client.getresponse()
        return response, response.read().decode()

    def start_job(self, run, nodes="1", name=None):
        """A job whose workers wait until they are killed."""
        return self.start(CONVENE, "run", "--nnodes", nodes, "--rdzv-endpoint", self.endpoint, "--rdzv-id", run, "--no-python",
                          "/bin/sleep", "600", log=name)

    def wait_for_phase(self, run, phase):
        def phase_now():
            response, text = self.get(f"/status?run={run}")
            return response.status == 200 and json.loads(text)["jobs"][0]["phase"] == phase
        wait_until(phase_now, 30, f"{run} {phase}")


class HttpTest(PortTestCase):
    def test_pages_over_one_connection(self):
        client = self.connect()
        response, text = self.get("/healthz", client=client)
        self.assertEqual((response.status, text), (200, "ok\n"))
        self.assertEqual(json.loads(self.get("/status", client=client)[1]), {"jobs": []})
        response, text = self.get("/", client=client)
        self.assertEqual(response.headers["Content-Type"], "text/plain; charset=utf-8")
        self.assertEqual(text, "no jobs\n")
        self.assertEqual(self.get("/status?run=none", client=client)[0].status, 404)
        response, text = self.get("/metrics", method="HEAD", client=client)
        self.assertEqual(text, "")
        self.assertGreater(int(response.headers["Content-Length"]), 100)
        self.assertEqual(self.get("/", method="POST")[0].status, 405)

    def test_curl_and_many_at_once(self):
        url = f"http://{self.endpoint}/healthz"
        if subprocess.run(["which", "curl"], check=False, capture_output=True).returncode == 0:
            self.assertEqual(subprocess.run(["curl", "-sf", "--max-time", "20", url], check=True, capture_output=True).stdout, b"ok\n")
        clients = [self.connect() for _ in range(64)]
        for client in clients:
            client.connect()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            # Two on each connection, one after the other.
            answers = list(pool.map(lambda client: [self.get("/metrics", client=client)[0].status for _ in range(2)], clients, timeout=60))
        self.assertEqual(answers, [[200, 200]] * 64)

    def test_one_byte_at_a_time(self):
        with socket.create_connection(("127.0.0.1", self.port), 20) as raw:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in b"GET /healthz HTTP/1.0\r\n\r\n":
                raw.sendall(bytes([byte]))
            self.assertTrue(raw.makefile("rb").read().endswith(b"\r\n\r\nok\n"))

    def test_tls_is_told_in_the_log(self):
        with socket.create_connection(("127.0.0.1", self.port), 20) as raw:
            raw.sendall(b"\x16\x03\x01\x02\x00")
            try:
                self.assertEqual(raw.recv(100), b"")
            except ConnectionResetError:
                pass
        wait_until(lambda: "begins with 0x16: it is TLS" in self.output(self.daemon), 10, "a word about TLS")

    def test_metrics_of_a_job(self):
        self.start_job('a"b')
        self.wait_for_phase("a%22b", "running")
        response, text = self.get("/metrics")
        self.assertEqual(response.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        metrics = parse_prometheus(text)
        self.assertEqual(metrics['convene_jobs{phase="running"}'], 1)
        self.assertEqual(metrics['convene_nodes{run="a\\"b"}'], 1)
        self.assertEqual(metrics['convene_epoch{run="a\\"b"}'], 1)
        self.assertEqual(metrics["convene_joins_total"], 1)
        self.assertEqual(metrics["convene_epochs_total"], 1)
        self.assertEqual(metrics["convene_agent_streams"], 1)
        self.assertGreaterEqual(metrics["convene_decision_seconds_count"], 1)
        self.assertGreater(metrics["process_resident_memory_bytes"], 1e6)
        self.assertGreater(metrics["process_open_fds"], 3)


class StatusTest(PortTestCase):
    def status(self, *arguments, code=0, **environment):
        done = subprocess.run([find_program(CONVENE), "status", *arguments], check=False, capture_output=True, text=True, timeout=60,
                              env={**os.environ, **environment})
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout

    def test_text_and_json_of_a_run(self):
        self.assertEqual(self.status("--endpoint", self.endpoint), "no jobs\n")
        self.start_job("llama", nodes="2")
        self.wait_for_phase("llama", "forming")
        waiting = self.status("llama", "--endpoint", self.endpoint)
        self.assertRegex(waiting, r"job llama: forming, epoch 0, 1 node \(--nnodes 2:2\), not in the epoch: 1 ready")
        self.start_job("llama", nodes="2")
        self.wait_for_phase("llama", "running")
        text = self.status("llama", CONVENE_ENDPOINT=self.endpoint)
        self.assertRegex(text, r"job llama: running, epoch 1, 2 nodes \(--nnodes 2:2\), restarts 0 of 0\n")
        self.assertRegex(text, r"\n +1 +1 +\S+ +running")
        reply = json.loads(self.status("--json", "llama", PET_RDZV_ENDPOINT=self.endpoint))
        self.assertEqual([node["group_rank"] for node in reply["jobs"][0]["nodes"]], [0, 1])
        self.assertEqual(reply["jobs"][0]["epoch"], "1")
        self.status("other", "--endpoint", self.endpoint, code=64)

    def test_watch_prints_a_line_for_each_change(self):
        watch = self.start(CONVENE, "status", "--watch", "--endpoint", self.endpoint, log="watch")
        watch_json = self.start(CONVENE, "status", "--watch", "--json", "--endpoint", self.endpoint, log="json")
        job = self.start_job("llama")
        wait_until(lambda: "job llama: running, epoch 1" in self.output(watch), 30, "the job's line")
        wait_until(lambda: self.output(watch_json).count("\n") >= 2, 30, "two lines of JSON")
        job.send_signal(signal.SIGTERM)
        job.wait(30)
        wait_until(lambda: re.search("job llama: (failed|succeeded|forming)", self.output(watch)), 30, "the job's end")
        self.assertEqual(self.output(watch).count("job llama: running, epoch 1"), 1)
        for line in self.output(watch_json).splitlines()[:-1]:
            self.assertIn("jobs", json.loads(line))
        watch.send_signal(signal.SIGINT)
        self.assertEqual(watch.wait(20), 130)

    def test_watch_outlives_the_daemon(self):
        watch = self.start(CONVENE, "status", "--watch", "--json", "--endpoint", self.endpoint, log="watch")
        wait_until(lambda: '{"jobs":[]}' in self.output(watch), 30, "an answer")
        self.daemon.kill()
        self.daemon.wait(20)
        wait_until(lambda: "convene: " in self.output(watch), 30, "word that the daemon is gone")
        self.start(CONVENED, "--host", "127.0.0.1", "--port", self.port)
        seen = self.output(watch).count('{"jobs":[]}')
        wait_until(lambda: self.output(watch).count('{"jobs":[]}') > seen, 30, "another answer")


class TorchTest(PortTestCase):
    @classmethod
    def setUpClass(cls):
        need_torch()

    def test_stores_of_pytorch_share_the_daemons_table(self):
        program = f"""
import sys, datetime, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", {self.port}, is_master=False, use_libuv=sys.argv[2] == "libuv",
                      timeout=datetime.timedelta(seconds=60))
mine = dist.PrefixStore("run", store)
mine.set(sys.argv[1], "value of " + sys.argv[1])
other = {{"a": "b", "b": "a"}}[sys.argv[1]]
assert mine.get(other) == f"value of {{other}}".encode()
store.add("count", 1)
"""
        clients = [subprocess.Popen([torch_environment.PYTHON, "-c", program, name, kind], env=torch_environment.torch_environment(),
                                    stderr=subprocess.PIPE, text=True) for name, kind in (("a", "libuv"), ("b", "legacy"))]
        for client in clients:
            _, errors = client.communicate(timeout=120)
            self.assertEqual(client.returncode, 0, errors)

    def test_stock_torchrun_meets_at_the_daemon(self):
        show = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
        command = [torch_environment.TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "stock",
                   "--rdzv-endpoint", self.endpoint, "--rdzv-conf", "is_host=false", "--local-addr", "127.0.0.1", "--no-python",
                   sys.executable, "-c", show]
        nodes = [subprocess.Popen(command, env=torch_environment.torch_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for _ in range(2)]
        output = ""
        for node in nodes:
            out, errors = node.communicate(timeout=180)
            self.assertEqual(node.returncode, 0, errors[-3000:])
            output += out
        self.assertEqual(sorted(output.splitlines()), ["rank 0 of 2", "rank 1 of 2"])


if __name__ == "__main__":
    unittest.main()
