"""A stop under Slurm, with a scontrol that answers what the test says: the requeue is asked for after the checkpoint and only where that
saves the job. tests/slurm has the same against a real Slurm."""

import os
import signal
import time
import unittest

from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase, find_program, read_metrics

SHOWN = ('JobId=35 JobName=llama JobState=RUNNING Reason=None Requeue=1 Restarts=0 BatchFlag=1 StartTime=2026-11-23T02:00:01 '
         'EndTime=Unknown PreemptEligibleTime=2026-11-23T02:00:01 PreemptTime={} SuspendTime=None Partition=low\n')


class PreemptionTest(ConveneTestCase):

    def scontrol(self, shown, before='', requeue='true'):
        """Puts a scontrol into PATH that notes its arguments, and the checkpoints at the time of a requeue."""
        os.mkdir(self.path('bin'))
        with open(self.path('shown'), 'w', encoding='ascii') as f:
            f.write(shown)
        with open(self.path('bin/scontrol'), 'w', encoding='ascii') as f:
            f.write(f'#!/bin/sh\necho "$@" >> {self.path("asked")}\n{before}\nif [ "$1" = requeue ]; then\n'
                    f'  ls {self.path("checkpoints")}/*/manifest > {self.path("saved")}; {requeue}\nelse\n  cat {self.path("shown")}\nfi\n')
        os.chmod(self.path('bin/scontrol'), 0o755)

    def asked(self):
        with open(self.path('asked'), encoding='ascii') as f:
            return f.read().splitlines()

    def stop(self, path=None, **environment):
        """Trains, is told to end as by Slurm, and returns the output and the seconds that the end took."""
        agent = self.start(
            CONVENE, 'run', '--standalone', '--nproc-per-node', '1', '--no-python', find_program(CONVENE_TRAIN),
            *self.train_arguments(steps=100000, checkpoint_every=100000),
            **{'PATH': path or f'{self.path("bin")}:{os.environ["PATH"]}', 'SLURM_JOB_ID': '35', 'SLURM_NODEID': '0', **environment})
        self.wait_for_step(3)
        begin = time.monotonic()
        agent.send_signal(signal.SIGTERM)
        text = self.finish(agent, 60, 128 + signal.SIGTERM)
        self.assert_nothing_left()
        return text, time.monotonic() - begin

    def last_manifest(self):
        return self.path(f'checkpoints/step_{read_metrics(self.path("metrics.jsonl"))[-1]["step"]:08d}/manifest')

    def test_a_preempted_job_is_requeued_after_its_checkpoint(self):
        self.scontrol(SHOWN.format('2026-11-23T02:00:22'))
        text, _ = self.stop()
        self.assertEqual(self.asked(), ['-o show job 35', 'show config', '-o show partition low', '-o show job 35', 'requeue 35'])
        with open(self.path('saved'), encoding='ascii') as f:
            self.assertEqual(f.read().splitlines(), [self.last_manifest()], 'the checkpoint came after the requeue')
        self.assertIn("job 35 is back in Slurm's queue", text)

    def test_a_job_that_is_cancelled_or_at_its_limit_is_not(self):
        self.scontrol(SHOWN.format('None'))
        text, _ = self.stop(SLURM_ARRAY_JOB_ID='35', SLURM_ARRAY_TASK_ID='2')
        self.assertEqual(self.asked(), ['-o show job 35_2', 'show config'])
        self.assertIn('job 35_2 is in no grace of a preemption', text)

    def test_a_term_for_all_processes_of_the_step_does_not_end_scontrol(self):
        # proctrack/linuxproc sends it to each descendant: at a time limit once more, and at each requeue.
        self.scontrol(SHOWN.format('2026-11-23T02:00:22'), before='kill -TERM $$')
        text, _ = self.stop()
        self.assertIn("job 35 is back in Slurm's queue", text)
        self.assertNotIn('killed by signal', text)

    def test_times_are_asked_for_in_slurms_own_format(self):
        self.scontrol(SHOWN.format('2026-11-23T02:00:22'), before='[ "$SLURM_TIME_FORMAT" = standard ] || exit 1')
        text, _ = self.stop(SLURM_TIME_FORMAT='relative')
        self.assertIn("job 35 is back in Slurm's queue", text)

    def test_a_controller_that_does_not_answer_delays_no_checkpoint(self):
        self.scontrol(SHOWN.format('None'), before='sleep 60')
        text, seconds = self.stop()
        self.assertIn('it did not answer in time', text)
        self.assertIn('RequeueExit=143', text)
        self.assertLess(seconds, 15)
        self.assertTrue(os.path.exists(self.last_manifest()))

    def test_a_requeue_that_is_refused_is_told(self):
        self.scontrol(SHOWN.format('2026-11-23T02:00:22'), requeue='echo "Requested operation is presently disabled" >&2; exit 1')
        text, _ = self.stop()
        self.assertIn('`scontrol requeue 35` failed (Requested operation is presently disabled)', text)

    def test_a_container_without_scontrol_is_told_what_to_do(self):
        os.mkdir(self.path('empty'))
        text, _ = self.stop(path=self.path('empty'), SLURM_JOB_END_TIME=str(int(time.time()) + 20))
        self.assertIn("Slurm's scontrol is not to be found here", text)
        self.assertIn('RequeueExit=143', text)
        self.assertIn('Slurm ends this job in', text)


if __name__ == '__main__':
    unittest.main()
