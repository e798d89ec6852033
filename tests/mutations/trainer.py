"""Bugs planted in the trainer. Each says the class of bugs that it is one of: a number of what users of other trainers found, or an axis.

 1 a composition of axes is silently wrong: norm weights not summed over tp, masked tokens counted (Megatron-LM #7452)
 2 the final norm's gradient differs between tp ranks with split rows (Megatron-LM #1446)
 3 the loss is scaled by something else than the global count (Megatron-LM #673)
 4 gradients are doubled from one microbatch to the next (Megatron-LM #6660)
 5 the gradient norm counts too much or too little (Megatron-LM #5916, #2263)
 6 one process and tp ranks lose differently (Megatron-LM #1736)
 7 a collective ends after a timeout and nobody says why (Megatron-LM #735, #1207)
 8 a pipeline of several chunks a rank stands still (Megatron-LM #5240)
13 another layout starts or counts differently (torchtitan #1750, #771)
17 ZeRO stages or bucket sizes change the training (DeepSpeed #966, #6351)
18 communication beside arithmetic races with it (DeepSpeed #5545, #8061)
23 norms' gradients are not summed, a pipeline wipes what it accumulated (gpt-neox #1259, Automodel #3530)
"""

from planting import Mutation

RUNTIME = 'worker_runtime'
STORE = f'{RUNTIME}/shard/bucket_store.cc'
OPTIMIZER = f'{RUNTIME}/shard/sharded_optimizer.cc'
LINEAR = f'{RUNTIME}/parallel/linear.cc'
VOCABULARY = f'{RUNTIME}/parallel/vocabulary.cc'
PARAMETERS = f'{RUNTIME}/model/parameters.cc'
LOWER = f'{RUNTIME}/schedule/lower.cc'
GROUP = f'{RUNTIME}/comm/group_collective.cc'

LAYOUTS = '//worker_runtime/trainer/testing:layout_property_test'
OVERLAP = '//worker_runtime/trainer:overlap_test'
COPIES = '//worker_runtime/trainer:copies_test'
GOLDEN = '//worker_runtime/trainer:golden_test'
LOWERED = '//worker_runtime/schedule:lower_test'
COLLECTIVES = '//worker_runtime/comm:collective_test'

