"""Prints a C++ source with the text of a file: embed.py FILE HEADER NAMESPACE NAME. HEADER declares `extern const char NAME[]`."""

import sys

path, header, namespace, name = sys.argv[1:]
with open(path, encoding='utf-8') as source:
    text = source.read()
assert ')TEXT"' not in text
# A literal has a limit, so the text is cut into several.
pieces = [text[at:at + 8000] for at in range(0, len(text), 8000)]
print(f'#include "{header}"\n\nnamespace {namespace} {{\n\nconst char {name}[] =')
print('\n'.join(f'R"TEXT({piece})TEXT"' for piece in pieces) + f';\n\n}}  // namespace {namespace}')
