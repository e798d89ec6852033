"""The .deb and the wheel of this build: what is in them, and their programs at work where they are unpacked."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

from tests.packages import packing
from tests.support.convene_testing import ConveneTestCase

OUTPUT = tempfile.mkdtemp(prefix="packages.", dir=os.environ.get("TEST_TMPDIR"))


def output_of(*command, **environment):
    """Of a program that sees nothing of this test: neither Bazel's PYTHONPATH nor the folder that the programs were built in."""
    environment = {"PATH": os.environ["PATH"], "HOME": OUTPUT, **environment}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=OUTPUT, timeout=60)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def missing_tools():
    tools = [tool for tool in ("patchelf", "dpkg-shlibdeps") if shutil.which(tool) is None]
    if subprocess.run([sys.executable, "-m", "pip", "--version"], check=False, capture_output=True).returncode != 0:
        tools.append("pip")
    return tools


class DebTest(ConveneTestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.package = packing.load_command("deb").make(packing.programs(), packing.VERSION, OUTPUT)
        cls.root = os.path.join(OUTPUT, "root")
        # As `dpkg -i` does it, but for the scripts, of which this package has none.
        output_of("dpkg-deb", "--extract", cls.package, cls.root)

    def test_it_says_what_it_is_and_needs(self):
        self.assertEqual(os.path.basename(self.package), "convene_0.1.0~dev321+g0123456789ab_amd64.deb")
        info = output_of("dpkg-deb", "--info", self.package)
        self.assertIn("Version: 0.1.0~dev321+g0123456789ab\n", info)
        self.assertRegex(info, r"Depends: .*libc6 \(>= 2\.3\d\).*libgomp1.*libibverbs1.*libstdc\+\+6 \(>= 12\)")
        self.assertNotRegex(info, "Depends: .*(libspdlog|libdnnl|libgloo|libfmt)")

    def test_root_owns_its_files_and_none_of_them_hides_pytorchs(self):
        listed = output_of("dpkg-deb", "--contents", self.package).splitlines()
        self.assertTrue(all(" root/root " in line for line in listed))
        names = {line.split()[5].lstrip(".") for line in listed}
        self.assertLessEqual({"/usr/bin/convene", "/usr/bin/convened", "/usr/bin/convene-train", "/usr/bin/convene-torchrun",
                              "/usr/lib/convene/libgloo.so.0", "/usr/share/man/man1/convene.1.gz", "/lib/systemd/system/convened.service",
                              "/usr/share/doc/convene/copyright"}, names)
        self.assertFalse([name for name in names if name.endswith(("/torchrun", "libstdc++.so.6", "libibverbs.so.1"))])

    def test_a_trainer_for_gpus_depends_on_the_same_packages(self):
        deb, programs = packing.load_command("deb"), packing.programs()
        trainer = shutil.copy(programs["convene-train"], self.path("convene-train"))
        os.chmod(trainer, 0o755)
        output_of("patchelf", "--add-needed", "libcudnn.so.9", trainer)
        deb.copy_programs(self.path("root"), {**programs, "convene-train": trainer})
        os.mkdir(self.path("work"))
        info = output_of("dpkg-deb", "--info", self.package)
        self.assertIn(f"Depends: {deb.depends(self.path('root'), self.path('work'))}\n", info)

    def test_its_programs_run_below_another_root_with_the_libraries_there(self):
        bin = f"{self.root}/usr/bin"
        self.assertEqual(output_of(f"{bin}/convene", "--version"), "convene 0.1.0\n")
        self.assertEqual(output_of(f"{bin}/convened", "--version"), "convened 0.1.0\n")
        self.assertEqual(output_of(f"{bin}/convene-torchrun", "--version"), "torchrun 0.1.0\n")
        self.assertIn("--tp-size", output_of(f"{bin}/convene-train", "--help"))
        self.assertIn(f"{os.path.realpath(self.root)}/usr/", os.path.realpath(
            next(line.split()[2] for line in output_of("ldd", f"{bin}/convene-train").splitlines() if "libdnnl" in line)))
        output_of(f"{bin}/convene", "run", "--standalone", "--nproc-per-node", "2", "true")


class WheelTest(ConveneTestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        wheel = packing.load_command("wheel")
        wheel.COMPRESSION = 1
        cls.package = wheel.make(packing.programs(), packing.VERSION, OUTPUT)
        cls.target = os.path.join(OUTPUT, "target")
        output_of(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", "--target", cls.target, cls.package)

    def python(self, *words):
        return output_of(sys.executable, *words, PYTHONPATH=self.target)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def test_it_carries_all_that_the_manylinux_tag_does_not_promise(self):
        self.assertRegex(os.path.basename(self.package), r"^convene-0\.1\.0\.dev321\+g0123456789ab-py3-none-manylinux_2_35_x86_64\.whl$")
        with zipfile.ZipFile(self.package) as archive:
            names = archive.namelist()
            metadata = archive.read("convene-0.1.0.dev321+g0123456789ab.dist-info/METADATA").decode()
        self.assertTrue(names[-1].endswith("/RECORD"))
        self.assertIn("\nVersion: 0.1.0.dev321+g0123456789ab\n", metadata)
        self.assertTrue([name for name in names if name.endswith("libexec/convene/lib/libgloo.so.0")])
        self.assertFalse([name for name in names if "libstdc++" in name or "libc.so" in name])

    def test_its_programs_start_with_its_own_libraries(self):
        self.assertEqual(output_of(f"{self.target}/bin/convene", "--version"), "convene 0.1.0\n")
        self.assertEqual(output_of(f"{self.target}/bin/convene-torchrun", "--version"), "torchrun 0.1.0\n")
        self.assertIn("--tp-size", output_of(f"{self.target}/bin/convene-train", "--help"))
        loaded = output_of("ldd", f"{self.target}/bin/convene")
        self.assertIn(f"{os.path.realpath(self.target)}/libexec/convene/lib/libspdlog.so.1.10",
                      [os.path.realpath(line.split()[2]) for line in loaded.splitlines() if "libspdlog" in line])

    def test_the_trainer_finds_cudas_libraries_in_the_packages_of_its_environment(self):
        nvidia = os.path.join(self.target, "nvidia/nccl/lib")
        os.makedirs(nvidia, exist_ok=True)
        trainer = os.path.join(self.target, "libexec/convene/convene-train")
        os.rename(trainer, trainer + ".real")
        self.addCleanup(os.rename, trainer + ".real", trainer)
        with open(trainer, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\necho \"$LD_LIBRARY_PATH\"\n")
        os.chmod(trainer, 0o755)
        path = output_of(f"{self.target}/bin/convene-train", LD_LIBRARY_PATH="/mine").strip().split(":")
        self.assertEqual((path[0], os.path.realpath(path[1])), ("/mine", os.path.realpath(nvidia)))

    def test_python_m_convene_run_is_torchrun_under_this_python(self):
        script = self.write("script.py", "import os, sys; print('rank', os.environ['RANK'], sys.executable, sys.argv[1:])")
        text = self.python("-m", "convene.run", "--standalone", "--nproc-per-node", "2", script, "--lr", "1")
        for rank in (0, 1):
            self.assertIn(f"rank {rank} {sys.executable} ['--lr', '1']", text)

    def test_a_function_runs_on_each_worker(self):
        script = self.write("launch.py", "import os, convene\n"
                            "def square(x): return x * x + int(os.environ['RANK'])\n"
                            "if __name__ == '__main__':\n"
                            "    print(convene.__version__, convene.elastic_launch(convene.LaunchConfig(1, 1, 2), square)(5))\n")
        self.assertIn("0.1.0.dev321+g0123456789ab {0: 25, 1: 26}", self.python(script))


if __name__ == "__main__":
    missing = missing_tools()
    if missing:
        print(f"SKIPPED: no {', '.join(missing)}: tools/install_packages check")
    else:
        try:
            unittest.main()
        finally:
            shutil.rmtree(OUTPUT, ignore_errors=True)
