"""Bugs planted in convene.checkpoint, a PyTorch script's state in memory."""

from planting import Mutation

PACKAGE = 'tools/deploy/python/convene'
COPIES = f'{PACKAGE}/checkpoint_copies.py'
CHECKPOINT = f'{PACKAGE}/checkpoint.py'
CHOICE = f'{PACKAGE}/checkpoint_choice.py'
CHOSEN = '//tests/packages:checkpoint_copies_test'
PLACED = '//tests/packages:checkpoint_choice_test'
SEEN = '//tests/e2e:torch_checkpoint_test'

MUTATIONS = [
    Mutation('a script loads a step that one rank has', COPIES, 'set.intersection(*map(set, held))', 'set.union(*map(set, held))', CHOSEN),
    Mutation('the half that all ranks have is written over', COPIES, 'held[half] in keep,', 'held[half] not in keep,', CHOSEN),
    Mutation("a script's copy counts while it is written over", COPIES, '        break_copy(mapped)\n', '', CHOSEN),
    Mutation('a changed file is read as a state', COPIES, 'if place.is_file and os.pread', 'if False and os.pread', CHOSEN),
    Mutation('the file that all ranks have is removed', COPIES, 'if name not in keep]', ']', CHOSEN),
    Mutation('the limit of a control group is not seen', COPIES, 'least = min(least, int(limit', 'least = max(least, int(limit', CHOSEN),
    Mutation('any code of a checkpoint is run', CHECKPOINT, 'if is_dtype or (module_name', 'if True or (module_name', SEEN),
    Mutation('ranks save different steps', CHECKPOINT, 'if len(set(steps)) > 1 or step', 'if step', SEEN),
    Mutation('a state is lost where two writers remove one file', COPIES, 'contextlib.suppress(FileNotFoundError)', 'contextlib.suppress(KeyError)', CHOSEN),
    Mutation('a state that was kept in memory first is never written', CHECKPOINT, 'goes_to_disk or to_disk)', 'True)', SEEN),
    Mutation('one rank alone hears of a state that cannot be read', CHECKPOINT, 'step if problem is None else _REFUSED)', 'step)', SEEN),
    Mutation('a copy for another node stays on its own', CHOICE, '(number + (copy + 1) * apart)', '(number + copy * apart)', PLACED),
    Mutation('two copies of one state go to one node', CHOICE, 'apart = len(rows) // (count + 1)', 'apart = len(rows) // 2', PLACED),
    Mutation('a state is loaded of which a part is lost', CHOICE, 'if all((name, owner) in places', 'if any((name, owner) in places', PLACED),
    Mutation('an older state is loaded than there is', CHOICE, 'sorted(names, reverse=True)', 'sorted(names)', PLACED),
    Mutation("guests write over each other's copies", COPIES, 'self._first - 2 * guest + half', 'self._first - guest + half', CHOSEN),
    Mutation('no copy goes to other nodes', f'{PACKAGE}/checkpoint_peers.py', 'in enumerate(self._routes):', 'in enumerate([]):', SEEN),
]
