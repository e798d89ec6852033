"""Faults of torchrun's rendezvous, tried with ours on several nodes: clocks, waiting, the first node, nodes that wake up late (../WEAKNESSES.md)."""

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time
import unittest

from tests.support.convene_testing import CONVENE, CONVENED, ConveneTestCase, find_program, wait_until, whole_lines

MOVED_WALL_CLOCK = "tests/e2e/libmoved_wall_clock.so"

# The worker writes where it has begun, and works until the file $DONE exists.
_WORKER = """
echo "$CONVENE_EPOCH $RANK $$ $MASTER_PORT" >> "$STARTS"
until [ -e "$DONE" ]; do sleep 0.05; done
"""


def process_is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def add_to_store(port, amount):
    """The answer to ADD of the key "count", asked as a PyTorch client asks."""
    with socket.create_connection(("127.0.0.1", port), 20) as store:
        store.sendall(struct.pack("=BI", 0, 0x3C85F7CE) + struct.pack("=BQ5sq", 4, 5, b"count", amount))
        return struct.unpack("=q", store.recv(8, socket.MSG_WAITALL))[0]


class BreakableWay:
    """A proxy of `endpoint` whose connections can be reset at both ends, as by a firewall that has forgotten them."""

    def __init__(self, endpoint):
        host, port = endpoint.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def _carry(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # Reset.

    def reset(self):
        for end in self._ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RD)  # Wakes the thread that reads: the kernel resets at the last close.
            end.close()
        self._ends.clear()

    def close(self):
        self._listener.close()
        self.reset()


