"""Bugs planted in convene.checkpoint, a PyTorch script's state in memory."""

from planting import Mutation

PACKAGE = 'tools/deploy/python/convene'
COPIES = f'{PACKAGE}/checkpoint_copies.py'
CHECKPOINT = f'{PACKAGE}/checkpoint.py'
CHOSEN = '//tests/packages:checkpoint_copies_test'
SEEN = '//tests/e2e:torch_checkpoint_test'

MUTATIONS = [
    Mutation('a script loads a step that one rank has', COPIES, 'set.intersection(*map(set, held))', 'set.union(*map(set, held))', CHOSEN),
    Mutation('the half that all ranks have is written over', COPIES, 'held[half] in keep,', 'held[half] not in keep,', CHOSEN),
    Mutation("a script's copy counts while it is written over", COPIES, '        break_copy(mapped)\n', '', CHOSEN),
    Mutation('a changed file is read as a state', COPIES, 'if _FILE.search(place.path) and', 'if False and', CHOSEN),
    Mutation('the file that all ranks have is removed', COPIES, 'if name not in keep]', ']', CHOSEN),
    Mutation('the limit of a control group is not seen', COPIES, 'least = min(least, int(limit', 'least = max(least, int(limit', CHOSEN),
    Mutation('any code of a checkpoint is run', CHECKPOINT, 'if is_dtype or (module_name', 'if True or (module_name', SEEN),
    Mutation('ranks save different steps', CHECKPOINT, 'if len(set(steps)) > 1 or step', 'if step', SEEN),
    Mutation('a state is lost where two writers remove one file', COPIES, 'contextlib.suppress(FileNotFoundError)', 'contextlib.suppress(KeyError)', CHOSEN),
    Mutation('a state that was kept in memory first is never written', CHECKPOINT, 'goes_to_disk or to_disk)', 'True)', SEEN),
    Mutation('one rank alone hears of a state that cannot be read', CHECKPOINT, 'step if problem is None else _REFUSED)', 'step)', SEEN),
]
