"""Becomes the program named after its parent's process id, which then gets SIGTERM when that parent ends, however it ends.

A program of its own, because code between fork and exec of a process with threads (a notebook) may hang.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):  # else it had ended before
    os.execv(sys.argv[2], sys.argv[3:])