class RendezvousTest(ConveneTestCase):

    def start_daemon(self, **environment):
        self.daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", 0, log="daemon.log", **environment)
        told = wait_until(lambda: re.search(r"serving.*127\.0\.0\.1:(\d+)", self.output(self.daemon)), 20, "the daemon's address")
        self.endpoint = f"127.0.0.1:{told.group(1)}"

    def start_agent(self, node_rank, *command, nnodes="2", lease_s=15, **environment):
        return self.start(
            CONVENE, "run", "--nnodes", nnodes, "--rdzv-endpoint", self.endpoint, "--rdzv-id", "job", "--node-rank", node_rank,
            "--rdzv-conf", f"keep_alive_interval={lease_s / 3},keep_alive_max_attempt=3", "--no-python",
            *(command or ("sh", "-c", _WORKER)), log=f"agent{node_rank}.log", STARTS=self.path("starts"), DONE=self.path("done"),
            **environment)

    def worker_starts(self):
        """[epoch, rank, pid, store's port] of each start of a worker."""
        return [list(map(int, line.split())) for line in whole_lines(self.path("starts"))]

    def wait_for_workers(self, count, why="workers", above=0):
        """The starts of the latest epoch, once that is an epoch above `above` and has `count` of them."""
        def latest():
            starts = [start for start in self.worker_starts() if start[0] > above]
            newest = [start for start in starts if start[0] == max(start[0] for start in starts)]
            return newest if len(newest) == count else None
        return wait_until(latest, 30, why)

    def end_work(self, *agents):
        with open(self.path("done"), "w", encoding="utf-8"):
            pass
        for agent in agents:
            self.finish(agent, 30)
        self.daemon.send_signal(signal.SIGTERM)
        self.daemon.wait(20)
        self.assert_nothing_left()

    def clock_of(self, who):
        """Environment of a program whose wall clock set_clock moves."""
        return {"LD_PRELOAD": find_program(MOVED_WALL_CLOCK), "MOVED_WALL_CLOCK": self.path(f"clock.{who}")}

    def set_clock(self, who, error_s):
        os.symlink(str(error_s), self.path(f"clock.{who}"))
        told = subprocess.run(["date", "+%s"], env={**os.environ, **self.clock_of(who)}, check=True, capture_output=True, text=True)
        self.assertAlmostEqual(int(told.stdout) - time.time(), error_s, delta=60)

    def test_a_wall_clock_that_is_set_on_any_machine_costs_no_node_its_lease(self):
        self.start_daemon(**self.clock_of("daemon"))
        agents = [self.start_agent(rank, lease_s=1.5, **self.clock_of(rank)) for rank in (0, 1)]
        starts = self.wait_for_workers(2)
        for who, error_s in ((0, -3600), (1, 3600), ("daemon", -3600)):
            self.set_clock(who, error_s)
            leases_later = time.monotonic() + 3
            wait_until(lambda: time.monotonic() > leases_later, 10, "two leases")
        self.assertEqual(self.worker_starts(), starts)
        self.end_work(*agents)
        self.assertNotIn("is lost", self.output(self.daemon))

    def test_nobody_is_waited_for_that_nobody_expects(self):
        self.start_daemon()
        begin = time.monotonic()
        self.finish(self.start_agent(0, "true", nnodes="1:2"), 20)
        self.assertLess(time.monotonic() - begin, 10)  # torchrun: 30 s. The figure stands in RESULTS.md.

    def test_a_node_whose_workers_are_done_waits_for_the_others_and_serves_their_store(self):
        self.start_daemon()
        early = ("sh", "-c", '[ "$RANK" = 0 ] || { ' + _WORKER + "}")
        agents = [self.start_agent(rank, *early, lease_s=1.5) for rank in (0, 1)]
        (_, rank, _, port), = self.wait_for_workers(1)
        self.assertEqual(rank, 1)
        leases_later = time.monotonic() + 4
        wait_until(lambda: time.monotonic() > leases_later, 10, "more than two leases")
        self.assertEqual([add_to_store(port, 3), add_to_store(port, 4)], [3, 7])
        self.assertEqual([agent.poll() for agent in agents], [None, None])
        self.end_work(*agents)

    def test_the_node_with_the_store_dies_and_the_others_get_another_store(self):
        self.start_daemon()
        agents = [self.start_agent(rank, nnodes="1:3") for rank in (0, 1, 2)]
        before = self.wait_for_workers(3)
        self.assertEqual(add_to_store(before[0][3], 5), 5)
        first = f"epoch {before[0][0]}: node 0 of 3"
        dies, = [agent for agent in agents if first in self.output(agent)]
        agents.remove(dies)
        dies.kill()
        after = self.wait_for_workers(2, "workers of the two that are left", above=before[0][0])
        self.assertEqual(add_to_store(after[0][3], 6), 6)  # Nothing of the old one.
        self.end_work(*agents)

    def test_after_a_connection_reset_the_old_workers_live_no_longer_than_their_lease(self):
        self.start_daemon()
        way = BreakableWay(self.endpoint)
        self.addCleanup(way.close)
        agents = [self.start_agent(0, nnodes="1:2", lease_s=3)]
        self.endpoint = way.endpoint
        agents.append(self.start_agent(1, "sh", "-c", f"trap '' TERM; {_WORKER}", nnodes="1:2", lease_s=3))
        before = self.wait_for_workers(2)
        stubborn, = [pid for _, rank, pid, _ in before if rank == 1]
        way.reset()
        # The lease is 3 s, the grace of a stop 30 s.
        wait_until(lambda: process_is_gone(stubborn), 8, "the end of a worker that heeds no SIGTERM")
        self.wait_for_workers(2, "an epoch with both", above=before[0][0])
        self.end_work(*agents)

    def test_a_paused_agent_ends_its_old_workers_before_it_takes_part_again(self):
        self.start_daemon()
        agents = [self.start_agent(rank, nnodes="1:2", lease_s=3) for rank in (0, 1)]
        before = self.wait_for_workers(2)
        old = {rank: pid for _, rank, pid, _ in before}
        agents[1].send_signal(signal.SIGSTOP)
        alone = self.wait_for_workers(1, "an epoch without the paused node", above=before[0][0])
        self.assertFalse(process_is_gone(old[1]))  # It knows of nothing yet.
        agents[1].send_signal(signal.SIGCONT)
        again = self.wait_for_workers(2, "an epoch with both", above=alone[0][0])
        self.assertTrue(process_is_gone(old[1]))
        self.assertEqual(len({port for _, _, _, port in before + alone + again}), 3)  # A store for each epoch.
        self.end_work(*agents)


if __name__ == "__main__":
    unittest.main()
