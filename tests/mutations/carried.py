"""Bugs planted in what checkpoints carry: the tokenizer of a run, experts, adapters whose base has moved, what its run began with; and in who may write it."""

from planting import Mutation

RUNTIME = 'worker_runtime'
KEPT = f'{RUNTIME}/checkpoint/kept_files.cc'
FORMAT = '//worker_runtime/checkpoint:checkpoint_test'
FAULTS = '//worker_runtime/checkpoint:checkpoint_failure_test'
BITS = '//worker_runtime/checkpointing:checkpoint_bits_test'
SEEN = '//tests/e2e:checkpoint_tokenizer_test'
RESTORED = '//worker_runtime/checkpointing:save_restore_test'
ONE_WRITER = '//worker_runtime/checkpointing:one_writer_test'
LOCKED = '//worker_runtime/checkpoint:directory_lock_test'

MUTATIONS = [
    Mutation("a compact vocabulary's checkpoint ends where the whole one's does", f'{RUNTIME}/trainer/run_tokenizer.cc',
             '  std::erase_if(*files, [](const NamedFile& file) { return file.name == kGenerationConfig; });\n', '', SEEN),
    Mutation('other programs get the whole tokenizer of a compact vocabulary', f'{RUNTIME}/weights/tokenizer_files.cc', 'if (is_compact) files.clear();', '',
             SEEN),
    Mutation("damage of a tokenizer's file spreads to later checkpoints", KEPT,
             'if (!twin.empty() && Holds(other, file)) {', 'if (!twin.empty()) {', FORMAT, 'checkpoint'),
    Mutation('every checkpoint copies the tokenizer', KEPT, 'if (link(other.c_str(), path.c_str()) == 0) continue;', '', FORMAT, 'checkpoint'),
    Mutation("a new attempt writes over the tokenizer of a published step", KEPT,
             'absl::Hex(XXH3_64bits(all.data(), all.size()), absl::kZeroPad16)', '"files"', FAULTS, 'checkpoint'),
    Mutation("a tokenizer's file is taken as it is", f'{RUNTIME}/checkpoint/checkpoint_reader.cc',
             '  CONVENE_RETURN_IF_ERROR(CheckKeptFiles(path_, tokenizer_files()));\n', '', FORMAT, 'checkpoint'),
    Mutation("a failed attempt takes the published step's tokenizer along", f'{RUNTIME}/checkpoint/step_directory.cc',
             'if (!manifest->tokenizer_files.empty())', 'if (false)', FORMAT, 'checkpoint'),
    Mutation('a checkpoint of another tokenizer goes on without a word', f'{RUNTIME}/checkpointing/save_restore.cc',
             'a.fingerprint != b.fingerprint', 'false', SEEN, 'checkpoint'),
    Mutation('a chat template from elsewhere stays there', f'{RUNTIME}/trainer/run_tokenizer.cc',
             'if (!options.chat_template.empty() && options.chat_template != path) {', 'if (false) {', SEEN, 'checkpoint'),
    Mutation('bytes stand for tokens that nobody knows', f'{RUNTIME}/trainer/run_tokenizer.cc',
             'options.tokenizer_path != kByteTokenizer', '!options.tokenizer_path.empty()', SEEN, 'checkpoint'),
    Mutation("a damaged tokenizer shuts a checkpoint's weights", f'{RUNTIME}/weights/open_checkpoint.cc',
             '  if (!tokenizer.ok()) {', '  if (!tokenizer.ok()) return tokenizer.status();\n  if (!tokenizer.ok()) {',
             '//worker_runtime/weights:open_weights_test', 'checkpoint'),
    Mutation("adapters whose tokenizer is damaged take their base's", f'{RUNTIME}/weights/open_weights.cc',
             'if (!tokenizer.ok() || !tokenizer->empty())', 'if (tokenizer.ok() && !tokenizer->empty())', SEEN, 'checkpoint'),
    Mutation('a run begins as bytes where its tokenizer is damaged', f'{RUNTIME}/options/load_first_weights.cc',
             'if (!tokenizer.ok()) return Annotate(tokenizer.status(), "init_from");', 'if (!tokenizer.ok()) return 0;', SEEN, 'checkpoint'),
    Mutation('adapters are added to the weights that lie where their base lay', f'{RUNTIME}/weights/open_weights.cc',
             'moved.empty() ? adapter.base : moved', 'moved.empty() ? adapter.base : adapter.base', '//worker_runtime/weights:adapter_test', 'checkpoint'),
    Mutation('experts that were restored are not what the passes read', f'{RUNTIME}/shard/rank_stores.cc',
             'for (ShardedOptimizer* const optimizer : all_) CONVENE_RETURN_IF_ERROR(optimizer->FinishRead());',
             'CONVENE_RETURN_IF_ERROR(all_.front()->FinishRead());', BITS, 'experts'),
    Mutation('control characters of an answer stand in JSON as they are', 'tools/base/json_buffer.h',
             'struct JsonBuffer : rapidjson::StringBuffer {};', 'using JsonBuffer = rapidjson::StringBuffer;', '//tools/base:json_buffer_test'),
    Mutation('a checkpoint has no experts', f'{RUNTIME}/shard/rank_stores.cc',
             'return Joined<PieceToWrite>(all_, [](ShardedOptimizer& own) { return own.PiecesToWrite(); });',
             'return all_.front()->PiecesToWrite();', BITS, 'experts'),
    Mutation("copies in memory have no experts", f'{RUNTIME}/shard/rank_stores.cc',
             'return Joined<PieceToWrite>(all_, [](ShardedOptimizer& own) { return own.PiecesInPlace(); });',
             'return all_.front()->PiecesInPlace();', '//worker_runtime/replicas:engines_test', 'experts'),
    Mutation('a restart waits for a lost machine for ever', f'{RUNTIME}/checkpoint/directory_lock.cc',
             'if (!is_predecessor) return', 'return', LOCKED, 'checkpoint'),
    Mutation('jobs that only share the default name take a directory from each other', f'{RUNTIME}/checkpointing/save_restore.cc',
             'job.name != kNobodysName', 'true', ONE_WRITER, 'checkpoint'),
    Mutation('a lock on a file that was replaced counts', f'{RUNTIME}/checkpoint/directory_lock.cc',
             'if (there.ok() && *there == content)', 'if (there.ok())', LOCKED, 'checkpoint'),
    Mutation('a writer that stood still publishes', f'{RUNTIME}/checkpoint/publish.cc',
             '  if (lock != nullptr) CONVENE_RETURN_IF_ERROR(lock->Check());\n', '', ONE_WRITER, 'checkpoint'),
    Mutation('a writer that stood still removes what its successor writes', f'{RUNTIME}/checkpointing/save_restore.cc',
             '!published.ok()) && check().ok()', '!published.ok())', ONE_WRITER, 'checkpoint'),
    Mutation('a run that has lost its directory tries again', f'{RUNTIME}/checkpointing/saver.cc',
             'end_ = absl::IsAborted(verdict) ? verdict : failures.Record(verdict);', 'end_ = failures.Record(verdict);',
             '//worker_runtime/checkpointing:saver_test', 'checkpoint'),
    Mutation('a restart goes on from whatever lies in the directory', f'{RUNTIME}/checkpoint/publish.cc',
             'reader->info().began_with != run->began_with', 'false', RESTORED, 'checkpoint'),
    Mutation("a run writes over another run's checkpoints", f'{RUNTIME}/checkpointing/choose_checkpoint.cc',
             'choice.status = RefuseOthers(options, choice.step);', '', RESTORED, 'checkpoint'),
    Mutation("a run's checkpoints do not say what it began with", f'{RUNTIME}/trainer/training_loop.cc',
             '          .began_with = began_with_,\n', '', '//tests/e2e:stop_signals_test', 'checkpoint'),
    Mutation('a GPU cannot read the copies in memory', f'{RUNTIME}/trainer/setup.cc',
             ' ||\n          options.replicate_every > 0);', ');', f'//{RUNTIME}/trainer:setup_test', 'checkpoint'),
    Mutation('nobody is told that the base may be removed', f'{RUNTIME}/trainer/first_weights.cc',
             '  if (writer.empty()) return;\n', '  if (!writer.empty()) return;\n', f'//{RUNTIME}/trainer:first_weights_test', 'checkpoint'),
]
