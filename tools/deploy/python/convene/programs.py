"""Where convene's programs are."""

import os


def launcher() -> str:
    """The path of the program `convene`: in the bin of the prefix that this package was installed below, or beside it (pip's --target).

    FileNotFoundError: there is none.
    """
    package = os.path.dirname(os.path.abspath(__file__))
    folder = package
    # PREFIX/lib/python3.N/site-packages/convene is four levels below PREFIX.
    for _ in range(4):
        folder = os.path.dirname(folder)
        program = os.path.join(folder, 'bin', 'convene')
        if os.access(program, os.X_OK) and os.path.isfile(program):
            return program
    raise FileNotFoundError(f'the Python package {package} is here, but no program bin/convene above it: install it again, '
                            'with `pip install --force-reinstall convene`')
