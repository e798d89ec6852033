"""Makes page.cc of the page's files: the style and the scripts go into index.html, and their hashes into the policy.

usage: join.py index.html style.css SCRIPT.js... > page.cc
"""
import base64
import hashlib
import sys


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def source(text):
    """A C++ expression for a text: short pieces, since compilers bound the length of one."""
    pieces = [text[i:i + 4000] for i in range(0, len(text), 4000)]
    return "\n".join(f'R"page({piece})page"' for piece in pieces)


def csp_hash(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


html, style, *scripts = map(read, sys.argv[1:])
script = '"use strict";\n' + "".join(scripts)
assert "</script" not in script and "</style" not in style, "the text would end its own element"
for mark, text in (("/*STYLE*/", style), ("/*SCRIPT*/", script)):
    before, after = html.split(mark)
    html = before + text + after
policy = (f"default-src 'none'; style-src {csp_hash(style)}; script-src {csp_hash(script)}; connect-src 'self'; img-src data:; "
          "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
print(f"""// Made by join.py.
#include "rendezvous/web/page/page.h"

namespace convene::rendezvous {{

const char kPageText[] = {source(html)};
const char kPagePolicy[] = "{policy}";

}}  // namespace convene::rendezvous""")