MUTATIONS = [
    Mutation("the gradients of split rows' norms are not summed over tp", STORE,
             'return groups_.tp.AllReduce(norms, ReduceOp::kSum, device_.compute());', 'return absl::OkStatus();', LAYOUTS, '1'),
    Mutation('a token that does not count is in the loss', f'{RUNTIME}/ops/cpu/cross_entropy.cc',
             'if (targets[row] < 0) continue;', 'if (targets[row] < -1) continue;', '//worker_runtime/ops:ops_test', '1'),
    Mutation("the last number of the last norm's gradient is not summed over tp", STORE,
             'std::min(placement_.same_on_tp_end, part.flat_begin', 'std::min(placement_.same_on_tp_end - 1, part.flat_begin', LAYOUTS, '2'),
    Mutation("each tp rank's final norm has the gradient of its own slice of the vocabulary", f'{RUNTIME}/model/loss_head.cc',
             'return rows.Sum(At(memory.gradient), pass.stream);', 'return absl::OkStatus();', LAYOUTS, '2'),
    Mutation('every tp rank adds the loss', f'{RUNTIME}/trainer/engine.cc',
             'if (coordinate_.tp != 0) device_.Zero(&totals_->loss, sizeof(double), stream);\n', '', LAYOUTS, '3'),
    Mutation("a gradient is divided by this rank's count of tokens", f'{RUNTIME}/trainer/batches.cc',
             'static_cast<double>(cut_.global_batch_size) *', 'static_cast<double>(cut_.global_batch_size / cut_.dp_size) *',
             '//worker_runtime/trainer:batches_test', '3'),
    Mutation("a step's first gradient is added to that of the step before", STORE,
             '.adds = !is_first || unit != place.last_unit', '.adds = is_first || unit >= 0', LAYOUTS, '4'),
    Mutation('a gradient is reduced after each microbatch', f'{RUNTIME}/model/stage.cc',
             'store_.GradientsDone(pass.unit, stage_pass.is_last)', 'store_.GradientsDone(pass.unit, true)', LAYOUTS, '4'),
    Mutation('the gradient norm counts norms once for each tp rank', PARAMETERS,
             '.owned = tp_rank_ == 0,', '.owned = true,', LAYOUTS, '5'),
    Mutation('the gradient norm counts a tied table at both ends of the pipeline', PARAMETERS,
             'table.slices.front().owned = !table.on_both_ends;', '', LAYOUTS, '5'),
    Mutation('the gradient norm counts every copy of a shard', f'{RUNTIME}/shard/flat_shard.cc',
             '(slice.owned && speaks_for_shard ? kOwned : 0)', '(slice.owned && (speaks_for_shard || true) ? kOwned : 0)',
             LAYOUTS, '5'),
    Mutation("half of the loss's sums stay those of one slice of the vocabulary", VOCABULARY,
             'absl::MakeSpan(buffers.sums, 2 * count)', 'absl::MakeSpan(buffers.sums, count)', LAYOUTS, '6'),
    Mutation('a row-parallel layer is summed only where rows are split', LINEAR,
             'LinearForward(shape, x, weight, y, stream);\n  return rows.Sum(y, stream);',
             'LinearForward(shape, x, weight, y, stream);\n  return rows.is_split() ? rows.Sum(y, stream) : absl::OkStatus();', LAYOUTS, '6'),
    Mutation('a timeout does not name its operation', GROUP,
             'absl::StrCat(name_, " ", operation, " #", sequence', 'absl::StrCat(name_, operation.substr(0, 0), " #", sequence', COLLECTIVES, '7'),
    Mutation('the first rank that waits too long hangs up, and the others blame it', GROUP,
             '/*hang_up=*/!absl::IsDeadlineExceeded(status)', '/*hang_up=*/true', COLLECTIVES, '7'),
    Mutation('receives of one sender are posted in the order of their reading', LOWER,
             'receives[i - 1].post = std::min(receives[i - 1].post, receives[i].post);',
             'receives[i - 1].post = std::min(receives[i - 1].post, receives[i - 1].read);', LOWERED, '8'),
    Mutation('a slot is written anew before its message is sent', LOWER,
             'return std::max(position + 1, after - 1);', 'return std::min(position, after);', LOWERED, '8'),
    Mutation('the warm-up of interleaved chunks is too short', f'{RUNTIME}/schedule/generators.cc',
             'RoundBegin(shape, 1) + 2 * (shape.ranks - 1 - rank)', 'RoundBegin(shape, 1) + (shape.ranks - 1 - rank)',
             '//worker_runtime/schedule:generators_test', '8'),
    Mutation('every tp rank starts with the first one\'s rows', f'{RUNTIME}/model/initialize.cc',
             'const int64_t row = slice.offset[0] + (first + i) / columns;', 'const int64_t row = (first + i) / columns;', LAYOUTS, '13'),
    Mutation('ranks behind the longer ones train samples twice', f'{RUNTIME}/data/sample_order.cc',
             'dp_rank * shortest + std::min<int64_t>(dp_rank, longer_ranks)', 'dp_rank * shortest + std::min<int64_t>(0, longer_ranks)',
             '//worker_runtime/data:sample_order_test', '13'),
    Mutation('a bucket has the decay of the first one', OPTIMIZER,
             'const uint8_t* const flags = flags_ + part.shard_begin / kFlagBlock;', 'const uint8_t* const flags = flags_;', LAYOUTS, '17'),
    Mutation('a bucket is reduced before its last unit is done', STORE,
             'unfinished_units_[reduced_from_ - 1] == 0', 'unfinished_units_[reduced_from_ - 1] <= 1', LAYOUTS, '17'),
    Mutation('buckets share their second moments', OPTIMIZER,
             'float* const second_moment = second_moment_ + part.shard_begin;', 'float* const second_moment = second_moment_;', LAYOUTS, '17'),
    Mutation('a reduction does not wait for its gradients', STORE,
             'OrderBehind(device_.compute(), stream);\n  const absl::Span<float> gradients', 'const absl::Span<float> gradients', OVERLAP, '18'),
    Mutation('a unit does not wait for its gathered weights', STORE,
             'device_.Order(*gathered_[place.bucket], device_.compute());\n', '', OVERLAP, '18'),
    Mutation("nobody waits for a layer's sum beside its weight gradient", LINEAR,
             'if (side != nullptr) side->Join(stream);\n', '', OVERLAP, '18'),
    Mutation("of the norms' gradients over tp the largest counts, not the sum", STORE,
             'groups_.tp.AllReduce(norms, ReduceOp::kSum,', 'groups_.tp.AllReduce(norms, ReduceOp::kMax,', LAYOUTS, '23'),
    Mutation('a pipeline wipes the gradients of the microbatches before', f'{RUNTIME}/pipeline/executor.cc',
             'pass.is_first = !std::exchange(has_begun[{pass.compute.chunk, is_forward}], true);', 'pass.is_first = true;', LAYOUTS, '23'),
    Mutation("every microbatch has the first one's documents", f'{RUNTIME}/model/stage.cc',
             'batch_.documents[pass.compute.microbatch] :', 'batch_.documents[0] :', LAYOUTS, '1'),
    Mutation('the token that ends a document is the next one\'s', f'{RUNTIME}/data/documents.cc',
             'current = position + 1;', 'current = position;', '//worker_runtime/data:documents_test', '1'),
    Mutation('norms decay', PARAMETERS, '.decayed = false,', '.decayed = true,', GOLDEN, '1'),
    Mutation('a gradient is turned on where it must be turned back', f'{RUNTIME}/model/block.cc',
             'Rotate(pass, /*inverse=*/true, around.wide);', 'Rotate(pass, /*inverse=*/false, around.wide);',
             '//worker_runtime/model:gradient_test', '1'),
    Mutation("each chunk of a head's rows overwrites the gradient of the one before", f'{RUNTIME}/model/loss_head.cc',
             'head_gradient.adds = true;', '', '//worker_runtime/model:loss_head_test', '4'),
    Mutation('an embedding\'s gradient is zeroed by each microbatch but the first', f'{RUNTIME}/model/embedding.cc',
             'if (!table.adds) {', 'if (table.adds) {', LAYOUTS, '4'),
    Mutation('the gradient norm is that of before the sum over dp', f'{RUNTIME}/trainer/engine.cc',
             'CONVENE_RETURN_IF_ERROR(store_.FinishReducing());\n  optimizer_->SumOwnedSquares(&totals_->sum_of_squares);',
             'optimizer_->SumOwnedSquares(&totals_->sum_of_squares);\n  CONVENE_RETURN_IF_ERROR(store_.FinishReducing());', LAYOUTS, '5'),
    Mutation('a timeout does not log what the ranks did last', GROUP,
             'if (absl::IsDeadlineExceeded(status)) recorder_.Log();', '', COLLECTIVES, '7'),
    Mutation('a rank does not wait until a slot is sent', f'{RUNTIME}/pipeline/executor.cc',
             'if (written >= 0) CONVENE_RETURN_IF_ERROR(WaitFor(messages[written], stream));', '', LAYOUTS, '8'),
    Mutation('samples that do not fill a microbatch are dropped', f'{RUNTIME}/data/sample_order.cc',
             'return CeilDivide(CeilDivide(cut.global_batch_size, cut.dp_size), cut.micro_batch_size);',
             'return std::max<int64_t>(1, CeilDivide(cut.global_batch_size, cut.dp_size) / cut.micro_batch_size);',
             '//worker_runtime/data:sample_order_test', '13'),
    Mutation('copies of norms drift apart where dp groups add up in other orders', STORE,
             'if (dp_size() < 3 || device_.kind()', 'if (dp_size() < 300 || device_.kind()', COPIES, '13'),
    Mutation('copies of a tied table drift apart', STORE,
             'if (shared == nullptr || !is_parallel() || device_.kind()', 'if (shared == nullptr || is_parallel() || device_.kind()', COPIES, '13'),
    Mutation('the bucket of a tied table is reduced before its other half is added', STORE,
             'part.bucket.begin < shared->begin + shared->count) break;', 'part.bucket.begin > shared->begin + shared->count) break;', LAYOUTS, '17'),
    Mutation('a shard gets the beginning of its bucket from the wire', STORE,
             'wire.data() + (part.flat_begin - part.bucket.begin),', 'wire.data(),', '//worker_runtime/shard:sharded_optimizer_test', '17'),
    Mutation('nothing is reduced beside the backward pass', f'{RUNTIME}/pipeline/executor.cc',
             'steps_[step].pass.is_last = true;', 'steps_[step].pass.is_last = chunk < 0;', OVERLAP, '18'),
    Mutation('the update does not wait for the reductions', STORE,
             'AwaitCommunication();\n    reduced_from_ = shard_.parts.size();', 'reduced_from_ = shard_.parts.size();', OVERLAP, '18'),
    Mutation('of the two halves of a tied table\'s gradient the larger counts, not the sum', STORE,
             'gradients_.subspan(shared->begin, shared->count),\n                                      ReduceOp::kSum',
             'gradients_.subspan(shared->begin, shared->count),\n                                      ReduceOp::kMax', LAYOUTS, '23'),
    Mutation('with split rows the two norms of a block that is made again share one output', f'{RUNTIME}/model/block.cc',
             'if (recompute_ == Recompute::kSelective || SharesNormed(pass)) {', 'if (recompute_ == Recompute::kSelective) {', LAYOUTS,
             'sequence parallel'),
    Mutation('a token that does not count teaches', f'{RUNTIME}/ops/cpu/cross_entropy.cc',
             'if (target < 0) {', 'if (target < -1) {', LAYOUTS, '1'),
    Mutation("a message's slot is free once its reader has begun", LOWER,
             'gradients.push_back({begins_[rank][input], lowest > 0 ? SentUntil(rank, end) : end, chunk,',
             'gradients.push_back({begins_[rank][input], end, chunk,', LOWERED, '8'),
    Mutation('weights start smaller where a stage has fewer layers', PARAMETERS,
             'std::sqrt(2.0 * config_.layers)', 'std::sqrt(2.0 * (chunk_.layers + 1))', LAYOUTS, '13'),
    Mutation('what is gathered counts as gathered before', STORE,
             'device_.Record(*gathered_[bucket], stream);\n  awaited_ = 0;', 'device_.Record(*gathered_[bucket], stream);', OVERLAP, '18'),
    Mutation('a recomputed pass reads the SwiGLU of another block', f'{RUNTIME}/model/block.cc',
             'SwigluForward(s_.rows(), s_.ffn, At(a.gate_up), At(a.product), pass.stream);\n  }', '}', LAYOUTS, 'recompute'),
    Mutation('the second norm is not made again', f'{RUNTIME}/model/block.cc',
             'if (recompute_ == Recompute::kSelective) {\n    RmsNormAgain(rows.own(), s_.hidden, At(a.middle), pass.Weight(kMlpNorm), At(a.norm2_rms),\n'
             '                 rows.Own(normed), pass.stream);', 'if (recompute_ == Recompute::kSelective) {', LAYOUTS, 'recompute'),
    Mutation('gradients are not summed over dp', STORE,
             'CONVENE_RETURN_IF_ERROR(groups_.dp.ReduceScatter(bucket, ReduceOp::kSum, stream));', '', LAYOUTS, 'dp'),
    Mutation('parameters are not gathered over dp', STORE,
             'if (groups_.dp_gather.size() == 1) return absl::OkStatus();', 'if (groups_.dp_gather.size() > 0) return absl::OkStatus();',
             LAYOUTS, 'dp'),
    Mutation('an embedding is summed over tp only where rows are split', VOCABULARY,
             'return residual.Sum(y, stream);', 'return residual.is_split() ? residual.Sum(y, stream) : absl::OkStatus();', LAYOUTS, 'tp'),
    Mutation("each slice of the vocabulary keeps its own maximum in the loss's sum", VOCABULARY,
             'CrossEntropyRescale(rows, buffers.slice_max, buffers.row_max, buffers.sums, stream);\n', '', LAYOUTS, 'tp'),
    Mutation('the MLP goes backward with the gradient of its own rows', f'{RUNTIME}/model/block.cc',
             'CONVENE_RETURN_IF_ERROR(rows.Gather(gradient, pass.stream));\n  RowParallelBackward(DownShape', 'RowParallelBackward(DownShape',
             LAYOUTS, 'sequence parallel'),
    Mutation('a stage sends the gradient of the first rows', f'{RUNTIME}/model/stage.cc',
             'return Hidden(rows_.Own(Gradient(slot)));', 'return Hidden(Gradient(slot));', LAYOUTS, 'sequence parallel'),
    Mutation("a chunk's input is written over after its forward pass", LOWER,
             'activations.push_back({begins_[rank][forward], last, chunk, microbatch});',
             'activations.push_back({begins_[rank][forward], forward, chunk, microbatch});', LOWERED, 'pp'),
    Mutation('chunks of other sizes begin at the wrong layer', PARAMETERS,
             'first_layer += count;', 'first_layer += layers.front();', LAYOUTS, 'pp'),
    Mutation('a rank updates the shard of another one', f'{RUNTIME}/shard/flat_shard.cc',
             '.flat_begin = bucket.begin + count * dp_rank,', '.flat_begin = bucket.begin + count * (dp_size - 1 - dp_rank),', LAYOUTS, 'zero'),
    Mutation("the gradient norm asks another bucket who owns its numbers", OPTIMIZER,
             'flags_ + part.shard_begin / kFlagBlock, sum', 'flags_, sum', LAYOUTS, 'zero'),
    Mutation('of the copies of a shard the largest gradient counts, not the sum', STORE,
             'part.count), ReduceOp::kSum, stream);', 'part.count), ReduceOp::kMax, stream);', LAYOUTS, 'hybrid'),
    Mutation('copies of other shards are summed', f'{RUNTIME}/mesh/mesh.cc',
             'a.dp % shards == b.dp % shards', 'a.dp / shards == b.dp / shards', '//worker_runtime/mesh:mesh_test', 'hybrid'),
]
