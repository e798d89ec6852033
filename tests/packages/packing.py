"""The commands of tools/deploy, for tests: they pack programs that are built already."""

import importlib.machinery
import importlib.util
import os
import sys

from tests.support.convene_testing import find_program

DEPLOY = os.path.dirname(find_program("tools/deploy/building.py"))
sys.path.insert(0, DEPLOY)
import packaging_rules  # noqa: E402  (it lies in the folder that the line above names)

# Two minutes of compressing say nothing that a test wants to know.
os.environ["DPKG_DEB_COMPRESSOR_TYPE"] = "gzip"
os.environ["DPKG_DEB_COMPRESSOR_LEVEL"] = "1"

VERSION = packaging_rules.Version("0.1.0", "0123456789abcdef", 1700000000, 321, changed=False, released=False)


def load_command(name):
    """A command of tools/deploy as a module; its name has no ending."""
    loader = importlib.machinery.SourceFileLoader(name, os.path.join(DEPLOY, name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def programs():
    return {"convene": find_program("launcher/convene"), "convene-train": find_program("worker_runtime/trainer/convene-train")}
