"""Bugs planted in convene.checkpoint, a PyTorch script's state in memory."""

from planting import Mutation

PACKAGE = 'tools/deploy/python/convene'
COPIES = f'{PACKAGE}/checkpoint_copies.py'
CHECKPOINT = f'{PACKAGE}/checkpoint.py'
CHOICE = f'{PACKAGE}/checkpoint_choice.py'
SOURCE = f'{PACKAGE}/checkpoint_source.py'
PIECES = f'{PACKAGE}/checkpoint_pieces.py'
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
    Mutation('any code of a checkpoint is run', PIECES, 'if is_dtype or (module_name', 'if True or (module_name', SEEN),
    Mutation('ranks save different steps', CHECKPOINT, 'if len(set(steps)) > 1 or step', 'if step', SEEN),
    Mutation('a state is lost where two writers remove one file', COPIES, 'with contextlib.suppress(OSError):\n            os.unlink',
             'with contextlib.suppress(PermissionError, IsADirectoryError):\n            os.unlink', CHOSEN),
    Mutation('a state that was kept in memory first is never written', CHECKPOINT, 'stands and (goes_to_disk or to_disk)', 'True', SEEN),
    Mutation('a state that is saved at the end of the interpreter is lost', f'{PACKAGE}/checkpoint_behind.py', '            work(*arguments)\n', '',
             '//tests/packages:checkpoint_behind_test'),
    Mutation('what a death cut short stays on disk', CHECKPOINT, 'self._folder.remove_parts()', 'pass', SEEN),
    Mutation('files are opened for what memory has', CHECKPOINT, 'if has_files and (mine is None', 'if has_files and (True', SEEN),
    Mutation('an older state is loaded than the disk has', CHECKPOINT, 'mine[0][:2] < max(files)', 'False', SEEN),
    Mutation('what memory has damaged is not read from the disk', CHECKPOINT, 'if has_files:', 'if False:', SEEN),
    Mutation('a state that the disk has refused is never written', CHECKPOINT, 'and (self._lost is None or self._lost[0] != step)', '', SEEN),
    Mutation('a script waits for a disk that took nothing, and does not hear of it', CHECKPOINT, 'if self._lost is not None:', 'if False:', SEEN),
    Mutation('a step that one rank has no copy of is not tried again', CHECKPOINT, 'and name not in row[3:5]}', 'and step != self._saved[0]}', SEEN),
    Mutation('a rank says that a copy stands which does not', CHECKPOINT, 'return is_known or all(', 'return is_known or stands or all(', SEEN),
    Mutation('each save waits for two messages', CHECKPOINT, 'return is_known or all(', 'return all(', SEEN),
    Mutation('one rank alone hears of a state that cannot be read', CHECKPOINT, 'step if problem is None else _REFUSED)', 'step)', SEEN),
    Mutation('a copy for another node stays on its own', CHOICE, '(number + (copy + 1) * apart)', '(number + copy * apart)', PLACED),
    Mutation('two copies of one state go to one node', CHOICE, 'apart = len(rows) // (count + 1)', 'apart = len(rows) // 2', PLACED),
    Mutation('a state is loaded of which a part is lost', CHOICE, 'if all(in_memory or on_disk', 'if any(in_memory or on_disk', PLACED),
    Mutation('an older state is loaded than there is', CHOICE, 'difference(refused), reverse=True)', 'difference(refused))', PLACED),
    Mutation("guests write over each other's copies", COPIES, 'self._first - 2 * guest + half', 'self._first - guest + half', CHOSEN),
    Mutation('no copy goes to other nodes', f'{PACKAGE}/checkpoint_peers.py', 'in enumerate(self._routes):', 'in enumerate([]):', SEEN),
    Mutation('a state of another number of ranks is taken unasked', CHOICE, 'if world_size in (None, state[2])', 'if True', PLACED),
    Mutation('a file is read while memory has the copy', CHOICE, 'readers[0] or readers[1]', 'readers[1] or readers[0]', PLACED),
    Mutation("a shard keeps another shard's values, of the same shape", PIECES, '(tuple(shape), tuple(begin)) == (piece.shape, piece.begin)',
             'tuple(shape) == piece.shape', SEEN),
    Mutation('empty shards of two tensors become one', PIECES, 'local.data_ptr() if local.numel() else id(obj)', 'local.data_ptr()', SEEN),
    Mutation('a tensor is laid out by its placements alone', PIECES, 'found = self._at.get(path)', 'found = None', SEEN),
    Mutation('replicas of a piece are read twice', PIECES,
             'pieces.setdefault((found.begin, found.shape), (owner, found))', 'pieces[owner] = (owner, found)', SEEN),
    Mutation('a rank without memory leaves the one that gives alone', SOURCE, "except OSError as error:\n            self._no_memory(f'{size}",
             "except MemoryError as error:\n            self._no_memory(f'{size}", SEEN),
    Mutation('a whole state counts as damaged for lack of memory', SOURCE, 'if self._short else word', 'if False else word', SEEN),
    Mutation('a copy without memory to map it counts as damaged', SOURCE, 'if error.errno == errno.ENOMEM:', 'if False:', SEEN),
    Mutation('files of another number of ranks stay', CHECKPOINT, 'remove_replaced(whole)', 'remove_replaced(None)', SEEN),
    Mutation('files of another number of ranks go before all have a newer state', CHECKPOINT, 'remove_replaced(whole)', 'remove_replaced(name)', SEEN),
    Mutation('a file that cannot be removed keeps states from the disk', COPIES,
             'with contextlib.suppress(OSError):\n            os.unlink', 'with contextlib.suppress(FileNotFoundError):\n            os.unlink', CHOSEN),
    Mutation('files of a later step go', COPIES, 'old < whole and old[1] <= whole[1]', 'old < whole', CHOSEN),
    Mutation('an odd error of one rank leaves the others waiting', CHECKPOINT, 'except Exception as error:', 'except TypeError as error:', SEEN),
    Mutation('the copy that stands is broken when memory is taken', COPIES, "        return mapped\n\n\nclass Folder",
             "        break_copy(mapped)\n        return mapped\n\n\nclass Folder", SEEN),
    Mutation('the second save waits for its memory', CHECKPOINT, 'if self._prepared is None and', 'if False and', SEEN),
    Mutation("a rank counts its own need as each other rank's", COPIES, 'sum(needs[half_to_write(held, keep)] for needs, held in ranks)',
             'len(ranks) * max(needs[half_to_write(held, keep)] for needs, held in ranks)', CHOSEN),
    Mutation("another folder's state is loaded", CHECKPOINT, '() if is_stage else', '() if False else', SEEN),
    Mutation('who has looked at a state is not marked', CHECKPOINT, 'self._memory.mark(', '(lambda *_: None)(', SEEN),
    Mutation('two states take one memory in turns', CHECKPOINT, 'if self._saves_seen != Checkpoint._saves:', 'if False:', SEEN),
    Mutation('ranks that a worker made write over each other', CHOICE, 'if memory is not None and len(', 'if False and len(', PLACED),
    Mutation('a folder that is gone is never written again', COPIES, 'for entry in self._entries() if whole',
             'for entry in os.listdir(self._path) if whole', CHOSEN),
    Mutation('a state that holds itself is looked into for ever', PIECES, ' and id(state) not in within', '', SEEN),
    Mutation('a damaged piece is left out in silence', SOURCE, "if lost:", "if False:", SEEN),
    Mutation("a copy for another node that was cut short counts", f'{PACKAGE}/checkpoint_peers.py', 'self._guests[guest][half] = None',
             'self._guests[guest][half] = (1 << 40, 0)', SEEN),
]
