"""Hosts with a real sshd each: Debian's openssh-server in network namespaces, with keys of its own and nobody's configuration."""

import os
import shutil
import signal
import subprocess

from tests.support.convene_testing import wait_until
from tests.support.network_namespaces import Network, NoNamespaces

_SSHD = "/usr/sbin/sshd"


class NoSshd(Exception):
    """This machine cannot run sshd in namespaces; the text says why."""


class SshHosts:
    """`login`, from which `ssh -F config` reaches each of `hosts` by its address, as root and without a question."""

    def __init__(self, test, count):
        """Everything ends with the test."""
        for program in (_SSHD, "ssh", "ssh-keygen", "unshare"):
            if shutil.which(program) is None:
                raise NoSshd(f"no {program} here: Debian's packages openssh-server and openssh-client have it")
        self._test = test
        self.network = Network()
        test.addCleanup(self.network.close)
        try:
            self.login = self.network.host("l")
            self.hosts = [self.network.host(f"n{i}") for i in range(count)]
        except NoNamespaces as reason:
            raise NoSshd(f"no network namespaces: {reason}") from reason
        self._folder = test.path("ssh")
        os.mkdir(self._folder)
        for key in ("host_key", "user_key", "stranger_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self._path(key)], check=True)
        shutil.copy(self._path("user_key.pub"), self._path("authorized_keys"))
        with open(self._path("host_key.pub"), encoding="ascii") as key:
            words = key.read().split()
        self._write("known_hosts", f"* {words[0]} {words[1]}\n")
        self._write("nobody_known", "")
        self._write("sshd_config", "\n".join([
            f"HostKey {self._path('host_key')}", f"AuthorizedKeysFile {self._path('authorized_keys')}", "PidFile none", "UsePAM no",
            "StrictModes no", "PermitRootLogin yes", "PasswordAuthentication no", "KbdInteractiveAuthentication no", ""]))
        self.config = self.write_config("ssh_config", "user_key", "known_hosts")
        os.makedirs("/run/sshd", exist_ok=True)
        for host in self.hosts:
            self._serve(host)

    def _path(self, name):
        return os.path.join(self._folder, name)

    def _write(self, name, text):
        with open(self._path(name), "w", encoding="ascii") as out:
            out.write(text)

    def write_config(self, name, key, known_hosts):
        """A configuration of ssh with another key of ours, or another file of known hosts; returns its path."""
        self._write(name, "\n".join([
            "User root", f"IdentityFile {self._path(key)}", "IdentitiesOnly yes", "IdentityAgent none",
            f"UserKnownHostsFile {self._path(known_hosts)}", "GlobalKnownHostsFile none", "StrictHostKeyChecking yes", "LogLevel INFO", ""]))
        return self._path(name)

    def _serve(self, host):
        with open(self._path(f"sshd.{host.name}"), "wb") as log:
            host.sshd = subprocess.Popen(
                [*host.prefix, "unshare", "-m", "-u", "sh", "-c", 'hostname "$1"; exec "$2" -D -e -f "$3"', "sh", host.name, _SSHD,
                 self._path("sshd_config")], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._test.addCleanup(host.sshd.wait)
        self._test.addCleanup(self._empty, host)
        wait_until(lambda: self._answers(host), 10, f"sshd of {host.name}")

    def _empty(self, host):
        """Sessions of sshd outlive it, and would wait for ever for a peer whose network is gone."""
        for pid in (*self.left_on(host), host.sshd.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _answers(self, host):
        probe = 'import socket; socket.create_connection(("127.0.0.1", 22), 1)'
        done = subprocess.run([*host.prefix, "python3", "-c", probe], stderr=subprocess.DEVNULL, check=False)
        return done.returncode == 0

    def left_on(self, host):
        """Processes of the host beside its sshd: what a launch has left there."""
        listed = subprocess.run(["ip", "netns", "pids", host.namespace], capture_output=True, text=True, check=False).stdout
        left = {}
        for pid in map(int, listed.split()):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as line:
                    left[pid] = line.read().replace(b"\0", b" ").decode(errors="replace")
            except FileNotFoundError:
                continue
        left.pop(host.sshd.pid, None)
        return left
