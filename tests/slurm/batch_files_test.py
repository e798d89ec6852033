"""Batch files as users have them, for torchrun and for convene: they run as they stand."""

import json
import os
import re
import unittest

from tests.slurm.test_slurm import SlurmTestCase
from tests.support.convene_testing import CONVENE, free_port, wait_until

# In place of a PyTorch program: it tells what it was given, and that it reached the store.
_SCRIPT = """
import json, os, socket, sys
names = 'RANK LOCAL_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE TORCHELASTIC_RUN_ID'.split()
facts = {name: os.environ[name] for name in names}
socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])), 10).close()
facts.update(host=socket.gethostname(), gpus=os.environ.get('CUDA_VISIBLE_DEVICES'), arguments=sys.argv[1:])
with open(f"rank{facts['RANK']}.json", 'w') as out:
    json.dump(facts, out)
"""

# After PyTorch's own example of a batch file.
_HEAD_NODE = """#!/bin/bash
#SBATCH --job-name=multinode-example
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-task=2
#SBATCH --cpus-per-task=4

nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
nodes_array=($nodes)
head_node=${nodes_array[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)

echo Node IP: $head_node_ip
export LOGLEVEL=INFO

srun torchrun \\
--nnodes $SLURM_NNODES \\
--nproc_per_node 2 \\
--rdzv_id $RANDOM \\
--rdzv_backend c10d \\
--rdzv_endpoint $head_node_ip:29500 \\
train.py 50 10
"""

_NODE_RANK = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --exclusive

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((SLURM_JOB_ID % 55535 + 10000))

LAUNCHER="torchrun --nproc_per_node=\\$SLURM_GPUS_ON_NODE --nnodes $SLURM_NNODES --node_rank \\$SLURM_PROCID \\
  --master_addr $MASTER_ADDR --master_port $MASTER_PORT"
srun --jobid $SLURM_JOBID --cpu-bind=none --kill-on-bad-exit=1 bash -c "$LAUNCHER train.py 50 10"
"""

# Two experiments beside each other, in the two tasks of each node.
_TWO_EXPERIMENTS = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2

head_node_ip=$(srun --nodes=1 --ntasks=1 hostname --ip-address)
srun bash -c 'torchrun --nnodes $SLURM_NNODES --nproc_per_node 2 --rdzv_id experiment$SLURM_LOCALID --rdzv_backend c10d \\
  --rdzv_endpoint '$head_node_ip':$((PORT + SLURM_LOCALID)) --no-python sh -c "echo \\$TORCHELASTIC_RUN_ID \\$RANK/\\$WORLD_SIZE >> told"'
"""


class BatchFilesTest(SlurmTestCase):
    GPUS = 2

    def submit(self, text, *options):
        self.write('train.py', _SCRIPT)
        return self.sbatch(self.write('job.sh', text), *options)

    def check_ranks(self, text):
        """Four ranks, two on each node, in the order of Slurm's nodes."""
        facts = []
        for rank in range(4):
            self.assertTrue(os.path.exists(self.path(f'rank{rank}.json')), text[-3000:])
            with open(self.path(f'rank{rank}.json'), encoding='utf-8') as file:
                facts.append(json.load(file))
        self.assertEqual([f['LOCAL_RANK'] for f in facts], ['0', '1', '0', '1'])
        self.assertEqual({f['WORLD_SIZE'] for f in facts}, {'4'})
        self.assertEqual({f['GROUP_WORLD_SIZE'] for f in facts}, {'2'})
        self.assertEqual({tuple(f['arguments']) for f in facts}, {('50', '10')})
        self.assertEqual({f['gpus'] for f in facts}, {'0,1'})
        self.assertEqual(len({f['TORCHELASTIC_RUN_ID'] for f in facts}), 1)
        return [f['host'] for f in facts]

    def test_torchrun_with_the_head_node_s_address(self):
        job = self.submit(_HEAD_NODE.replace('29500', str(free_port())))
        hosts = self.check_ranks(self.finish_job(job, 150))
        self.assertEqual(hosts[0], hosts[1])
        self.assertEqual(set(hosts), set(self.slurm.nodes))
        self.assert_nothing_left()

    def test_torchrun_with_node_ranks_and_a_master_s_address(self):
        job = self.submit(_NODE_RANK)
        first, second = self.slurm.nodes
        self.assertEqual(self.check_ranks(self.finish_job(job, 150)), [first, first, second, second])
        self.assert_nothing_left()

    def test_torchruns_of_two_experiments_in_the_tasks_of_each_node(self):
        job = self.submit(_TWO_EXPERIMENTS.replace('PORT', str(free_port())))
        text = self.finish_job(job, 150)
        with open(self.path('told'), encoding='utf-8') as lines:
            self.assertEqual(sorted(lines), [f'experiment{i} {rank}/4\n' for i in range(2) for rank in range(4)], text)
        self.assert_nothing_left()

    def test_an_array_s_tasks_on_the_same_nodes_do_not_meet(self):
        arguments = ' '.join(self.train_arguments(metrics_file=None, checkpoint_dir=None, checkpoint_every=None))
        script = self.write('array.sh', '#!/bin/bash\nsrun convene run --nproc-per-node 1 convene-train ' + arguments +
                            ' --metrics-file "metrics$SLURM_ARRAY_TASK_ID.jsonl"\n')
        job = self.sbatch(script, '--array=0-1', '--nodes=2', '--ntasks-per-node=1', '--cpus-per-task=2')
        wait_until(lambda: not self.ask('squeue', '-h').strip(), 60, 'the end of both tasks')
        for task in range(2):
            self.assertEqual(self.job(f'{job}_{task}')['JobState'], 'COMPLETED')
            metrics = self.metrics(f'metrics{task}.jsonl')
            self.assertEqual([m['step'] for m in metrics], list(range(1, 31)))
            self.assertEqual({m['world_size'] for m in metrics}, {2})
        self.assert_nothing_left()

    def test_an_overlapping_step_sees_the_status_and_the_logs(self):
        script = self.write('job.sh', '#!/bin/bash\nsrun convene run --nproc-per-node 2 convene-train ' +
                            ' '.join(self.train_arguments(steps=100000)) + '\n')
        job = self.sbatch(script, '--nodes=2', '--ntasks-per-node=1', '--cpus-per-task=4')
        self.wait_for_step(10)
        endpoint = re.search(r'endpoint (\S+:\d+)', self.job_output(job)).group(1)
        overlap = ['--overlap', f'--jobid={job}', '--nodes=1', '--ntasks=1', f'--nodelist={self.slurm.nodes[1]}']
        status = self.finish(self.srun(overlap, CONVENE, 'status', '--endpoint', endpoint), 20)
        self.assertRegex(status, rf'job {job}\.0\S*: running, epoch 1, 2 nodes')
        run = re.search(r'job (\S+): running', status).group(1)
        logs = self.finish(self.srun(overlap, CONVENE, 'logs', run, '--tail', 'all', '--endpoint', endpoint), 20)
        self.assertRegex(logs, r'\[0\] step \d+/100000')


if __name__ == '__main__':
    unittest.main()
