"""From where the workers' key-value store takes clients: hosts are network namespaces."""

import subprocess
import sys
import unittest

from tests.support.convene_testing import CONVENE, ConveneTestCase, wait_until, whole_lines
from tests.support.network_namespaces import Network, NoNamespaces

# Asks HOST PORT once from each SOURCE: TCPStore's VALIDATE and PING, and the answer to the PING.
_ASK = """
import socket, struct, sys
host, port, *sources = sys.argv[1:]
for source in sources:
    try:
        client = socket.create_connection((host, int(port)), 10, (source, 0))
        client.sendall(struct.pack('=BIBI', 0, 0x3C85F7CE, 13, 7))
        print(source, 'served' if client.recv(4) == struct.pack('=I', 7) else 'closed')
    except OSError as error:
        print(source, error)
"""
# $ASK, then where the store is; it ends when $DONE is there.
_WORKER = """
"$PYTHON" -c "$ASK" "$MASTER_ADDR" "$MASTER_PORT" $SOURCES >> "$ANSWERS"
echo "$MASTER_ADDR $MASTER_PORT" >> "$STORES"
until [ -e "$DONE" ]; do sleep 0.05; done
"""
# Carries connections to HOST PORT, as a translation of addresses does: HOST sees SOURCE alone.
_TRANSLATE = """
import asyncio, sys
host, port, source = sys.argv[1:]
async def carry(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
async def connected(reader, writer):
    try:
        there = await asyncio.open_connection(host, port, local_addr=(source, 0))
    except OSError:
        return writer.close()
    await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))
async def main():
    server = await asyncio.start_server(connected, '0.0.0.0', int(port))
    print('ready', flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
_TOKEN = "Xz3Vq0k7sT1mN8bYw5Jr2aPh"


class StoreDoorTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        self.network = Network()
        self.addCleanup(self.network.close)
        try:
            self.hosts = [self.network.host("a"), self.network.host("b")]
            self.stranger = self.network.host("s")
        except NoNamespaces as reason:
            self.skipTest(f"no network namespaces: {reason}")
        self.second = self.network.add_address(self.hosts[1])

    def start_run(self, endpoint, *flags, first_sources=None, **environment):
        # 127.0.0.1 as a source of a way to another address of the same machine: the kernel sends it over loopback.
        self.sources = [first_sources or [self.hosts[0].address, "127.0.0.1"], [self.hosts[1].address, self.second]]
        self.nodes = [self.start(
            CONVENE, "run", "--nnodes", 2, "--rdzv-endpoint", endpoint, "--node-rank", rank,
            "--rdzv-conf", f"is_host={int(rank == 0)}", *flags, "--no-python", "sh", "-c", _WORKER,
            prefix=self.hosts[rank].prefix, log=f"node{rank}.log", ASK=_ASK, PYTHON=sys.executable, SOURCES=" ".join(self.sources[rank]),
            ANSWERS=self.path("answers"), STORES=self.path("stores"), DONE=self.path("done"), **environment) for rank in (0, 1)]
        wait_until(lambda: len(whole_lines(self.path("stores"))) == 2, 30,
                   lambda: f"two workers: {[self.output(node) for node in self.nodes]}")
        self.host, self.port = whole_lines(self.path("stores"))[0].split()

    def ask_as_stranger(self):
        done = subprocess.run([*self.stranger.prefix, sys.executable, "-c", _ASK, self.host, self.port, self.stranger.address],
                              capture_output=True, text=True, check=False, timeout=20)
        return done.stdout.split(" ", 1)[1]

    def end_run(self):
        with open(self.path("done"), "w", encoding="utf-8"):
            pass
        for node in self.nodes:
            self.finish(node, 20)
        self.assertEqual(sorted(whole_lines(self.path("answers"))),
                         sorted(f"{address} served" for address in self.sources[0] + self.sources[1]))

    def check_closed(self):
        self.assertNotIn("served", self.ask_as_stranger())
        wait_until(lambda: f"the store closes the connection of {self.stranger.address}:" in self.output(self.nodes[0]), 5, "the line")
        self.assertIn("--open-store", self.output(self.nodes[0]))

    def test_addresses_of_the_nodes_alone(self):
        self.start_run(f"{self.hosts[0].address}:29400")
        self.check_closed()
        self.end_run()

    def test_with_a_join_token(self):
        self.start_run(f"{self.hosts[0].address}:29400", CONVENE_JOIN_TOKEN=_TOKEN)
        self.check_closed()
        self.end_run()

    def test_a_store_behind_the_port_of_the_rendezvous(self):
        self.start_run(f"{self.hosts[0].address}:29400", "--rdzv-backend", "static")
        self.assertEqual(self.port, "29400")
        self.check_closed()
        self.end_run()

    def test_a_store_behind_the_locked_port_of_the_rendezvous(self):
        self.start_run(f"{self.hosts[0].address}:29400", "--rdzv-backend", "static", CONVENE_JOIN_TOKEN=_TOKEN)
        self.assertEqual(self.port, "29400")
        self.check_closed()
        self.end_run()

    def test_the_flag_of_one_node_opens_it(self):
        self.start_run(f"{self.hosts[0].address}:29400", "--open-store")
        self.assertEqual(self.ask_as_stranger(), "served\n")
        self.end_run()

    def test_nodes_behind_a_translation_of_addresses_open_it(self):
        translator = self.network.host("t")
        inner = self.network.add_address(translator)
        self.start(sys.executable, "-c", _TRANSLATE, self.hosts[0].address, 29400, inner, prefix=translator.prefix, log="translator.log")
        wait_until(lambda: whole_lines(self.path("translator.log")), 10, "the translation")
        self.start_run(f"{translator.address}:29400", "--rdzv-backend", "static", first_sources=[self.hosts[0].address])
        self.assertEqual(self.host, translator.address)
        self.end_run()
        self.assertIn(f"every address: this node does not have the address of {translator.address}", self.output(self.nodes[0]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
