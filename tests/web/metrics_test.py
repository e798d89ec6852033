"""/metrics by Prometheus's own tool, and the Grafana board beside what /metrics has."""

import http.client
import json
import re
import shutil
import subprocess
import unittest

from tests.support.convene_testing import CONVENE, CONVENED, CONVENE_TRAIN, ConveneTestCase, find_program, wait_until

BOARD = "tools/deploy/grafana/convene.json"
PROMTOOL = shutil.which("promtool")


class MetricsTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", 0, log="daemon.log")
        told = wait_until(lambda: re.search(r"serving the rendezvous on 127\.0\.0\.1:(\d+)", self.output(daemon)), 20, "the daemon's port")
        self.port = int(told.group(1))
        job = self.start(CONVENE, "run", "--nproc-per-node", 2, "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "run \"1\"",
                         find_program(CONVENE_TRAIN), *self.train_arguments(steps=100000, peak_tflops=0.1))
        self.text = wait_until(self.measured, 60, "a job that tells its times and loss")
        job.terminate()
        job.wait(30)

    def measured(self):
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        self.addCleanup(client.close)
        client.request("GET", "/metrics")
        text = client.getresponse().read().decode()
        wanted = ("convene_training_loss{", "convene_training_goodput_ratio{", "convene_training_mfu_ratio{",
                  'convene_rank_step_compute_seconds{run="run \\"1\\"",rank="1"}')
        return text if all(each in text for each in wanted) else None

    @unittest.skipUnless(PROMTOOL, "SKIPPED: no promtool (tools/install_packages page)")
    def test_prometheus_finds_nothing_to_complain_of(self):
        done = subprocess.run([PROMTOOL, "check", "metrics"], input=self.text, capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
        # It does find what is wrong.
        bad = subprocess.run([PROMTOOL, "check", "metrics"], input=self.text.replace("convene_epochs_total", "convene_epochs"), capture_output=True,
                             text=True, check=False, timeout=60)
        self.assertNotEqual(bad.returncode, 0)

    def board(self):
        """The board, and the PromQL expressions in it."""
        with open(find_program(BOARD), encoding="utf-8") as file:
            board = json.load(file)
        expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        return board, expressions + [each["expr"] for each in board["annotations"]["list"]]

    def check_rules(self, expressions):
        """The words of promtool about rules with these expressions, and its exit code. Grafana puts a run and a daemon in place of its variables."""
        rules = [{"record": f"board:expression:{number}", "expr": each.replace("$run", ".*").replace("$daemon", ".*")}
                 for number, each in enumerate(expressions)]
        with open(self.path("rules.yml"), "w", encoding="utf-8") as file:
            json.dump({"groups": [{"name": "board", "rules": rules}]}, file)  # JSON is YAML
        done = subprocess.run([PROMTOOL, "check", "rules", self.path("rules.yml")], capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stdout + done.stderr

    @unittest.skipUnless(PROMTOOL, "SKIPPED: no promtool (tools/install_packages page)")
    def test_prometheus_parses_every_expression_of_the_board(self):
        _, expressions = self.board()
        code, said = self.check_rules(expressions)
        self.assertEqual(code, 0, said)
        self.assertIn(f"SUCCESS: {len(expressions)} rules found", said)
        # It does find what cannot be parsed.
        self.assertNotEqual(self.check_rules(expressions + ["rate(convene_epoch)"])[0], 0)

    def test_every_metric_of_the_board_exists(self):
        board, expressions = self.board()
        expressions += [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]
        named = {name for each in expressions for name in re.findall(r"\b(?:convene|process)_\w+", each)}
        known = set(re.findall(r"^([a-z_]+)(?:\{| )", self.text, re.M))
        self.assertGreater(len(named), 15)
        self.assertEqual(named - known, set())
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
        self.assertEqual(len(places), len(set(places)))


if __name__ == "__main__":
    unittest.main()
