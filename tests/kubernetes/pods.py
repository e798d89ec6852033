"""Pods without a cluster: each is a network namespace with its own address, and in it pid 1 of a pid namespace, under a host name and with an
/etc/hosts of its own, with the variables that a kubelet gives. The name service is that file too: a name that is not published is unknown at
once, as a cluster's DNS answers, and every change is seen by the next look-up."""

import os
import signal
import subprocess

from tests.support.convene_testing import CONVENE, ConveneTestCase, wait_until
from tests.support.network_namespaces import Network, NoNamespaces

DOMAIN = "train.lab.svc.cluster.local"
# Runs as pid 1, then becomes the program. The arguments: host name, hosts file, nsswitch file, program...
_BECOME_POD = 'hostname "$1" && mount --bind "$2" /etc/hosts && mount --bind "$3" /etc/nsswitch.conf && shift 3 && exec "$@"'
_CONTAINER = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]


class Pod:
    """A place for a container. `publish` and `hide` are what the endpoints controller does; `move` is a new pod of the same name."""

    def __init__(self, cluster, name):
        self.cluster = cluster
        self.name = name
        self.host = cluster.network.host(f"p{len(cluster.pods)}")
        self.hosts_file = cluster.test.path(f"hosts.{self.host.name}")
        self.process = None

    def prefix(self):
        files = [self.hosts_file, self.cluster.nsswitch]
        return [*self.host.prefix, *_CONTAINER, "sh", "-c", _BECOME_POD, "sh", self.name, *files]

    def own_line(self):
        return f"{self.host.address}\t{self.name}.{DOMAIN}\t{self.name}\n"

    def publish(self):
        self.cluster.published.append((self.name, self.host.address))
        self.cluster.write_hosts()

    def hide(self):
        self.cluster.published = [entry for entry in self.cluster.published if entry[1] != self.host.address]
        self.cluster.write_hosts()

    def move(self):
        self.hide()
        self.cluster.network.change_address(self.host)
        self.cluster.write_hosts()

    def pid(self):
        """The container's pid 1, as this machine counts."""
        unshare = self.process.pid
        with open(f"/proc/{unshare}/task/{unshare}/children", encoding="ascii") as children:
            found = children.read().split()
        return int(found[0]) if found else None

    def send(self, number):
        """As a kubelet does: to pid 1, from outside of its pid namespace."""
        os.kill(wait_until(self.pid, 5, f"pid 1 of {self.name}"), number)

    def evict(self, grace_s, expected_code=128 + signal.SIGTERM):
        """TERM; KILL when the grace is over. Returns the output."""
        self.send(signal.SIGTERM)
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
        return self.cluster.test.finish(self.process, 5, expected_code)

    def log(self):
        return self.cluster.test.output(self.process)


class Cluster:
    def __init__(self, test):
        self.test = test
        self.network = Network()
        test.addCleanup(self.network.close)
        self.pods = []
        self.published = []  # (name, address)
        self.nsswitch = test.path("nsswitch.conf")
        with open(self.nsswitch, "w", encoding="ascii") as file:
            file.write("hosts: files\npasswd: files\ngroup: files\n")

    def pod(self, name):
        pod = Pod(self, name)
        self.pods.append(pod)
        self.write_hosts()
        return pod

    def write_hosts(self):
        """In place, since the files are mounted."""
        names = "".join(f"{address}\t{name}.{DOMAIN} {name}.train\n" for name, address in self.published)
        for pod in self.pods:
            with open(pod.hosts_file, "w", encoding="ascii") as file:
                file.write("127.0.0.1\tlocalhost\n" + pod.own_line() + names)


class PodsTestCase(ConveneTestCase):
    """A cluster, and pods `llama-0`, `llama-1`, ... of an Indexed Job."""

    def setUp(self):
        super().setUp()
        probe = subprocess.run([*_CONTAINER, "true"], capture_output=True, text=True, check=False)
        if probe.returncode != 0:
            self.skipTest(f"no namespaces: {probe.stderr.strip()}")
        self.cluster = Cluster(self)
        self.starts = 0

    def pod(self, name):
        try:
            return self.cluster.pod(name)
        except NoNamespaces as reason:
            self.skipTest(f"no network namespaces: {reason}")

    def run_in(self, pod, *arguments, index=None, **environment):
        """Starts `convene run` as the container's command."""
        self.starts += 1
        if index is not None:
            environment["JOB_COMPLETION_INDEX"] = str(index)
        services = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_PORT": "tcp://10.96.0.1:443", "CONVENE_PORT": "tcp://10.96.0.2:80",
                    "PET_MASTER_PORT": "tcp://10.96.0.3:80", "MASTER_PORT": "tcp://10.96.0.4:80"}
        pod.process = self.start(
            CONVENE, "run", *arguments, prefix=pod.prefix(), log=f"{self.starts}.{pod.name}.log", **{**services, **environment})
        return pod.process

    def start_agents(self, pods, *arguments, **environment):
        for index, pod in enumerate(pods):
            self.run_in(pod, "--nnodes", len(pods), *arguments, index=index, **environment)
            pod.publish()
