"""Certificates of a CA that tools/certs makes: members come in, people look by a browser's certificate, and files that change are read again."""

import http.client
import os
import re
import ssl
import subprocess
import unittest

from tests.support.convene_testing import CONVENE, CONVENED, ConveneTestCase, find_program, free_port, wait_until

_TOKEN = "Xz3Vq0k7sT1mN8bYw5Jr2aPfL9dH4eGc"
_WORKER = 'echo "rank $RANK works"; : > "$DIRECTORY/seen.$RANK"; until [ -e "$DIRECTORY/done" ]; do sleep 0.05; done'


class CertificatesTest(ConveneTestCase):

    def certs(self, ca, *words):
        subprocess.run([find_program("tools/certs"), self.path(ca), *words], check=True, capture_output=True, timeout=60)

    def flags(self, ca, name, authority=None):
        return ["--tls-cert", self.path(f"{ca}/{name}/cert.pem"), "--tls-key", self.path(f"{ca}/{name}/key.pem"), "--tls-ca",
                self.path(f"{authority or ca}/ca.pem")]

    def status(self, endpoint, *words, code=0, **environment):
        return self.finish(self.start(CONVENE, "status", "--endpoint", endpoint, *words, log="status", **environment), 30, code)

    def serve(self, *words):
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", "0", *words)
        told = wait_until(lambda: re.search(r"serving the rendezvous on 127\.0\.0\.1:(\d+)", self.output(daemon)), 20, "the port")
        return daemon, int(told.group(1))

    def look(self, port, path, certificate=None):
        """The status of a page, for a browser that knows the CA and may have a certificate."""
        context = ssl.create_default_context(cafile=self.path("ca/ca.pem"))
        if certificate is not None:
            context.load_cert_chain(self.path(f"{certificate}/cert.pem"), self.path(f"{certificate}/key.pem"))
        client = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
        self.addCleanup(client.close)
        client.request("GET", path)
        return client.getresponse().status

    def test_nodes_of_one_ca_meet_and_everybody_else_stays_outside(self):
        self.certs("ca", "127.0.0.1", "node1")
        self.certs("other", "127.0.0.1")
        endpoint = f"127.0.0.1:{free_port()}"
        # One node has flags, the other variables.
        variables = dict(zip(("CONVENE_TLS_CERT", "CONVENE_TLS_KEY", "CONVENE_TLS_CA"), self.flags("ca", "node1")[1::2]))
        words = ["run", "--nnodes", 2, "--rdzv-endpoint", endpoint, "--rdzv-id", "job"]
        program = ["--no-python", "sh", "-c", _WORKER]
        nodes = [self.start(CONVENE, *words, "--node-rank", 0, *self.flags("ca", "127.0.0.1"), *program, log="node0", DIRECTORY=self.path(""))]
        wait_until(lambda: "hosting the rendezvous" in self.output(nodes[0]), 20, "the rendezvous")
        nodes.append(self.start(CONVENE, *words, "--node-rank", 1, *program, log="node1", DIRECTORY=self.path(""), **variables))
        for rank in (0, 1):
            wait_until(lambda rank=rank: os.path.exists(self.path(f"seen.{rank}")), 30, f"worker {rank}")
        self.assertIn("running", self.status(endpoint, *self.flags("ca", "node1")))
        logs = self.start(CONVENE, "logs", "job", "--endpoint", endpoint, log="logs", **variables)
        with self.subTest("strangers"):
            self.assertIn("--tls-cert", self.status(endpoint, code=64))
            self.assertIn("not of a CA in --tls-ca", self.status(endpoint, *self.flags("other", "127.0.0.1"), code=64))
            # It takes the daemon, and the daemon does not take it.
            mixed = self.flags("other", "127.0.0.1")
            with open(self.path("other/ca.pem"), "a", encoding="ascii") as both, open(self.path("ca/ca.pem"), encoding="ascii") as first:
                both.write(first.read())
            self.assertIn("unknown ca", self.status(endpoint, *mixed, code=64))
            stranger = self.start(CONVENE, *words, *mixed, "--no-python", "true", log="stranger")
            self.assertIn("do not take each other", self.finish(stranger, 30, 64))
        with self.subTest("another name"):
            other_name = "localhost" + endpoint[endpoint.index(":"):]
            self.assertIn("is not for this address", self.status(other_name, *self.flags("ca", "node1"), code=64))
        with open(self.path("done"), "w", encoding="ascii"):
            pass
        self.assertIn("rank 1 works", self.finish(logs, 30))
        for node in nodes:
            self.finish(node, 30)
        self.assert_nothing_left()

    def test_a_job_on_one_node_needs_no_certificate_of_the_loopback_address(self):
        self.certs("ca", "node1")
        self.finish(self.start(CONVENE, "run", "--standalone", *self.flags("ca", "node1"), "--no-python", "true", log="alone"), 30)

    def test_people_look_with_a_certificate_and_a_new_one_is_read_while_the_daemon_runs(self):
        self.certs("ca", "127.0.0.1", "anna")
        daemon, port = self.serve(*self.flags("ca", "127.0.0.1"))
        for path in ("/", "/metrics", "/status"):
            self.assertEqual(self.look(port, path), 401)
            self.assertEqual(self.look(port, path, "ca/anna"), 200)
        self.assertEqual(self.look(port, "/healthz"), 200)
        before = ssl.get_server_certificate(("127.0.0.1", port))
        self.certs("ca", "127.0.0.1")
        self.assertNotEqual(ssl.get_server_certificate(("127.0.0.1", port)), before)
        self.assertEqual(self.look(port, "/", "ca/anna"), 200)
        wait_until(lambda: "was read again" in self.output(daemon), 20, "the line about the certificate")
        with open(self.path("ca/127.0.0.1/cert.pem"), "w", encoding="ascii") as file:
            file.write("half a certif")
        self.assertEqual(self.look(port, "/", "ca/anna"), 200)
        wait_until(lambda: "those from before go on" in self.output(daemon), 20, "the line about the damage")

    def test_with_a_token_too_a_member_needs_both(self):
        self.certs("ca", "127.0.0.1", "anna")
        with open(self.path("token"), "w", encoding="ascii", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
            file.write(_TOKEN + "\n")
        _, port = self.serve(*self.flags("ca", "127.0.0.1"), "--join-token-file", self.path("token"))
        endpoint = f"127.0.0.1:{port}"
        self.assertIn("no job", self.status(endpoint, *self.flags("ca", "anna"), "--join-token-file", self.path("token")).lower())
        self.assertIn("--join-token-file", self.status(endpoint, "--join-token-file", self.path("token"), code=64))
        self.assertIn("another join token", self.status(endpoint, *self.flags("ca", "anna"), code=64))
        self.assertEqual(self.look(port, "/", "ca/anna"), 200)

    def test_names_are_as_long_as_a_clusters_and_a_number_alone_is_a_name(self):
        long = "train-node-0.aaaaaaaaaaaaaaaaaaaa.some-long-team-namespace.svc.cluster.local"
        self.certs("ca", f"{long},10.0.0.1", "1234")
        for name, asked in ((long, ["-checkhost", long]), (long, ["-checkip", "10.0.0.1"]), ("1234", ["-checkhost", "1234"])):
            shown = subprocess.run(["openssl", "x509", "-in", self.path(f"ca/{name}/cert.pem"), "-noout", *asked],
                                   check=True, capture_output=True, text=True, timeout=60)
            self.assertIn("does match", shown.stdout)

    def test_no_certificate_outlives_the_ca_that_signs_it(self):
        self.certs("ca", "node0")
        for words in (["--days", "3651", "node1"], ["--days", "99999", "node1"]):
            run = subprocess.run([find_program("tools/certs"), *words[:-1], self.path("ca"), words[-1]], check=False, capture_output=True, text=True,
                                 timeout=60)
            self.assertEqual((run.returncode, sorted(os.listdir(self.path("ca")))), (64, ["ca-key.pem", "ca.pem", "node0"]), run.stderr)
            self.assertIn("ca.pem ends on", run.stderr)

    def test_a_flag_behind_the_directory_makes_no_certificates(self):
        for words in (["ca", "node0", "--days", "30"], ["--days", "30", "--dir", "ca"], ["--dir", "ca", "node0"]):
            run = subprocess.run([find_program("tools/certs"), *words], check=False, capture_output=True, text=True, timeout=60, cwd=self.directory)
            self.assertEqual((run.returncode, os.path.exists(self.path("ca"))), (64, False), run.stderr)
            self.assertIn("flags stand before DIR", run.stderr)

    def test_no_second_ca_takes_the_place_of_one_whose_key_is_kept_elsewhere(self):
        self.certs("ca", "node0")
        with open(self.path("ca/ca.pem"), encoding="ascii") as file:
            before = file.read()
        os.rename(self.path("ca/ca-key.pem"), self.path("kept"))
        run = subprocess.run([find_program("tools/certs"), self.path("ca"), "node1"], check=False, capture_output=True, text=True, timeout=60)
        self.assertEqual((run.returncode, sorted(os.listdir(self.path("ca")))), (64, ["ca.pem", "node0"]), run.stderr)
        self.assertIn("ca-key.pem", run.stderr)
        with open(self.path("ca/ca.pem"), encoding="ascii") as file:
            self.assertEqual(file.read(), before)
        os.rename(self.path("kept"), self.path("ca/ca-key.pem"))
        self.certs("ca", "node1")
        subprocess.run(["openssl", "verify", "-CAfile", self.path("ca/ca.pem"), self.path("ca/node1/cert.pem")], check=True, capture_output=True, timeout=60)

    def test_files_that_are_not_right_are_named_before_anything_starts(self):
        self.certs("ca", "127.0.0.1")
        cert, key, authority = self.flags("ca", "127.0.0.1")[1::2]
        for given, word in (((key, cert, authority), "swapped"), ((cert, self.path("none"), authority), "none"), ((cert, key, key), "--tls-ca"),
                            ((cert, key, ""), "go together")):
            flags = [word for pair in zip(("--tls-cert", "--tls-key", "--tls-ca"), given) if pair[1] for word in pair]
            self.assertIn(word, self.finish(self.start(CONVENE, "run", "--standalone", *flags, "--no-python", "true", log="refused"), 10, 64))
        os.chmod(key, 0o644)
        for words in (("serve",), ("run", "--standalone", "--no-python", "true"), ("status",), ("logs", "job"), ("events", "job"), ("incidents", "job")):
            text = self.finish(self.start(CONVENE, words[0], *self.flags("ca", "127.0.0.1"), *words[1:], log="refused"), 10, 64)
            self.assertIn(f"chmod 600 {key}", text)


if __name__ == "__main__":
    unittest.main()
