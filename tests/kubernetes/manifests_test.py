"""The manifests of tools/deploy/kubernetes keep what Kubernetes and Convene ask of them. Their schemas: tools/deploy/kubernetes/validate."""

import glob
import os
import subprocess
import unittest

from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, find_program

try:
    import yaml
except ImportError:
    yaml = None

_FOLDER = os.path.join(os.environ.get("TEST_SRCDIR", ""), "convene", "tools/deploy/kubernetes")
_FILES = ("indexed-job.yaml", "jobset.yaml", "pytorchjob.yaml", "standbys.yaml", "statefulset.yaml", "trainjob.yaml")


def objects():
    for name in _FILES:
        with open(os.path.join(_FOLDER, name), encoding="utf-8") as file:
            for one in yaml.safe_load_all(file):
                yield name, one


def found(node, key):
    """Every value of `key` below `node`."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from found(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from found(value, key)


def pod_templates():
    for name, one in objects():
        for template in found(one, "template"):
            if "containers" in template.get("spec", {}):
                yield name, template["spec"]


@unittest.skipIf(yaml is None, "no PyYAML here: Debian's package python3-yaml has it")
class ManifestsTest(unittest.TestCase):

    def test_every_manifest_is_looked_at(self):
        self.assertEqual(sorted(map(os.path.basename, glob.glob(os.path.join(_FOLDER, "*.yaml")))), sorted(_FILES))
        self.assertEqual({one["kind"] for _, one in objects()},
                         {"Service", "Job", "StatefulSet", "JobSet", "PyTorchJob", "TrainJob", "PodDisruptionBudget"})
        self.assertEqual(sorted({name for name, _ in pod_templates()}), sorted(set(_FILES) - {"trainjob.yaml"}))

    def jobs(self):
        """(file, name of a pod with a large index, the spec of the Job)."""
        for name, one in objects():
            if one["kind"] == "Job":
                yield name, one["metadata"]["name"] + "-9999", one["spec"]
            if one["kind"] == "JobSet":
                for replicated in one["spec"]["replicatedJobs"]:
                    yield name, f"{one['metadata']['name']}-{replicated['name']}-999-9999", replicated["template"]["spec"]

    def test_a_jobs_failure_policy_is_one_that_kubernetes_takes(self):
        self.assertEqual(len(list(self.jobs())), 2)
        for name, pod_name, spec in self.jobs():
            with self.subTest(name):
                self.assertLess(len(pod_name), 63)
                self.assertEqual(spec["completionMode"], "Indexed")
                self.assertEqual(spec["completions"], spec["parallelism"])
                self.assertEqual(spec["podReplacementPolicy"], "Failed")
                pod = spec["template"]["spec"]
                self.assertEqual(pod["restartPolicy"], "Never")
                containers = {container["name"] for container in pod["containers"]}
                actions = {}
                for rule in spec["podFailurePolicy"]["rules"]:
                    self.assertIn(rule["action"], ("FailJob", "FailIndex", "Ignore", "Count"))
                    if "onPodConditions" in rule:
                        self.assertEqual(rule["onPodConditions"], [{"type": "DisruptionTarget", "status": "True"}])
                        continue
                    codes = rule["onExitCodes"]
                    self.assertIn(codes["containerName"], containers)
                    self.assertEqual(codes["operator"], "In")
                    self.assertEqual(codes["values"], sorted(set(codes["values"])))
                    self.assertNotIn(0, codes["values"])
                    actions.update({code: rule["action"] for code in codes["values"]})
                self.assertEqual(actions, {1: "FailJob", 64: "FailJob", 69: "Ignore", 143: "Ignore", 71: "Count"})

    def test_codes_that_are_named_are_in_our_table(self):
        table = subprocess.run([find_program(CONVENE), "--help-exit-codes"], capture_output=True, text=True, check=True).stdout
        known = {line.split()[0] for line in table.splitlines() if line.strip()}
        for name, _, spec in self.jobs():
            for values in found(spec["podFailurePolicy"], "values"):
                for code in values:
                    self.assertTrue(str(code) in known or code > 128, f"{name}: {code} is none of {known}")

    def test_pods_are_harmless_and_have_room(self):
        for name, pod in pod_templates():
            with self.subTest(name):
                self.assertIs(pod["enableServiceLinks"], False)
                self.assertIs(pod["automountServiceAccountToken"], False)
                self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
                volumes = {volume["name"]: volume for volume in pod["volumes"]}
                for container in pod["containers"]:
                    security = container["securityContext"]
                    self.assertEqual((security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"], security["capabilities"]),
                                     (True, False, {"drop": ["ALL"]}))
                    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
                    self.assertIn("/tmp", mounts)
                    if container["command"] == ["convene", "run"]:
                        self.assertEqual(volumes[mounts["/dev/shm"]]["emptyDir"]["medium"], "Memory")

    def test_a_stop_ends_within_the_pods_grace(self):
        for name, pod in pod_templates():
            for container in pod["containers"]:
                for argument in container["args"]:
                    if argument.startswith("--stop-grace=signal="):
                        self.assertLess(int(argument.rsplit("=", 1)[1]) + 10, pod["terminationGracePeriodSeconds"], name)

    def test_a_service_selects_the_pods_that_need_names(self):
        service, job = [one for name, one in objects() if name == "indexed-job.yaml"]
        self.assertEqual(service["spec"]["clusterIP"], "None")
        self.assertIs(service["spec"]["publishNotReadyAddresses"], True)
        self.assertEqual(service["spec"]["selector"], {"batch.kubernetes.io/job-name": job["metadata"]["name"]})
        self.assertEqual(job["spec"]["template"]["spec"]["subdomain"], service["metadata"]["name"])
        self.assertIn(f"--nnodes={job['spec']['completions']}", job["spec"]["template"]["spec"]["containers"][0]["args"])
        service, daemon = [one for name, one in objects() if name == "statefulset.yaml"]
        self.assertEqual(service["spec"]["selector"], daemon["spec"]["template"]["metadata"]["labels"])
        container = daemon["spec"]["template"]["spec"]["containers"][0]
        for probe in ("readinessProbe", "livenessProbe"):
            self.assertEqual(container[probe]["httpGet"], {"path": "/healthz", "port": container["ports"][0]["name"]})

    def test_standbys_are_on_three_nodes_and_agents_know_each_by_name(self):
        service, budget, daemons = [one for name, one in objects() if name == "standbys.yaml"]
        labels = daemons["spec"]["template"]["metadata"]["labels"]
        self.assertEqual((service["spec"]["selector"], budget["spec"]["selector"]["matchLabels"]), (labels, labels))
        self.assertEqual((service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]), ("None", True))
        apart = daemons["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
        self.assertEqual((apart["topologyKey"], apart["labelSelector"]["matchLabels"]), ("kubernetes.io/hostname", labels))
        self.assertEqual(daemons["spec"]["serviceName"], service["metadata"]["name"])
        names = [f"{daemons['metadata']['name']}-{index}.{service['metadata']['name']}" for index in range(daemons["spec"]["replicas"])]
        endpoint = f"--rdzv-endpoint={','.join(names)}"
        with open(os.path.join(_FOLDER, "standbys.yaml"), encoding="utf-8") as file:
            self.assertIn(endpoint, file.read())
        self.take(CONVENE, "run", "--nnodes=2", endpoint, "--help")
        container = daemons["spec"]["template"]["spec"]["containers"][0]
        self.assertFalse({"readinessProbe", "livenessProbe", "startupProbe"} & set(container))  # A standby does not listen.

    def changed(self, name, *expressions):
        """The objects of a file after README.md's sed."""
        text = subprocess.run(["sed", *(word for one in expressions for word in ("-e", one)), os.path.join(_FOLDER, name)],
                              capture_output=True, text=True, check=True).stdout
        return list(yaml.safe_load_all(text))

    def test_the_lines_of_a_locked_door_give_the_token_and_ask_by_https(self):
        for name in ("indexed-job.yaml", "statefulset.yaml", "standbys.yaml"):
            locked = self.changed(name, "s/# LOCKED: //")
            container = locked[-1]["spec"]["template"]["spec"]["containers"][0]
            self.assertIn({"name": "CONVENE_JOIN_TOKEN", "valueFrom": {"secretKeyRef": {"name": "convene-join-token", "key": "token"}}}, container["env"])
            self.assertEqual([probe["scheme"] for probe in found(locked[-1], "httpGet")], ["HTTPS"] * (2 if name == "statefulset.yaml" else 0))

    def test_standbys_take_turns_with_a_shared_folder_in_place_of_an_etcd(self):
        pod = self.changed("standbys.yaml", "/# ETCD$/d", "s/# FOLDER: //")[-1]["spec"]["template"]["spec"]
        container = pod["containers"][0]
        self.take(CONVENE, "serve", *container["args"], "--help")
        self.assertIn("--standby", container["args"])
        state = next(mount["name"] for mount in container["volumeMounts"] if f"--state-dir={mount['mountPath']}/journal" in container["args"])
        self.assertIn({"name": state, "persistentVolumeClaim": {"claimName": "convened"}}, pod["volumes"])
        self.assertEqual(pod["securityContext"]["fsGroup"], 65532)

    def test_a_jobsets_pods_are_told_how_many_they_are(self):
        jobset = next(one for _, one in objects() if one["kind"] == "JobSet")
        spec = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
        environment = {one["name"]: one for one in spec["template"]["spec"]["containers"][0]["env"]}
        self.assertEqual(environment["JOBSET_PODS_PER_JOB"]["value"], str(spec["parallelism"]))
        annotations = {name: one["valueFrom"]["fieldRef"]["fieldPath"] for name, one in environment.items()
                       if name.startswith("JOBSET_") and "valueFrom" in one}
        self.assertEqual(annotations, {
            variable: f"metadata.annotations['jobset.sigs.k8s.io/{annotation}']" for variable, annotation in (
                ("JOBSET_NAME", "jobset-name"), ("JOBSET_COORDINATOR", "coordinator"), ("JOBSET_GLOBAL_REPLICAS", "replicatedjob-replicas"),
                ("JOBSET_JOB_GLOBAL_INDEX", "job-index"), ("JOBSET_RESTART_ATTEMPT", "restart-attempt"))})

    def commands(self):
        for name, one in objects():
            for container in [*found(one, "trainer"), *(c for cs in found(one, "containers") for c in cs)]:
                yield name, container["command"], container["args"]

    def test_our_programs_take_the_flags(self):
        """--help is read last: a flag before it that is unknown, or has a wrong value, is refused."""
        self.assertEqual(len(list(self.commands())), 7)
        for name, command, arguments in self.commands():
            with self.subTest(name):
                self.assertEqual(command[0], "convene")
                if command[1] == "serve":
                    self.take(CONVENE, "serve", *arguments, "--help")
                    continue
                program = arguments.index("convene-train")
                self.take(CONVENE, "run", *arguments[:program], "--help")
                self.take(CONVENE_TRAIN, *arguments[program + 1:], "--help")

    def take(self, program, *arguments):
        done = subprocess.run([find_program(program), *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        wrong = subprocess.run([find_program(program), *arguments[:-1], "--no-such-flag", "--help"], capture_output=True, check=False)
        self.assertEqual(wrong.returncode, 64)


if __name__ == "__main__":
    unittest.main()
