#!/usr/bin/python3
"""Bugs, planted one by one: the tests must catch each.

usage: mutations.py daemon|data|kernels|trainer [--seconds N | NAME...]
       mutations.py --check
Copies the tree to a folder under /tmp and runs the tests there, which must pass. Then plants each mutation of the list (all, or those named, or
with --seconds as many as fit, in random order), runs its tests, of which one must fail, prints a line for each, and at last how many of how many
were caught. Exit 1 where one survived or does not build. --check (which tools/check runs) only checks, of all lists, whether each mutation still
applies: its old text stands exactly once in its file.
"""

import sys
from typing import Dict, List

sys.dont_write_bytecode = True
import carried  # noqa: E402  (the line above keeps __pycache__ out of the tree)
import checkpoints  # noqa: E402
import cluster  # noqa: E402
import daemon  # noqa: E402
import data  # noqa: E402
import etcd  # noqa: E402
import experts  # noqa: E402
import generation  # noqa: E402
import hand_over  # noqa: E402
import kernels  # noqa: E402
import lock  # noqa: E402
import optimizers  # noqa: E402
import parts  # noqa: E402
import planting  # noqa: E402
import plans  # noqa: E402
import replicas  # noqa: E402
import reports  # noqa: E402
import reproducible  # noqa: E402
import standbys  # noqa: E402
import trainer  # noqa: E402
import tuning  # noqa: E402
import warm  # noqa: E402
import web  # noqa: E402

LISTS: Dict[str, List[planting.Mutation]] = {
    'daemon': (daemon.MUTATIONS + hand_over.MUTATIONS + web.MUTATIONS + cluster.MUTATIONS + warm.MUTATIONS + lock.MUTATIONS + etcd.MUTATIONS +
               checkpoints.MUTATIONS + standbys.MUTATIONS),
    'data': data.MUTATIONS,
    'kernels': kernels.MUTATIONS,
    'trainer': (trainer.MUTATIONS + generation.MUTATIONS + reports.MUTATIONS + plans.MUTATIONS + tuning.MUTATIONS + reproducible.MUTATIONS +
                replicas.MUTATIONS + carried.MUTATIONS + experts.MUTATIONS + parts.MUTATIONS + optimizers.MUTATIONS),
}


def main() -> int:
    arguments = sys.argv[1:]
    if arguments == ['--check']:
        everything = [mutation for mutations in LISTS.values() for mutation in mutations]
        wrong = planting.check(everything)
        print('\n'.join(wrong) or f'all {len(everything)} mutations apply')
        return 1 if wrong else 0
    if not arguments or arguments[0] not in LISTS:
        print(__doc__)
        return 64
    mutations = LISTS[arguments[0]]
    if arguments[1:2] == ['--seconds'] and len(arguments) == 3:
        return planting.run(mutations, [], float(arguments[2]))
    return planting.run(mutations, arguments[1:])


if __name__ == '__main__':
    sys.exit(main())
