"""The cost of open pages of one large job for its daemon: 1,000 nodes of 8 ranks, each of which tells its times once a second, with and without 50 pages.

    bazel build //rendezvous/bench:join_bench; python3 tests/bench/pages_bench.py --join-bench PATH [--nodes 1000] [--pages 50] [--seconds 20]

The nodes are streams of rendezvous/bench/join_bench. A page is a thread with a connection of its own that asks as page/main.js does: the same path and
headers, the tag of the last answer, the same pause by the answer's length. Browsers do no more. The daemon's time is the kernel's, of its process alone.
"""

import argparse
import http.client
import os
import subprocess
import threading
import time

# As PAUSES in rendezvous/web/page/main.js.
_PAUSES = ((100e3, 1), (400e3, 2), (float("inf"), 5))


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Page(threading.Thread):

    def __init__(self, place, delay):
        super().__init__(daemon=True)
        self.place, self.delay = place, delay
        self.answers = self.bytes = self.unchanged = 0
        self.slowest = 0.0
        self.error = None

    def run(self):
        try:
            self.look()
        except Exception as error:  # told by main, which counts on every page
            self.error = error

    def look(self):
        time.sleep(self.delay)
        client = http.client.HTTPConnection(self.place, timeout=30)
        tag, pause = "", 1
        while True:
            begin = time.monotonic()
            client.request("GET", "/api/job?run=bench", headers={"Accept-Encoding": "gzip, deflate", **({"If-None-Match": tag} if tag else {})})
            answer = client.getresponse()
            text = answer.read()
            self.slowest = max(self.slowest, time.monotonic() - begin)
            if answer.status == 200:
                tag = answer.headers.get("ETag") or ""
                pause = next(seconds for size, seconds in _PAUSES if len(text) < size)
                self.answers += 1
                self.bytes = len(text)
            elif answer.status == 304:
                self.unchanged += 1
            else:
                raise RuntimeError(f"the daemon answers {answer.status}: {text[:200]}")
            time.sleep(pause)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--join-bench", required=True)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    limit = 3 * options.seconds + 30
    job = subprocess.Popen([options.join_bench, "--serve-for", str(limit), str(options.nodes)], stdout=subprocess.PIPE, text=True)
    try:
        _, pid, place = job.stdout.readline().split()
        time.sleep(5)

        def load():
            begin, used = time.monotonic(), processor_seconds(pid)
            time.sleep(options.seconds)
            return 100 * (processor_seconds(pid) - used) / (time.monotonic() - begin)

        alone = load()
        pages = [Page(place, 5 * number / options.pages) for number in range(options.pages)]
        for page in pages:
            page.start()
        time.sleep(6)
        with_pages = load()
    finally:
        job.kill()
    for page in pages:
        if page.error or not page.answers:
            raise SystemExit(f"a page saw nothing: {page.error}")
    print(f"{options.nodes} nodes x 8 ranks, {options.pages} pages, {options.seconds} s each: the daemon takes {alone:.2f} % of a core without pages, "
          f"{with_pages:.2f} % with them: {with_pages - alone:.2f} % for the pages")
    print(f"{sum(page.answers for page in pages)} answers of {pages[0].bytes} bytes, {sum(page.unchanged for page in pages)} unchanged, "
          f"the slowest took {max(page.slowest for page in pages):.2f} s")


if __name__ == "__main__":
    main()
