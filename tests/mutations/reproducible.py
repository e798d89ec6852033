"""Bugs planted in sums that no layout changes (--reproducible): a test at zero tolerance must catch each."""

from planting import Mutation

RUNTIME = 'worker_runtime'
BINNED = f'{RUNTIME}/ops/binned_digits.h'
BINNED_SUMS = '//worker_runtime/ops:binned_sum_test'
REPRODUCIBLE = '//worker_runtime/trainer/testing:reproducible_test'

MUTATIONS = [
    Mutation('the digits of a bin are lost where the next bin is the highest', BINNED,
             '(rise == 1 ? sum.high : 0)', '0', BINNED_SUMS),
    Mutation('digits are a bit too wide for their carries', BINNED,
             'return 31 - static_cast<int>', 'return 32 - static_cast<int>', BINNED_SUMS),
    Mutation('each rank keeps its own highest bin', f'{RUNTIME}/shard/binned_gradients.cc',
             '  CONVENE_RETURN_IF_ERROR(group.AllReduce(agreed, ReduceOp::kMax, stream));\n', '', REPRODUCIBLE),
    Mutation("copies of a shard keep sums of their own", f'{RUNTIME}/shard/binned_gradients.cc',
             'return SumOver(dp_replicate_, bucket, stream);', 'return SumOver(dp_, bucket, stream);', REPRODUCIBLE),
    Mutation("another rank's floats count as this rank's own", f'{RUNTIME}/shard/binned_gradients.cc',
             '  device_.Copy(sums.low + own, sums.high + sent, part.count * sizeof(float), stream);\n', '', REPRODUCIBLE),
    Mutation("a tied table's two gradients of a microbatch are rounded to one", f'{RUNTIME}/shard/gradient_shards.cc',
             'made_in_[tensor] != pass_', 'made_in_[tensor] < 0', REPRODUCIBLE),
    Mutation("a tied table's two gradients of a rank are added as floats", f'{RUNTIME}/shard/binned_gradients.cc',
             'return uses > placement.tensors.size();', 'return uses < placement.tensors.size();', REPRODUCIBLE),
    Mutation('the gradient norm is a plain sum of doubles', f'{RUNTIME}/ops/cpu/binned_sum.cc',
             'AddExactly(SquaresOfBlock(x + block * kFlagBlock), partial_sums[i].data());',
             'partial_sums[i][15] += SquaresOfBlock(x + block * kFlagBlock);', BINNED_SUMS),
    Mutation('the losses of the routers of a stage are rounded to one', f'{RUNTIME}/model/stage.cc',
             '(is_head || room_.experts.is_on())', '(is_head || (i + 1 == units && room_.experts.is_on()))', REPRODUCIBLE),
    Mutation("a microbatch's samples depend on the number of ranks", f'{RUNTIME}/data/sample_order.cc',
             'cut.keeps_microbatches ? cut.micro_batch_size : 1', '1', '//worker_runtime/data:sample_order_test'),
    Mutation('the width of digits depends on the number of ranks', f'{RUNTIME}/trainer/setup.cc',
             'CeilDivide(cut.global_batch_size, cut.micro_batch_size)', 'MicrobatchCount(cut)', REPRODUCIBLE),
    Mutation('a run goes on with other micro batches than its checkpoint', f'{RUNTIME}/trainer/training_loop.cc',
             'if (!options_.reproducible) return data_.training.SamplesText();', 'if (contract_.rank >= 0) return dataset_.SamplesText();',
             '//tests/chaos:reproducible_test'),
]
