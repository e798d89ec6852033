#!/usr/bin/python3
"""The .deb and the wheel of this checkout, made twice, installed in bare root file systems, and used there: launched, trained, called.

usage: tests/packages/bare_roots.py     (tools/nightly packages runs it; it needs root, and Debian's mirror)
The root file system is debootstrap's minbase, kept in ~/.cache/convene/minbase. Exit status: 0 all worked; 1 something did not; 69 no root file
system can be made here.
"""

import glob
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.path.expanduser("~/.cache/convene")
MINBASE = os.path.join(CACHE, "minbase")
MIRROR = "http://deb.debian.org/debian"
LIMIT_S = 900

LAUNCH = """
import os, convene
def double(x): return 2 * x + int(os.environ['RANK'])
if __name__ == '__main__':
    assert convene.elastic_launch(convene.LaunchConfig(1, 1, 2), double)(20) == {0: 40, 1: 41}
    print('elastic_launch', convene.__version__)
"""
SCRIPT = "import os, sys; print('rank', os.environ['RANK'], 'under', sys.executable)\n"
# The first steps of a person who has installed either package. The text is long enough for three steps of training.
USE = """
set -eu
cd /tmp
convene --version
convene run --standalone --nproc-per-node 2 sh -c 'echo rank $RANK of $WORLD_SIZE'
i=0; while [ $i -lt 3000 ]; do echo "the node rank of a worker group waits while other agents join and leave $i"; i=$((i + 1)); done > text.txt
convene run --standalone --nproc-per-node 2 convene-train --model llama-tiny --data text.txt --steps 3 --global-batch-size 4 \\
    --micro-batch-size 1 --sequence-length 32 --checkpoint-dir /tmp/checkpoints
"""


class Failure(Exception):
    """Something did not work; the text says what."""


def run(*command: str) -> str:
    print("$", " ".join(command)[:200], flush=True)
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
    print(done.stdout[-6000:], flush=True)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)[:200]} ended with {done.returncode}")
    return done.stdout


def make_minbase() -> None:
    if os.path.isdir(MINBASE):
        return
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        print("no root file system: this needs root and debootstrap (tools/install_packages deploy)")
        sys.exit(69)
    run("debootstrap", "--variant=minbase", "bookworm", MINBASE + ".part", MIRROR)
    os.rename(MINBASE + ".part", MINBASE)


def inside(root: str, script: str) -> str:
    """Runs a script of the shell in that root file system, with its own /proc, /dev/shm and process ids."""
    mounts = (f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && "
              f"exec chroot {root} env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LC_ALL=C.UTF-8 sh -c \"$1\"")
    return run("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", mounts, "sh", script)


def digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def make_twice(command: str, pattern: str, work: str) -> str:
    """The package; the same commit must give the same bytes."""
    made = []
    for folder in ("first", "second"):
        target = os.path.join(work, command, folder)
        os.makedirs(target)
        run(os.path.join(ROOT, "tools/deploy", command), "--without-cuda", "--output-dir", target)
        made += glob.glob(os.path.join(target, pattern))
    if digest(made[0]) != digest(made[1]):
        raise Failure(f"tools/deploy/{command} made two different files of one commit")
    return made[0]


def expect(text: str, *words: str) -> None:
    missing = [word for word in words if word not in text]
    if missing:
        raise Failure(f"the output lacks {missing}")


def try_deb(package: str, root: str) -> None:
    """apt brings what the package depends on, as on any machine."""
    shutil.copy(package, f"{root}/tmp/convene.deb")
    shutil.copy("/etc/resolv.conf", f"{root}/etc/resolv.conf")
    inside(root, "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends /tmp/convene.deb")
    expect(inside(root, USE), "convene 0.", "rank 0 of 2", "rank 1 of 2", "step 3/3")
    expect(inside(root, "convene-torchrun --help; convened --version; ls -l /lib/systemd/system/convened.service; dpkg -V convene"),
           "--rdzv-endpoint", "convened 0.")
    inside(root, "apt-get -q purge -y convene && ! command -v convene && ! [ -e /usr/lib/convene ]")


def try_wheel(package: str, root: str) -> None:
    """A virtual environment without a network; of the machine's own libraries there are hardly any."""
    name = os.path.basename(package)
    shutil.copy(package, f"{root}/tmp/{name}")
    shutil.copy("/etc/resolv.conf", f"{root}/etc/resolv.conf")
    inside(root, "apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends python3-venv")
    for file, text in (("launch.py", LAUNCH), ("script.py", SCRIPT)):
        with open(f"{root}/tmp/{file}", "w", encoding="utf-8") as out:
            out.write(text)
    inside(root, f"python3 -m venv /venv && /venv/bin/pip install --no-index --disable-pip-version-check '/tmp/{name}'")
    expect(inside(root, "PATH=/venv/bin:$PATH\n" + USE), "convene 0.", "rank 0 of 2", "rank 1 of 2", "step 3/3")
    expect(inside(root, "cd /tmp && /venv/bin/python launch.py && /venv/bin/python -m convene.run --standalone --nproc-per-node 2 script.py && "
                        "/venv/bin/convene-torchrun --standalone --nproc-per-node 1 script.py"),
           "elastic_launch 0.", "rank 1 under /venv/bin/python")
    inside(root, "/venv/bin/pip uninstall -y convene && ! [ -e /venv/bin/convene ] && ! [ -e /venv/libexec/convene/convene-train ]")


def main() -> int:
    make_minbase()
    with tempfile.TemporaryDirectory(prefix="bare.", dir=CACHE) as work:
        try:
            for command, pattern, use in (("deb", "*.deb", try_deb), ("wheel", "*.whl", try_wheel)):
                package = make_twice(command, pattern, work)
                root = os.path.join(work, f"{command}.root")
                run("cp", "-a", MINBASE, root)
                use(package, root)
                shutil.rmtree(root)
                print(f"{command}: {os.path.basename(package)}: {os.path.getsize(package) / 1e6:.1f} MB, installed and used", flush=True)
        except (Failure, subprocess.TimeoutExpired, OSError) as failure:
            print(f"{type(failure).__name__}: {failure}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
