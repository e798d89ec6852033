"""A join token: the nodes of a run and the people that look at it come in, and nobody else."""

import base64
import http.client
import os
import re
import ssl
import subprocess
import unittest

from tests.support.convene_testing import CONVENE, CONVENED, ConveneTestCase, environment_of, free_port, wait_until

_TOKEN = "Xz3Vq0k7sT1mN8bYw5Jr2aPfL9dH4eGc"
# The worker waits until it may end, and says whether it can see the token.
_WORKER = """
echo "rank $RANK works"
env | grep -c -e CONVENE_JOIN_TOKEN= -e Xz3Vq0k7 > "$DIRECTORY/counted.$RANK"
mv "$DIRECTORY/counted.$RANK" "$DIRECTORY/seen.$RANK"
until [ -e "$DIRECTORY/done" ]; do sleep 0.05; done
"""


def core_limit(pid):
    """The soft limit of a process's core files, in bytes."""
    with open(f"/proc/{pid}/limits", encoding="ascii") as file:
        return int(re.search(r"Max core file size +(\S+)", file.read()).group(1))


class JoinTokenTest(ConveneTestCase):

    def token_file(self, token=_TOKEN, name="token"):
        path = self.path(name)
        with open(path, "w", encoding="ascii", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
            file.write(token + "\n")
        return path

    def read(self, name):
        with open(self.path(name), encoding="ascii") as file:
            return file.read()

    def ask(self, endpoint, *words, code=0, **environment):
        return self.finish(self.start(CONVENE, "status", "--endpoint", endpoint, *words, **environment), 30, code)

    def start_node(self, endpoint, rank, *words, **environment):
        return self.start(CONVENE, "run", "--nnodes", 2, "--node-rank", rank, "--rdzv-endpoint", endpoint, "--rdzv-id", "job", *words,
                          "--no-python", "sh", "-c", _WORKER, log=f"node{rank}", DIRECTORY=self.path(""), **environment)

    def request(self, port, path, headers=None, form=None):
        """An answer and its body; a browser does not know the certificate, and the test does not look at it."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        client = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
        self.addCleanup(client.close)
        client.request("GET" if form is None else "POST", path, headers=headers or {}, body=form)
        answer = client.getresponse()
        return answer, answer.read().decode()

    def look(self, port, path, password=None):
        headers = {} if password is None else {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}
        answer, body = self.request(port, path, headers)
        return answer.status, body

    def test_nodes_with_the_token_meet_and_everybody_else_stays_outside(self):
        token = self.token_file()
        endpoint = f"127.0.0.1:{free_port()}"
        # One node has the file, the other the variable.
        nodes = [self.start_node(endpoint, 0, "--join-token-file", token),
                 self.start_node(endpoint, 1, CONVENE_JOIN_TOKEN=_TOKEN)]
        for rank in (0, 1):
            wait_until(lambda rank=rank: os.path.exists(self.path(f"seen.{rank}")), 30, f"worker {rank}")
        with self.subTest("no worker sees the token, and no command line and no environment shows it"):
            for rank in (0, 1):
                with open(self.path(f"seen.{rank}"), encoding="ascii") as file:
                    self.assertEqual(file.read().strip(), "0")
            for node in nodes:
                self.assertNotIn(_TOKEN, str(environment_of(node.pid)))
                with open(f"/proc/{node.pid}/cmdline", encoding="ascii") as file:
                    self.assertNotIn(_TOKEN, file.read())
        with self.subTest("status"):
            self.assertIn("running", self.ask(endpoint, "--join-token-file", token))
            self.assertIn("running", self.ask(endpoint, CONVENE_JOIN_TOKEN_FILE=token))
            self.assertIn("--join-token-file", self.ask(endpoint, code=64))
            other = self.token_file(_TOKEN[::-1], "other")
            self.assertIn("does not take this join token", self.ask(endpoint, "--join-token-file", other, code=64))
        with self.subTest("a node"):
            stranger = self.start(CONVENE, "run", "--nnodes", 2, "--rdzv-endpoint", endpoint, "--rdzv-id", "job", "--no-python", "true",
                                  log="stranger")
            self.assertIn("--join-token-file", self.finish(stranger, 30, 64))
        with self.subTest("the lines of the workers"):
            logs = self.start(CONVENE, "logs", "job", "--endpoint", endpoint, "--join-token-file", token, log="logs")
            self.assertIn("rank 1 works", self.finish(logs, 30))
        with self.subTest("the read token opens the commands that look"):
            read_token = self.finish(self.start(CONVENE, "read-token", "--join-token-file", token, log="read-token"), 10).strip()
            reader = self.token_file(read_token, "reader")
            for words, answer in ((("status",), "running"), (("logs", "job"), "rank 1 works"), (("events", "job"), "epoch"), (("incidents", "job"), "")):
                looks = self.start(CONVENE, *words, "--endpoint", endpoint, "--join-token-file", reader, log="looks." + words[0])
                self.assertIn(answer, self.finish(looks, 30))
        with open(self.path("done"), "w", encoding="ascii"):
            pass
        for node in nodes:
            self.assertNotIn(_TOKEN, self.finish(node, 30))
        self.assert_nothing_left()

    def serve(self, token):
        """A daemon, its port and its read token."""
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", "0", "--join-token-file", token)
        told = wait_until(lambda: re.search(r"serving the rendezvous on 127\.0\.0\.1:(\d+)", self.output(daemon)), 20, "the port")
        return daemon, int(told.group(1)), self.finish(self.start(CONVENE, "read-token", "--join-token-file", token, log="read-token"), 10).strip()

    def test_a_browser_logs_in_once_and_then_has_a_cookie(self):
        _, port, read_token = self.serve(self.token_file())
        browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
        answer, body = self.request(port, "/", browser)
        self.assertEqual(answer.status, 401)
        self.assertIn('<form method="post" action="/login">', body)
        self.assertNotIn("Basic", answer.headers["WWW-Authenticate"])
        form = {**browser, "Content-Type": "application/x-www-form-urlencoded"}
        self.assertEqual(self.request(port, "/login", form, "password=guess")[0].status, 401)
        answer, _ = self.request(port, "/login", form, f"password={read_token}")
        self.assertEqual((answer.status, answer.headers["Location"]), (303, "/"))
        cookie, *attributes = answer.headers["Set-Cookie"].split("; ")
        self.assertEqual(sorted(attributes), ["HttpOnly", "Path=/", "SameSite=Strict", "Secure"])
        self.assertTrue(_TOKEN not in cookie and read_token not in cookie, cookie)
        for path in ("/", "/api/jobs", "/status", "/metrics"):
            self.assertEqual(self.request(port, path, {**browser, "Cookie": f"other=1; {cookie}"})[0].status, 200)
        self.assertEqual(self.request(port, "/api/jobs", {"Cookie": cookie[:-1]})[0].status, 401)
        # It opens no other daemon with the same token, and nothing by another way.
        other = self.serve(self.token_file())[1]
        self.assertEqual(self.request(other, "/api/jobs", {"Cookie": cookie})[0].status, 401)
        self.assertEqual(self.look(port, "/", cookie.split("=")[1])[0], 401)
        for path in ("/", "/api/jobs", "/status"):
            self.assertEqual(self.request(port, path, {**form, "Cookie": cookie}, "password=x")[0].status, 405)

    def test_people_look_at_the_page_with_a_password(self):
        token = self.token_file()
        daemon, port, read_token = self.serve(token)
        self.assertRegex(read_token, "^[0-9a-f]{32}$")
        for path in ("/", "/metrics", "/status", "/api/jobs"):
            self.assertEqual(self.look(port, path)[0], 401)
            self.assertEqual(self.look(port, path, "guess")[0], 401)
            self.assertEqual(self.look(port, path, read_token)[0], 200)
            self.assertEqual(self.look(port, path, _TOKEN)[0], 200)
        # A page that is not there, or not yet, is behind the password too.
        for path in ("/api/job?run=none", "/api/logs?run=none", "/healthz/", "/page.js", "/new"):
            self.assertEqual(self.look(port, path)[0], 401)
            self.assertNotEqual(self.look(port, path, read_token)[0], 401)
        self.assertEqual(self.look(port, "/healthz")[0], 200)
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self.addCleanup(plain.close)
        plain.request("GET", "/healthz")
        answer = plain.getresponse()
        self.assertEqual(answer.status, 400)
        self.assertIn(b"https://", answer.read())
        # The read token lets nobody join.
        stranger = self.start(CONVENE, "run", "--nnodes", 1, "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job", "--rdzv-conf", "is_host=0",
                              "--join-token-file", self.token_file(read_token, "read"), "--no-python", "true", log="stranger")
        self.assertIn("needs the join token", self.finish(stranger, 30, 64))
        self.assertIn("did not come with one", self.output(daemon))
        self.assertNotIn(_TOKEN, self.output(daemon))

    def test_a_process_that_has_the_token_leaves_no_core_file_and_its_workers_may(self):
        token = self.token_file()
        endpoint = f"127.0.0.1:{free_port()}"
        words = ("--rdzv-endpoint", endpoint, "--rdzv-id", "job", "--no-python", "sh", "-c",
                 'ulimit -S -c > "$DIRECTORY/half"; mv "$DIRECTORY/half" "$DIRECTORY/limit"; until [ -e "$DIRECTORY/done" ]; do sleep 0.05; done')
        for name, lock, variables in (("file", ("--join-token-file", token), {}), ("variable", (), {"CONVENE_JOIN_TOKEN": _TOKEN}), ("open", (), {})):
            with self.subTest(name):
                node = self.start(CONVENE, "run", "--nnodes", 1, *lock, *words, limit="-S -c 4000", log="node." + name, DIRECTORY=self.path(""),
                                  **variables)
                limit = wait_until(lambda: os.path.exists(self.path("limit")) and self.read("limit"), 30, "a worker's limit")
                self.assertIn(limit.strip(), ("4000", "8000"))  # bash counts in KiB, and dash in halves.
                is_open = name == "open"
                self.assertEqual(core_limit(node.pid), 4000 * 1024 if is_open else 1)
                with open(self.path("done"), "w", encoding="ascii"):
                    pass
                self.finish(node, 30)
                for left in ("limit", "done"):
                    os.remove(self.path(left))
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", "0", "--join-token-file", token, limit="-S -c 4000")
        wait_until(lambda: "serving the rendezvous" in self.output(daemon), 20, "the daemon")
        self.assertEqual(core_limit(daemon.pid), 1)

    def test_a_file_that_cannot_hold_a_token_is_refused_before_anything_starts(self):
        token = self.token_file()
        os.chmod(token, 0o644)
        for name, word in ((token, "chmod 600"), (self.token_file("short", "short"), "openssl rand"), (self.path("none"), "none")):
            run = self.start(CONVENE, "run", "--standalone", "--join-token-file", name, "--no-python", "true", log="refused")
            text = self.finish(run, 10, 64)
            self.assertIn(word, text)
            self.assertIn("--join-token-file", text)

    def test_openssl_finds_no_older_protocol_and_no_session_to_take_up(self):
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", "0", "--join-token-file", self.token_file())
        told = wait_until(lambda: re.search(r"127\.0\.0\.1:(\d+)", self.output(daemon)), 20, "the port")
        place = f"127.0.0.1:{told.group(1)}"
        for version, code in (("-tls1_3", 0), ("-tls1_2", 1)):
            done = subprocess.run(["openssl", "s_client", "-connect", place, version], stdin=subprocess.DEVNULL, capture_output=True, check=False,
                                  text=True, timeout=30)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            self.assertNotIn("TLS session ticket:", done.stdout)


if __name__ == "__main__":
    unittest.main()
