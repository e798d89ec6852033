"""Nodes come and go: the job shrinks and grows with the same global batch."""

import os
import re
import signal

from tests.support import side_by_side
from tests.support.convene_testing import (CONVENE, CONVENED, CONVENE_TRAIN, ConveneTestCase,
                                           find_program, read_metrics, wait_until)


class ElasticTest(ConveneTestCase):

    def start_daemon(self):
        daemon = self.start(CONVENED, "--host", "127.0.0.1", "--port", 0, log="daemon.log")
        match = wait_until(lambda: re.search(r"127\.0\.0\.1:(\d+)", self.output(daemon)), 10,
                           "the daemon's address in its log")
        return f"127.0.0.1:{match.group(1)}"

    def start_agent(self, endpoint, node_rank, nnodes, workers=2, environment=None, **changes):
        return self.start(
            CONVENE, "run", "--nnodes", nnodes, "--nproc-per-node", workers, "--rdzv-endpoint", endpoint,
            "--rdzv-id", "elastic", "--node-rank", node_rank, "--max-restarts", 3,
            find_program(CONVENE_TRAIN), *self.train_arguments(**changes),
            log=f"agent{node_rank}.log", **(environment or {}))

    def metrics(self):
        return read_metrics(self.path("metrics.jsonl"))

    def wait_for_world(self, world_size, after_step):
        """Past two saves that were due (every 5 steps) the first of them is on the disk."""
        wait_until(lambda: any(m["world_size"] == world_size and m["step"] > after_step
                               for m in self.metrics()), 60, f"a step with world size {world_size}")
        return self.metrics()[-1]["step"]

    def losses_of_one_process(self, **values):
        """The metrics of a run that nothing disturbs."""
        path = self.path("one.jsonl")
        arguments = self.train_arguments(**{**values, "metrics_file": path, "checkpoint_dir": None, "checkpoint_every": None})
        self.finish(self.start(CONVENE_TRAIN, *arguments), 60)
        return read_metrics(path)

    def assert_same_losses(self, expected):
        metrics = self.metrics()
        self.assertEqual([m["step"] for m in metrics], [m["step"] for m in expected])
        for key in ("loss", "grad_norm"):
            for got, wanted in zip(metrics, expected):
                self.assertLess(abs(got[key] / wanted[key] - 1), 1e-4, f"{key} of {got} and {wanted}")

    def layouts(self):
        return list(dict.fromkeys(m["layout"] for m in self.metrics()))

    def test_two_nodes_train_together(self):
        endpoint = self.start_daemon()
        agents = [self.start_agent(endpoint, rank, "2", tp_size=2) for rank in (0, 1)]
        for agent in agents:
            self.finish(agent, 90)
        self.assertEqual({m["layout"] for m in self.metrics()}, {"dp2 x tp2 x pp1"})
        self.assertEqual(len(self.metrics()), 30)

    def test_a_second_run_of_an_id_is_a_first_start(self):
        endpoint = self.start_daemon()
        self.finish(self.start_agent(endpoint, 0, "1", steps=5), 60)
        again = self.start_agent(endpoint, 0, "1", steps=10, resume="none")
        self.assertIn("already holds checkpoints up to step 5", self.finish(again, 60, expected_code=64))

    def test_the_node_that_owns_the_endpoint_hosts_the_rendezvous(self):
        # Port 0 cannot be agreed on beforehand: take one that the kernel just gave out.
        import socket
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        agents = [self.start_agent(f"127.0.0.1:{port}", rank, "2") for rank in (0, 1)]
        for agent in agents:
            self.finish(agent, 90)
        self.assertEqual(len(self.metrics()), 30)

    def test_a_lost_node_shrinks_the_job_and_its_return_grows_it(self):
        endpoint = self.start_daemon()
        stays = self.start_agent(endpoint, 0, "1:2", steps=2000)
        dies = self.start_agent(endpoint, 1, "1:2", steps=2000)
        step = self.wait_for_world(4, 10)
        dies.kill()
        step = self.wait_for_world(2, step - 10)
        alone = [m for m in self.metrics() if m["world_size"] == 2]
        self.assertEqual(alone[0]["tokens"] / alone[0]["step"], 8 * 32, "the global batch is the same")
        back = self.start_agent(endpoint, 1, "1:2", steps=2000)
        self.wait_for_world(4, step)
        epochs = [m["epoch"] for m in self.metrics()]
        self.assertEqual(epochs, sorted(epochs))
        self.assertEqual([m["step"] for m in self.metrics()],
                         list(range(1, len(self.metrics()) + 1)))
        for agent in (stays, back):
            agent.send_signal(signal.SIGTERM)
        for agent in (stays, back):
            agent.wait(40)
        self.assertEqual(dies.wait(), -signal.SIGKILL)

    def test_a_node_that_comes_while_a_checkpoint_is_written_loses_no_step(self):
        endpoint = self.start_daemon()
        values = {"steps": 100000, "checkpoint_every": 20, "workers": 1}
        stays = self.start_agent(endpoint, 0, "1:2", environment=self.slow_disk("/step_00000020/"), **values)
        wait_until(lambda: "the checkpoint after step 20 is still being written" in self.output(stays), 60, "a slow save")
        comes = self.start_agent(endpoint, 1, "1:2", **values)
        wait_until(lambda: "stopping the workers of epoch 1" in self.output(stays), 20, "the stop")
        os.remove(self.path("hold"))
        self.wait_for_world(2, 40)
        for agent in (stays, comes):
            agent.send_signal(signal.SIGTERM)
        for agent in (stays, comes):
            self.finish(agent, 40, 128 + signal.SIGTERM)
        metrics = self.metrics()
        self.assertEqual([m["step"] for m in metrics], list(range(1, len(metrics) + 1)))

    def test_a_node_less_trains_the_same_although_the_batch_no_longer_divides(self):
        values = {"steps": 40, "global_batch_size": 32, "micro_batch_size": 4}
        expected = self.losses_of_one_process(**values)
        endpoint = self.start_daemon()
        agents = [self.start_agent(endpoint, rank, "3:4", workers=1, **values) for rank in range(4)]
        self.wait_for_world(4, 10)
        agents.pop().kill()
        for agent in agents:
            self.finish(agent, 90)
        self.assertEqual(self.layouts(), ["dp4 x tp1 x pp1", "dp3 x tp1 x pp1"])
        self.assertIn("global 32 = dp 3 x micro 4 x accumulation 3 less 4 empty rows",
                      self.output(agents[0]))
        self.assert_same_losses(expected)

    def test_nodes_of_experts_train_on_with_the_same_losses_when_one_is_lost(self):
        values = {"steps": 60, "model": "moe-tiny", "layers": 2}
        expected = self.losses_of_one_process(**values)
        endpoint = self.start_daemon()
        agents = [self.start_agent(endpoint, rank, "1:2", ep_size=2, zero_stage=3, **values) for rank in (0, 1)]
        self.wait_for_world(4, 10)
        agents.pop().kill()
        self.finish(agents[0], 90)
        self.assertEqual(self.layouts(), ["dp4 (ep2) x tp1 x pp1", "dp2 (ep2) x tp1 x pp1"])
        self.assert_same_losses(expected)

    def test_context_parallel_nodes_that_shard_all_train_on_with_the_same_losses(self):
        values = {"steps": 60}
        expected = self.losses_of_one_process(**values)
        endpoint = self.start_daemon()
        agents = [self.start_agent(endpoint, rank, "1:2", cp_size=2, zero_stage=3, **values) for rank in (0, 1)]
        self.wait_for_world(4, 10)
        agents.pop().kill()
        self.finish(agents[0], 90)
        self.assertEqual(self.layouts(), ["dp2 x cp2 x tp1 x pp1", "dp1 x cp2 x tp1 x pp1"])
        self.assert_same_losses(expected)

    def test_keep_trains_on_with_the_same_losses_where_no_whole_replica_is_left(self):
        values = {"steps": 60, "micro_batch_size": 2}
        expected = self.losses_of_one_process(**values)
        endpoint = self.start_daemon()
        agents = [self.start_agent(endpoint, rank, "3:4", workers=1, tp_size=2, pp_size=2, **values)
                  for rank in range(4)]
        self.wait_for_world(4, 10)
        agents.pop().kill()
        for agent in agents:
            self.finish(agent, 90)
        self.assertEqual(self.layouts(), ["dp1 x tp2 x pp2", "dp3 x tp1 x pp1"])
        self.assertRegex(self.output(agents[0]),
                         r"layout dp3 x tp1 x pp1: 3 of 3 workers train; asked tp2 x pp2; tp and pp cannot be kept: tp_size 2 x "
                         r"pp_size 2 = 4 workers hold one replica of the model, and this job has 3; so the least step time that "
                         r"the planner has on cpu, of all legal layouts with room for their memory \([\d.]+ [KM]iB of [\d.]+ GiB a rank\)")
        self.assert_same_losses(expected)

    def test_best_trains_on_with_the_same_losses_on_what_is_left_of_a_replica(self):
        values = {"steps": 120, "global_batch_size": 8, "micro_batch_size": 2}
        expected = self.losses_of_one_process(**values)
        endpoint = self.start_daemon()
        agents = [self.start_agent(endpoint, rank, "2:4", workers=1, tp_size=2, pp_size=2,
                                   elastic_layout="best", **values) for rank in range(4)]
        step = self.wait_for_world(4, 10)
        agents.pop().kill()
        step = self.wait_for_world(3, step - 10)
        self.wait_for_world(3, step + 10)  # past a checkpoint of three workers
        agents.pop().kill()
        for agent in agents:
            self.finish(agent, 90)
        self.assertEqual(self.layouts(), ["dp4 x tp1 x pp1", "dp3 x tp1 x pp1", "dp2 x tp1 x pp1"])
        self.assertRegex(self.output(agents[0]),
                         r"layout dp3 x tp1 x pp1: 3 of 3 workers train; asked tp2 x pp2; the least step time that "
                         r"the planner has on cpu, of all legal layouts with room for their memory \([\d.]+ [KM]iB of [\d.]+ GiB a rank\)")
        self.assert_same_losses(expected)

    def test_keep_trains_on_fewer_copies_of_the_state(self):
        values = {"steps": 40, "dp_shard_size": 2, "dp_replicate_size": 2}
        endpoint = self.start_daemon()
        agents = [self.start_agent(endpoint, rank, "3:4", workers=1, **values) for rank in range(4)]
        self.wait_for_world(4, 10)
        agents.pop().kill()
        for agent in agents:
            self.finish(agent, 90)
        self.assertEqual(self.layouts(), ["dp4 (2 copies of 2 shards) x tp1 x pp1", "dp2 x tp1 x pp1"])
        self.assertIn("layout dp2 x tp1 x pp1: 2 of 3 workers train; asked dp4 (2 copies of 2 shards); "
                      "kept tp and pp (--elastic-layout keep)", self.output(agents[0]))

    def test_a_rank_that_no_replica_needs_waits_and_takes_the_place_of_a_lost_one(self):
        values = {"steps": 2000, "tp_size": 2}
        endpoint = self.start_daemon()
        agents = [self.start_agent(endpoint, rank, "2:3", workers=1, **values) for rank in range(3)]
        step = self.wait_for_world(2, 10)
        self.assertIn("rank 2 waits without training: tp 2 x pp 1 = 2 does not divide 3 ranks",
                      self.output(agents[0]))
        self.assertIn("rank 2 is a spare: it waits without training", self.output(agents[2]))
        agents.pop(1).kill()
        wait_until(lambda: self.metrics()[-1]["epoch"] == 2 and self.metrics()[-1]["step"] > step, 60,
                   "a step without the lost node")
        self.assertEqual({m["layout"] for m in self.metrics()}, {"dp1 x tp2 x pp1"})
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        for agent in agents:
            self.finish(agent, 40, 143)

    def test_a_stop_of_a_spares_node_saves_what_the_others_trained(self):
        values = {"steps": 100000, "tp_size": 2, "checkpoint_every": 100000}
        endpoint = self.start_daemon()
        agents = [self.start_agent(endpoint, rank, "2:3", workers=1, **values) for rank in range(3)]
        step = self.wait_for_world(2, 20)
        self.assertIn("rank 2 is a spare", self.output(agents[2]))
        spare = agents.pop()
        spare.send_signal(signal.SIGTERM)
        self.finish(spare, 40, 143)
        wait_until(lambda: self.metrics()[-1]["epoch"] == 2, 60, "a step without the spare's node")
        self.assertGreater(min(m["step"] for m in self.metrics() if m["epoch"] == 2), step)
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        for agent in agents:
            self.finish(agent, 40, 143)

    def test_a_spare_ends_with_the_training(self):
        run = [CONVENE, "run", "--standalone", "--nproc-per-node", 3, find_program(CONVENE_TRAIN)]
        text = self.finish(self.start(*run, *self.train_arguments(tp_size=2)), 60)
        self.assertIn("rank 2 is a spare", text)
        self.assertEqual([m["step"] for m in self.metrics()], list(range(1, 31)))
        self.assertEqual({m["world_size"] for m in self.metrics()}, {2})
        self.assert_nothing_left()
        # A stop is nobody's failure either.
        job = self.start(*run, *self.train_arguments(tp_size=2, steps=100000))
        self.wait_for_step(40)
        job.send_signal(signal.SIGTERM)
        self.assertIn("stopped after step", self.finish(job, 40, 143))

    def test_no_worker_outlives_a_killed_agent(self):
        endpoint = self.start_daemon()
        agent = self.start_agent(endpoint, 0, "1", steps=100000)
        self.wait_for_step(3)
        os.kill(agent.pid, signal.SIGKILL)
        wait_until(lambda: not self.workers(), 2, "workers of a killed agent")


if __name__ == "__main__":
    side_by_side.main(at_once=3)
