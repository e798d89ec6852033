"""A job in a broken network: cables pulled without a word, packets lost in one direction, a daemon out of reach.

Each test has hosts of its own (tests/support/network_namespaces.py), a daemon on one and agents on others. The workers append a line with
their epoch to one file, many times a second, and do not heed SIGTERM: the order of the lines proves that never two epochs are alive.
"""

import collections
import os
import signal
import subprocess
import time

from tests.support import side_by_side
from tests.support.convene_testing import CONVENE, CONVENED, ConveneTestCase, find_program, free_port, wait_until, whole_lines
from tests.support.network_namespaces import Network, NoNamespaces

LEASE_S = 2.0
Line = collections.namedtuple("Line", "epoch node restarts store")
# One line after the other, while it runs.
_WORKER = """
trap '' TERM
until [ -e "$DONE" ]; do echo "$CONVENE_EPOCH $NODE $TORCHELASTIC_RESTART_COUNT $MASTER_ADDR" >> "$LINES"; sleep 0.02; done
"""


class NetworkTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        self.network = Network()
        self.addCleanup(self.network.close)
        try:
            self.daemon_host = self.network.host("d")
            self.hosts = [self.network.host(f"n{i}") for i in range(3)]
        except NoNamespaces as reason:
            self.skipTest(f"no network namespaces: {reason}")
        self.daemon = None
        self.agents = {}
        self.lease_s = LEASE_S
        self.port = free_port()  # the hosts share /dev/shm, where a daemon's mark tells its port

    def start_daemon(self, journal=True):
        arguments = ["--state-dir", self.path("state")] if journal else []
        self.daemon = self.start(CONVENED, "--port", self.port, *arguments, log="daemon.log", prefix=self.daemon_host.prefix)
        wait_until(lambda: "serving" in self.output(self.daemon), 20, "the daemon")

    def start_agent(self, number, program=_WORKER):
        host = self.hosts[number]
        self.agents[number] = self.start(
            CONVENE, "run", "--nnodes", 2, "--spares", 1, "--nproc-per-node", 1, "--max-restarts", 0, "--rdzv-endpoint",
            f"{self.daemon_host.address}:{self.port}", "--rdzv-id", "job", "--node-rank", number, "--admission-delay", 0.2,
            "--stop-grace", "abort=0.2,checkpoint=0.2",
            "--rdzv-conf", f"keep_alive_interval={self.lease_s / 3},keep_alive_max_attempt=3,join_timeout=60",
            "--no-python", "sh", "-c", program,
            log=f"agent{number}.log", prefix=host.prefix, LINES=self.path("lines"), DONE=self.path("done"), NODE=str(number))

    def start_job(self, agents=3, journal=True):
        """Members are the nodes 0 and 1."""
        self.start_daemon(journal)
        for number in range(2):
            self.start_agent(number)
        self.wait_for_epoch(1, {0, 1})
        for number in range(2, agents):
            self.start_agent(number)
            self.wait_for_node(number)

    def agent_log(self, number):
        return self.output(self.agents[number])

    def lines(self):
        """The workers' lines, in the order of writing."""
        words = [line.split() for line in whole_lines(self.path("lines"))]
        return [Line(int(epoch), int(node), int(restarts), store) for epoch, node, restarts, store in words]

    def wait_for_epoch(self, epoch, nodes, timeout_s=15):
        """Waits until all of `nodes`, and no others, write in an epoch not below `epoch`; returns that epoch."""
        def reached():
            by_epoch = {}
            for line in self.lines()[-200:]:
                by_epoch.setdefault(line.epoch, set()).add(line.node)
            return next((e for e, seen in by_epoch.items() if e >= epoch and seen == nodes), None)
        try:
            return wait_until(reached, timeout_s, f"epoch {epoch} of {nodes}")
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.all_logs()}") from None

    def all_logs(self):
        logs = [*(self.output(d) for d in [self.daemon] if d is not None), *map(self.output, self.agents.values())]
        return "\n----\n".join(log[-3000:] for log in logs)

    def seconds_until(self, condition, timeout_s, what):
        start = time.monotonic()
        wait_until(condition, timeout_s, what)
        return time.monotonic() - start

    def check_lines(self):
        """No line of an epoch after the first one of a later epoch, and no restart counted."""
        lines = self.lines()
        epochs = [line.epoch for line in lines]
        self.assertTrue(epochs == sorted(epochs), [(line.epoch, line.node) for line in lines])
        self.assertEqual({line.restarts for line in lines}, {0})

    def end_job(self, is_fenced=True):
        with open(self.path("done"), "w", encoding="utf-8"):
            pass
        for agent in self.agents.values():
            self.finish(agent, 20)
        if is_fenced:
            self.check_lines()

    def stops(self, number):
        """How often the agent has stopped its workers."""
        return self.agent_log(number).count("stopping the workers")

    def test_a_node_cut_off_silently_is_replaced_and_comes_back(self):
        self.start_job()
        self.network.cut(self.hosts[1])
        self.check_lost(1)
        self.wait_for_epoch(2, {0, 2})
        self.network.mend(self.hosts[1])
        self.wait_for_node(1)
        self.network.cut(self.hosts[2])
        self.wait_for_epoch(3, {0, 1})
        self.network.mend(self.hosts[2])
        self.end_job()

    def check_lost(self, number):
        """The first survivor is told in time, and the agent that was cut off knows it as soon."""
        told = self.seconds_until(lambda: self.stops(0) > 0, LEASE_S + 5, "the survivor is told")
        print(f"{self.id().rsplit('.', 1)[1]}: survivor told after {told:.2f} s of a lease of {LEASE_S:g} s", flush=True)
        self.assertLess(told, LEASE_S + 1)
        # The daemon's line may come a moment after the stop that it sent.
        self.seconds_until(lambda: "silent for its lease" in self.output(self.daemon), 2, "the daemon says why")
        self.assertGreater(self.stops(number), 0)

    def wait_for_node(self, number):
        """Until the daemon has a node again that it had lost."""
        wait_until(lambda: f'"node_rank":{number}' in self.status(), 10, f"node {number} is back")

    def status(self):
        done = subprocess.run(
            [*self.daemon_host.prefix, find_program(CONVENE), "status", "job", "--json", "--endpoint", f"127.0.0.1:{self.port}"],
            capture_output=True, text=True, check=False, timeout=10)
        return done.stdout

    def test_without_a_journal_too_and_with_the_interface_down(self):
        self.start_job(journal=False)
        self.hosts[1].interface_down()
        self.check_lost(1)
        self.wait_for_epoch(2, {0, 2})
        self.hosts[1].interface_up()
        self.wait_for_node(1)
        self.end_job()

    def test_a_daemon_out_of_reach_for_a_quarter_of_the_lease_stops_nobody(self):
        self.lease_s = 4
        self.start_job(agents=2)
        for _ in range(2):
            self.network.cut(self.daemon_host)
            self.run_for(1)
            self.network.mend(self.daemon_host)
            self.run_for(1)
        self.assertEqual([self.stops(0), self.stops(1)], [0, 0], self.all_logs())
        self.end_job()
        self.assertEqual({line.epoch for line in self.lines()}, {1})

    def run_for(self, seconds):
        end = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() > end, seconds + 5, "time")

    def test_a_daemon_out_of_reach_for_longer_stops_all_and_they_go_on_later(self):
        self.start_job(agents=2)
        self.network.cut(self.daemon_host)
        for number in range(2):
            wait_until(lambda n=number: self.stops(n) > 0, LEASE_S + 2, "an agent stops its workers")
        self.network.mend(self.daemon_host)
        self.wait_for_epoch(2, {0, 1})
        self.end_job()

    def test_a_node_that_is_not_heard_but_hears(self):
        self.start_job()
        self.network.cut_one_way(self.hosts[1], self.daemon_host)
        self.check_lost(1)
        self.wait_for_epoch(2, {0, 2})
        self.network.mend(self.hosts[1])
        self.wait_for_node(1)
        self.end_job()

    def test_a_node_that_is_heard_but_hears_nothing(self):
        self.start_job()
        self.network.cut_one_way(self.daemon_host, self.hosts[1])
        self.wait_for_epoch(2, {0, 2}, timeout_s=4 * LEASE_S)
        self.network.mend(self.hosts[1])
        self.wait_for_node(1)
        self.end_job()

    def test_an_agent_that_was_paused_beyond_its_lease_stops_its_workers_when_it_wakes_up(self):
        self.start_job()
        self.agents[1].send_signal(signal.SIGSTOP)
        self.wait_for_epoch(2, {0, 2})
        self.agents[1].send_signal(signal.SIGCONT)
        wait_until(lambda: self.stops(1) > 0, 1, "the agent stops its workers")
        self.wait_for_node(1)
        seen = len(self.lines())
        self.wait_for_epoch(2, {0, 2})
        self.assertNotIn(1, {line.epoch for line in self.lines()[seen:]})
        self.end_job(is_fenced=False)  # Nobody was awake to stop them.

    def test_a_bad_line_makes_no_node_lost(self):
        self.lease_s = 10
        self.network.disturb(loss=0.3, delay_s=0.1)
        self.start_daemon()
        for number in range(2):
            self.start_agent(number)
        self.wait_for_epoch(1, {0, 1}, timeout_s=45)  # One try in two gets through within its 2 s.
        self.run_for(5)
        self.assertEqual([self.stops(0), self.stops(1)], [0, 0], self.all_logs())
        self.network.disturb()
        self.end_job()
        self.assertEqual({line.epoch for line in self.lines()}, {1})

    def test_a_path_that_swallows_long_packets_lets_a_failure_through(self):
        self.network.disturb(longest=1300)
        self.start_daemon()
        for number in range(2):
            self.start_agent(number, program='for i in $(seq 20); do printf "%0200d\\n" $i >&2; done; [ $NODE = 0 ] || exit 3; sleep 60')
        for agent in self.agents.values():
            self.assertIn("rank 1 (local rank 0", self.finish(agent, 10, expected_code=1))

    def test_a_node_whose_address_changes_comes_back_under_the_new_one(self):
        self.start_job(agents=2)
        self.network.change_address(self.hosts[0])
        epoch = self.wait_for_epoch(2, {0, 1})
        stores = {line.store for line in self.lines() if line.epoch == epoch}
        self.assertEqual(stores, {self.hosts[0].address})
        self.end_job()

    def start_by_name(self, number, names, name):
        """Node `number` of two that meet at the host name `first`, on a host called `name` whose /etc/hosts has the lines `names`."""
        path = self.path(f"hosts.{name}")
        with open(path, "w", encoding="ascii") as hosts:
            hosts.write("127.0.0.1 localhost\n" + names)
        as_host = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
        prefix = [*self.hosts[number].prefix, "unshare", "--mount", "--uts", "sh", "-c", as_host, "sh", name, path]
        worker = ("import os, socket; host = os.environ['MASTER_ADDR']; print('store', host); "
                  "socket.create_connection((host, int(os.environ['MASTER_PORT'])), 5)")
        return self.start(CONVENE, "run", "--nnodes", 2, "--rdzv-endpoint", f"first:{self.port}", "--no-python", "python3", "-c", worker,
                          prefix=prefix)

    def test_a_host_that_knows_itself_by_a_loopback_address_serves_the_others(self):
        # As Debian's installer writes /etc/hosts.
        nodes = [self.start_by_name(0, "127.0.1.1 first\n", "first"),
                 self.start_by_name(1, f"127.0.1.1 second\n{self.hosts[0].address} first\n", "second")]
        for node in nodes:
            text = self.finish(node, 20)
            self.assertIn(f"store {self.hosts[0].address}", text)
            self.assertNotIn("warning", text)
        self.assertIn(f"first is 127.0.1.1 on this machine itself, by /etc/hosts: others are told {self.hosts[0].address}",
                      self.output(nodes[0]))

    def test_a_name_of_another_host_that_leads_to_this_one_is_told_at_once(self):
        node = self.start_by_name(1, "127.0.1.1 first\n", "second")
        wait_until(lambda: "(first is 127.0.1.1 on this machine): only nodes on this machine can meet there" in self.output(node), 5,
                   "the warning")
        node.terminate()
        self.finish(node, 10, 128 + signal.SIGTERM)

    # ---- the node that hosts the rendezvous leaves, and the others are on other machines ----

    def start_hosted(self, number, nodes, machine=None, last_call_s=0.1):
        """An agent of a run that meets on the first machine, where one of its own agents serves the rendezvous."""
        host = self.hosts[number if machine is None else machine]
        self.agents[number] = self.start(
            CONVENE, "run", "--nnodes", nodes, "--nproc-per-node", 1, "--rdzv-endpoint", f"{self.hosts[0].address}:{self.port}", "--rdzv-id",
            "job", "--node-rank", number, "--admission-delay", 0.2, "--stop-grace", "signal=0.2,abort=0.2,checkpoint=0.2", "--rdzv-conf",
            f"keep_alive_interval={self.lease_s / 3},keep_alive_max_attempt=3,join_timeout=60,last_call_timeout={last_call_s}", "--no-python", "sh",
            "-c", _WORKER, log=f"agent{number}.{time.monotonic()}.log", prefix=host.prefix, LINES=self.path("lines"), DONE=self.path("done"),
            NODE=str(number))
        if number == 0:
            wait_until(lambda: "hosting the rendezvous" in self.agent_log(0), 20, "the host")

    def leave_hosting(self):
        self.agents[0].send_signal(signal.SIGTERM)
        self.finish(self.agents.pop(0), 20, 128 + signal.SIGTERM)

    def starts(self, number):
        """How often the agent has started workers."""
        return self.agent_log(number).count(" start here (")

    def check_host_leaves(self, nodes, survivors):
        """They stop once, begin nothing without a rendezvous, say what they wait for, and go on with the next host."""
        self.lease_s = 4
        for number in (0, *survivors):
            self.start_hosted(number, nodes)
        epoch = self.wait_for_epoch(1, {0, *survivors})
        starts = [self.starts(number) for number in survivors]
        self.leave_hosting()
        for number in survivors:
            word = f"waiting for a rendezvous at {self.hosts[0].address}:{self.port}"
            wait_until(lambda n=number: word in self.agent_log(n), 20, lambda: "what a survivor waits for:\n" + self.all_logs())
        self.assertEqual([self.starts(number) for number in survivors], starts, self.all_logs())
        # The survivors dial up to a second apart: all of them are called, so that none has to be let in by another stop.
        self.start_hosted(0, nodes, last_call_s=5)
        self.wait_for_epoch(epoch + 1, {0, *survivors}, timeout_s=30)
        # Each of their starts was followed by one stop, and the last one still runs.
        self.assertEqual([self.stops(number) for number in survivors], starts, self.all_logs())
        self.end_job(is_fenced=False)  # The next host may begin alone.

    def test_a_survivor_waits_for_the_next_host_and_begins_nothing_before(self):
        self.check_host_leaves("1:2", [1])

    def test_two_survivors_wait_for_the_next_host_though_they_are_enough(self):
        self.check_host_leaves("2:4", [1, 2])

    def test_a_survivor_elsewhere_restarts_once_where_another_agent_of_the_endpoint_s_machine_may_host(self):
        for number, machine in ((0, 0), (1, 1), (2, 0)):
            self.start_hosted(number, "1:3", machine)
        epoch = self.wait_for_epoch(1, {0, 1, 2})
        starts = self.starts(1)
        self.leave_hosting()
        self.assertEqual(self.wait_for_epoch(epoch + 1, {1, 2}), epoch + 1)
        wait_until(lambda: "the rendezvous answers again" in self.agent_log(1), 20, "the survivor at the next host")
        self.end_job()
        self.assertEqual((self.starts(1), {line.epoch for line in self.lines() if line.epoch > epoch}), (starts + 1, {epoch + 1}))


if __name__ == "__main__":
    side_by_side.main(at_once=3)
