"""Bugs planted in the copies of shards in the memory of nodes."""

from planting import Mutation

RUNTIME = 'worker_runtime'
REPLICAS = f'{RUNTIME}/replicas'
CHOSEN = '//worker_runtime/replicas:choose_copies_test'
REPLICATED = '//worker_runtime/replicas:peer_replicas_test'

MUTATIONS = [
    Mutation('a state is chosen of which a shard is missing', f'{REPLICAS}/choose_copies.cc',
             'if (is_whole) return', 'return', CHOSEN, 'replicas'),
    Mutation('a rank whose shard others have keeps no copy', f'{RUNTIME}/shard/sharded_optimizer.cc',
             '  CONVENE_RETURN_IF_ERROR(AwaitState(/*fills_it=*/false));\n  return Pieces<',
             '  CONVENE_RETURN_IF_ERROR(AwaitState(/*fills_it=*/false));\n'
             '  if (!store_.speaks_for_shard()) return std::vector<PieceToWrite>();\n  return Pieces<',
             '//worker_runtime/replicas:engines_test', 'replicas'),
    Mutation("a shard's copy lies on a node that has it by itself", f'{REPLICAS}/choose_copies.cc',
             'if (nodes[shard].count(node.number) == 0) sender.by_worth.push_back(&node);', 'sender.by_worth.push_back(&node);', CHOSEN,
             'replicas'),
    Mutation('all copies of a shard stay behind one switch', f'{REPLICAS}/choose_copies.cc',
             'if (sender.wanted > 0 || !sender.leaves_label) continue;', 'continue;', CHOSEN, 'replicas'),
    Mutation('few nodes behind the other switch keep a copy of all', f'{REPLICAS}/choose_copies.cc',
             'if (at >= replicas * ranks) continue;', '', CHOSEN, 'replicas'),
    Mutation('weights that several shards have are read twice', f'{REPLICAS}/memory_state.cc',
             'if (!known->insert(NameOfPiece(piece)).second) continue;', '(void)known;', '//worker_runtime/replicas:engines_test', 'replicas'),
    Mutation('a state in memory that is not whole is passed over in silence', f'{REPLICAS}/peer_replicas.cc',
             '!missing.empty() && world_.rank() == 0', 'false', '//tests/e2e:replicas_test', 'replicas'),
    Mutation('a copy counts while it is written over', f'{REPLICAS}/node_memory.cc',
             'SealOf(window).store(0, std::memory_order_relaxed);', '', '//worker_runtime/replicas:node_memory_test', 'replicas'),
    Mutation('the older copy is written over before the newer one stands everywhere', f'{REPLICAS}/peer_replicas.cc',
             'CONVENE_RETURN_IF_ERROR(world_.Barrier(stream));', '', REPLICATED, 'replicas'),
    Mutation('the copies that a job has restored from are given back at once', f'{REPLICAS}/peer_replicas.cc',
             'if (is_from_memory && found', 'if (false && found', REPLICATED, 'replicas'),
    Mutation("a copy's bytes are not checked", f'{REPLICAS}/memory_state.cc',
             'if (XXH3_64bits(data, elements.size_bytes()) == place.checksum) return elements;', 'return elements;', REPLICATED, 'replicas'),
    Mutation('a state is refused where equal shards were rounded otherwise', f'{REPLICAS}/memory_state.cc',
             'return TellsIndex(state_, shard);', 'return NearestCopy(state_.copies[shard], world_.rank(), node_);',
             '//worker_runtime/replicas:engines_test', 'replicas'),
    Mutation('an older state in memory goes before a newer checkpoint', f'{RUNTIME}/checkpointing/save_restore.cc',
             'state != nullptr && state->info().step >= choice.step;', 'state != nullptr;', '//worker_runtime/replicas:engines_test', 'replicas'),
    Mutation('where no checkpoint opens, the states in memory are not asked', f'{RUNTIME}/checkpointing/save_restore.cc',
             'state != nullptr && has_none', 'false && has_none', '//worker_runtime/checkpointing:save_restore_test', 'replicas'),
    Mutation('memory that is planned and not used yet counts as free', f'{REPLICAS}/peer_replicas.cc',
             'if (here(rank)) available -= sizes[rank].promised_bytes;', '', REPLICATED, 'replicas'),
    Mutation('stacks of threads count as planned memory', f'{REPLICAS}/untouched_memory.cc',
             'counts && absl::c_linear_search(words, "hg")', 'counts', '//worker_runtime/replicas:untouched_memory_test', 'replicas'),
    Mutation('a job that may grow is refused while it is small', f'{REPLICAS}/peer_replicas.cc',
             'std::max(static_cast<int>(nodes.size()), options_.max_nodes) - 1', 'static_cast<int>(nodes.size()) - 1', REPLICATED, 'replicas'),
]
