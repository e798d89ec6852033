"""A daemon for the page alone: it serves the page of a real one, and a made-up job of any size."""

import http.server
import json
import math
import threading
import time


def fake_job(nodes, workers, step, run="llama-70b", now=None):
    """The answer of /api/job about a job that tells all there is (rendezvous/web/page_json.h)."""
    now = time.time() if now is None else now
    begin = now - 3600
    curve = []
    for i in range(400):
        at = i / 399
        dip = 0.35 if 0.6 < at < 0.63 else 1
        curve.append([int(begin + 3600 * at), int(step * at), round(1.7 + 6 * math.exp(-5 * at) + 0.05 * math.sin(i * 1.7), 4),
                      round(dip * (410e3 + 6e3 * math.sin(i / 3)), 1), round(dip * (3.2 + 0.05 * math.sin(i / 3)), 4)])
    events = [[1, int(begin * 1e6), "node", f"all {nodes} nodes are there", 0], [2, int((begin + 20) * 1e6), "epoch", "epoch 1 begins", 1],
              [3, int((begin + 2170) * 1e6), "failure", f"rank 5 on node{5 // workers:04}: killed by SIGKILL", 1],
              [4, int((begin + 2200) * 1e6), "epoch", f"epoch 2 begins with {nodes} nodes", 2],
              [5, int((begin + 3300) * 1e6), "straggler", "rank 3 takes 31 % longer than the others", 2]]
    node_rows = [[f"node{i:04}.cluster.example", str(2**63 + i), i, "running", "", workers, i * workers, 0, step, 3.2, "step"] for i in range(nodes)]
    rank_rows = []
    for rank in range(nodes * workers):
        compute = 312 if rank == 3 else 236 + (rank * 7919 + step) % 9
        rank_rows.append([rank // workers, rank, step, 3.2, "step", compute, 312 - compute, 1.2, 0.4, 1.7, 410e3 / (nodes * workers),
                          61 << 30, (64 << 30) + ((rank * 31) % 7 << 29)])
    return {"id": run, "phase": "running", "epoch": 2, "why": f"all {nodes} nodes are there", "nodes": [nodes, nodes, nodes, nodes],
            "restarts": [1, 5, 1], "sample": [step, 3.2, 1.7, 410e3], "mfu": 0.413, "goodput": 0.953, "stragglers": 1, "failure": events[2][3],
            "node_rows": node_rows, "rank_rows": rank_rows, "failures": [[1, events[2][3], 1430]], "events": events,
            "stragglers_now": [["rank", 3, "node0000.cluster.example", 0.31, "its compute takes 312 ms a step, the others' 240 ms", 300]],
            "incidents": [[1, 1, "kill", events[2][3], events[2][1]]], "curve": curve}


class FakeDaemon:
    """Serves `job`, which may be changed, at `url`. `page`: the text of the page; `policy`: its Content-Security-Policy.

    While `may_answer` is not set no question has an answer; while `knows_job` is false those for lines have 404.
    """

    def __init__(self, page, policy, job):
        self.job = job
        self.is_closed = False
        self.knows_job = True
        self.may_answer = threading.Event()
        self.may_answer.set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hangs = not outer.may_answer.is_set()
                outer.may_answer.wait()
                if hangs or outer.is_closed:  # a connection that was kept open ends with the daemon
                    self.close_connection = True
                    return
                code = 200
                if self.path.startswith("/api/jobs"):
                    body = json.dumps({"jobs": [outer.job]}, separators=(",", ":"))
                elif self.path.startswith("/api/job"):
                    body = json.dumps(outer.job, separators=(",", ":"))
                elif self.path.startswith("/api/logs") and not outer.knows_job:
                    code, body = 404, "this daemon knows no such job"
                elif self.path.startswith("/api/logs"):
                    body = json.dumps({"feed": 1, "next": 2, "skipped": 0, "lost": 0, "more": False, "over": "", "lines": outer.lines})
                else:
                    body = page
                self.send_response(code)
                self.send_header("Content-Type", "application/json" if self.path.startswith("/api/") else "text/html; charset=utf-8")
                self.send_header("Content-Security-Policy", policy)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_):
                pass

        self.lines = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self.is_closed = True
        self._server.shutdown()
        self._server.server_close()
