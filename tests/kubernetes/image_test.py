"""The image of tools/deploy/kubernetes/Containerfile, as a plain root file system: our programs and the C and C++ libraries, no shell. It runs as
the manifests ask: pid 1, a user who is nobody, a root that cannot be written.

CONVENE_BUNDLE=FILE takes a tarball of tools/deploy/bundle; without it the programs are those of the build."""

import json
import os
import re
import shutil
import signal
import subprocess
import unittest

from tests.support.convene_testing import CONVENE, CONVENE_TRAIN, ConveneTestCase, find_program

_USER = 65532
# The arguments: root, folder to mount at /work, program...
_BECOME_CONTAINER = """
root=$1; mount --bind "$root" "$root" && mount --bind "$2" "$root/work" && mount -t tmpfs tmpfs "$root/tmp" -o mode=1777 &&
mount -t proc proc "$root/proc" && mount --bind /dev/null "$root/dev/null" && mount --bind /dev/urandom "$root/dev/urandom" &&
mount -t tmpfs tmpfs "$root/dev/shm" -o mode=1777,size=64m && mount -o remount,bind,ro "$root" && shift 2 &&
exec /usr/sbin/chroot --userspec=65532:65532 "$root" "$@"
"""


class ImageTest(ConveneTestCase):

    def setUp(self):
        super().setUp()
        probe = subprocess.run(["unshare", "--mount", "--pid", "--fork", "/usr/sbin/chroot", "--userspec=65532:65532", "/", "true"],
                               capture_output=True, text=True, check=False)
        if probe.returncode != 0:
            self.skipTest(f"no namespaces, or no root: {probe.stderr.strip()}")
        self.root = self.path("root")
        for folder in ("opt", "work", "tmp", "proc", "dev/shm", "etc"):
            os.makedirs(os.path.join(self.root, folder))
        for device in ("null", "urandom"):
            with open(os.path.join(self.root, "dev", device), "w", encoding="ascii"):
                pass
        self.fill()
        os.chmod(self.root, 0o777)  # Only the mount keeps anybody from writing.
        os.makedirs(self.path("work"))
        os.chown(self.path("work"), _USER, _USER)
        os.chmod(self.directory, 0o755)
        shutil.copy(self.data, self.path("work/text.txt"))

    def fill(self):
        if os.environ.get("CONVENE_BUNDLE"):
            subprocess.run(["tar", "xf", os.environ["CONVENE_BUNDLE"], "-C", os.path.join(self.root, "opt")], check=True)
        else:
            os.makedirs(os.path.join(self.root, "opt/convene/bin"))
            for program in (CONVENE, CONVENE_TRAIN):
                shutil.copy(find_program(program), os.path.join(self.root, "opt/convene/bin"))
        for program in ("convene", "convene-train"):
            linked = subprocess.run(["ldd", os.path.join(self.root, "opt/convene/bin", program)], capture_output=True, text=True, check=True)
            for path in re.findall(r"(/\S+) \(0x", linked.stdout):
                target = self.root + path
                if not path.startswith(self.root) and not os.path.exists(target):
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    shutil.copy(path, target)

    def run_in_container(self, *arguments):
        prefix = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _BECOME_CONTAINER, "sh", self.root, self.path("work"),
                  "/opt/convene/bin/convene"]
        name, value = self.marker.split("=", 1)
        environment = {name: value, "PATH": "/opt/convene/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
        with open(self.path("container.log"), "wb") as log:
            process = subprocess.Popen([*prefix, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment)
        process.log_path = self.path("container.log")
        self.addCleanup(process.wait, 10)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def train(self, **changes):
        changes = {"checkpoint_dir": "/work/checkpoints", "token_cache_dir": "/tmp/tokens", "metrics_file": "/work/metrics.jsonl",
                   "data": "/work/text.txt", **changes}
        return self.run_in_container("run", "--standalone", "--nproc-per-node", "2", "convene-train", *self.train_arguments(**changes))

    def test_it_trains_and_stops_with_a_checkpoint(self):
        container = self.train(steps=100000, checkpoint_every=100000)
        self.wait_for_step(5, metrics=self.path("work/metrics.jsonl"))
        self.assertEqual([os.stat(f"/proc/{pid}").st_uid for pid in self.workers().values()], [_USER] * 2)
        with open(f"/proc/{container.pid}/task/{container.pid}/children", encoding="ascii") as children:
            first = int(children.read().split()[0])
        os.kill(first, signal.SIGTERM)
        self.finish(container, 30, expected_code=143)
        saved = os.listdir(self.path("work/checkpoints"))
        self.assertTrue(any(name.startswith("step_") for name in saved), saved)
        self.assert_nothing_left()

    def test_its_root_cannot_be_written(self):
        container = self.train(checkpoint_dir="/checkpoints")
        self.assertIn("Read-only file system", self.finish(container, 30, expected_code=64))

    def test_the_containerfile_builds(self):
        if not shutil.which("buildah"):
            self.skipTest("no buildah here: Debian's package buildah has it")
        context = self.path("context")
        os.makedirs(context)
        shutil.copy(find_program("tools/deploy/kubernetes/Containerfile"), context)
        subprocess.run(["tar", "cf", f"{context}/convene.tar.gz", "-C", os.path.join(self.root, "opt"), "convene"], check=True)
        buildah = ["buildah", "--storage-driver", "vfs", "--root", self.path("storage"), "--runroot", self.path("run")]
        for command in (["build", "--isolation", "chroot", "--build-arg", "BASE=scratch", "--tag", "image", context],
                        ["push", "--disable-compression", "image", f"dir:{self.path('image')}"]):
            done = subprocess.run([*buildah, *command], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path("image/manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        with open(self.path("image/" + manifest["config"]["digest"].split(":")[1]), encoding="utf-8") as file:
            config = json.load(file)["config"]
        self.assertEqual((config["User"], config["Entrypoint"]), (f"{_USER}:{_USER}", ["convene"]))
        layer = self.path("image/" + manifest["layers"][0]["digest"].split(":")[1])
        names = subprocess.run(["tar", "tf", layer], capture_output=True, text=True, check=True).stdout.splitlines()
        self.assertIn("opt/convene/bin/convene-train", names)


if __name__ == "__main__":
    unittest.main()
