"""Bugs planted in parts that few families have: layers that turn nothing, rows in one tensor, factors, norms of all heads."""

from planting import Mutation

MODEL = 'worker_runtime/model'
WEIGHTS = 'worker_runtime/weights'
GOLDEN = '//worker_runtime/trainer/testing:golden_test'
GENERATION = '//worker_runtime/inference:golden_generation_test'
GRADIENT = f'//{MODEL}:gradient_test'
CONFIG = f'//{WEIGHTS}:hf_config_test'

MUTATIONS = [
    Mutation('the layer before each fourth turns nothing', f'{MODEL}/config.cc', '(layer + 1) % none_every != 0', '(layer + 2) % none_every != 0', GOLDEN,
             'families'),
    Mutation('over a cache all layers turn', 'worker_runtime/parallel/context_attention.cc',
             'if (layer.rope != LayerAttention::kNoRope) {', 'if (!options_.ropes.empty()) {', GENERATION, 'families'),
    Mutation('a list of layers that turn nothing may be any', f'{WEIGHTS}/hf_config.cc',
             'is_ours = turn.IsInt() && turn.GetInt() == (HasRope(config_, i) ? 1 : 0);', 'is_ours = turn.IsInt();', CONFIG, 'families'),
    Mutation('up rows are gate rows', f'{MODEL}/parameters.cc', 'ups.first = ffn;', 'ups.first = 0;', GOLDEN, 'families'),
    Mutation('a branch has the whole gradient', f'{MODEL}/block.cc', 'CONVENE_RETURN_IF_ERROR(ScaleBranch(pass, dy));', '', GRADIENT, 'families'),
    Mutation('logits are divided going forward alone', f'{MODEL}/loss_head.cc', 'DivideRows(At(memory.gradient), pass.stream);', '', GRADIENT, 'families'),
    Mutation('scores keep the scale of their heads', f'{MODEL}/block_part.cc', 'config.multipliers.scores > 0', 'config.multipliers.scores < 0', GOLDEN,
             'families'),
    Mutation('where there is no norm gradients of parts take the place of the stream', 'worker_runtime/parallel/norm.cc',
             'if (add_to_dx) return AddInPlace(', 'if (!add_to_dx) return AddInPlace(', GRADIENT, 'families'),
    Mutation('each head has its own norm', f'{MODEL}/grouped_query_mixer.cc', 's_.family->whole_norms ? HeadRows', '!s_.family->query_key_norms ? HeadRows',
             GOLDEN, 'families'),
    Mutation('norms of all heads are split over tp', f'{MODEL}/config.cc', 'tp > 1 && config.family->whole_norms', 'tp > 1024 && config.family->whole_norms',
             f'//{MODEL}:families_test', 'families'),
]
