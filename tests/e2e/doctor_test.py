"""`convene doctor` as a person, a program and a job use it."""

import json
import unittest

from tests.support.convene_testing import CONVENE, ConveneTestCase

GOOD = {"NCCL_SOCKET_IFNAME": None, "NCCL_IB_HCA": None, "GLOO_SOCKET_IFNAME": None}
BAD = {"NCCL_SOCKET_IFNAME": "nothing"}


class DoctorTest(ConveneTestCase):

    def doctor(self, *arguments, code=0, **environment):
        return self.finish(self.start(CONVENE, "doctor", *arguments, **environment), 20, code)

    def findings(self, *arguments, code=0, **environment):
        return json.loads(self.doctor("--json", *arguments, code=code, **environment))["findings"]

    def test_each_subject_is_looked_at_and_the_folders_that_are_named(self):
        found = self.findings(self.path(""), **GOOD)
        subjects = {finding["subject"] for finding in found}
        self.assertLessEqual({"GPUs", "network", "name", "memory", "disk", "shared memory", "limits", "environment"}, subjects)
        self.assertTrue(any(finding["what"].startswith(self.path("")) for finding in found if finding["subject"] == "disk"))
        for finding in found:
            self.assertEqual(finding["why"] == "", finding["severity"] == "good", finding)

    def test_what_training_cannot_do_without_is_71_and_told(self):
        said = self.doctor(self.path("none"), code=71, **GOOD)
        self.assertIn("No such file or directory", said)
        self.assertRegex(said, r"(?m)^error    disk ")
        self.assertRegex(said, r"(?m): 1 error, \d+ warnings?, \d+ notes?$")
        self.assertIn("NCCL_SOCKET_IFNAME=nothing", self.doctor(code=71, **BAD))
        self.doctor(**{**GOOD, "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"})

    def test_it_keeps_a_node_that_cannot_train_out_of_a_job(self):
        check = f"'{CONVENE}' doctor"
        job = ["run", "--standalone", "--health-check", check, "sh", "-c", "echo it runs"]
        self.assertIn("it runs", self.finish(self.start(CONVENE, *job, **GOOD), 30))
        said = self.finish(self.start(CONVENE, *job, **BAD), 30, 71)
        self.assertNotIn("] it runs", said)
        self.assertIn("no interface that is up has such a name", said)


if __name__ == "__main__":
    unittest.main()
