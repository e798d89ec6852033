"""`python -m convene.run` in place of `python -m torch.distributed.run`: this process becomes convene under the name torchrun."""

import os
import sys

from . import programs


def main() -> None:
    # The workers of a virtual environment's Python run under that Python, as under torch.distributed.run.
    os.environ.setdefault('PYTHON_EXEC', sys.executable)
    os.execv(programs.launcher(), ['torchrun', *sys.argv[1:]])


if __name__ == '__main__':
    main()
