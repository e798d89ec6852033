"""Prints a C++ source with the text of a file: embed.py FILE."""

import sys

with open(sys.argv[1], encoding='utf-8') as source:
    text = source.read()
assert ')PYTHON"' not in text
# A literal has a limit, so the text is cut into several.
pieces = [text[at:at + 8000] for at in range(0, len(text), 8000)]
print('#include "agent/warm/warm_script.h"\n\nnamespace convene::agent {\n\nconst char kWarmScript[] =')
print('\n'.join(f'R"PYTHON({piece})PYTHON"' for piece in pieces) + ';\n\n}  // namespace convene::agent')
