"""Bugs planted in the ops of experts (routers, gates, grouped products, rows on their way), and in their adapters. Bugs of their layers are in
trainer.py."""

from planting import Mutation

RUNTIME = 'worker_runtime'
ROUTER = f'{RUNTIME}/ops/cpu/router.cc'
FEED_FORWARD = f'{RUNTIME}/model/dense_feed_forward.cc'
PARAMETERS = f'{RUNTIME}/model/parameters.cc'
EXPERTS = f'//{RUNTIME}/ops:experts_test'
GOLDEN = f'//{RUNTIME}/trainer/testing:golden_test'
LAYOUTS = f'//{RUNTIME}/trainer/testing:layout_property_test'

MUTATIONS = [
    Mutation('experts are chosen by logits, whatever the bias', ROUTER,
             'if (bias != nullptr || shape.groups > 1) {', 'if (shape.groups > 1) {', EXPERTS, 'experts'),
    Mutation('a bias of the choice is in the weights too', ROUTER,
             '    const float factor = shape.scale * Normalizer',
             '    for (int i = 0; bias != nullptr && i < shape.experts; ++i) scores[i] += bias[i];\n    const float factor = shape.scale * Normalizer',
             EXPERTS, 'experts'),
    Mutation('of equal experts one is chosen by the sign of zero', f'{RUNTIME}/ops/choice_key.h', 'score + 0.0f;', 'score;', EXPERTS, 'experts'),
    Mutation('a group ranks by its largest score alone', ROUTER, 'adds ? first + second : first', 'adds ? first + 0 * second : first', EXPERTS, 'experts'),
    Mutation('the gradient of weights forgets that they sum to one', ROUTER, 'factor * (dweights[j] - mean);', 'factor * dweights[j];', EXPERTS, 'experts'),
    Mutation("DeepSeek-V2's groups are judged by two experts, as V3's are", ROUTER,
             'size > 1 && !shape.judges_by_best', 'size > 1', EXPERTS, 'experts'),
    Mutation('a shape without windows forgets the scale of its scores', f'{RUNTIME}/model/shape_text.cc',
             'c.sliding_window == 0 && c.window_rope_theta == 0 && c.query_scalar == 0', 'c.sliding_window == 0',
             '//worker_runtime/model:shape_text_test', 'windows'),
    Mutation("rows of padding are in a router's statistics", ROUTER,
             'if (targets != nullptr && targets[row] < 0) continue;', 'if (targets != nullptr && targets[row] < -1) continue;', EXPERTS, 'experts'),
    Mutation('padding goes to experts as tokens do', ROUTER,
             'targets != nullptr && targets[row] == kPaddingTarget', 'targets != nullptr && targets[row] == kPaddingTarget - 1', EXPERTS, 'experts'),
    Mutation('a token that goes to no expert comes back from the first place', f'{RUNTIME}/parallel/expert_dispatch.cc',
             'std::fill_n(places, int64_t{rows_} * shape_.chosen, -1);', '', f'//{RUNTIME}/parallel:expert_dispatch_test', 'experts'),
    Mutation('a micro batch of padding alone is a routing', f'{RUNTIME}/model/expert_feed_forward.cc',
             'pass.gradient_scale != nullptr && load.highest > 0', 'pass.gradient_scale != nullptr', '//tests/e2e:trainer_output_test', 'experts'),
    Mutation('a product of groups forgets what it is added to', f'{RUNTIME}/ops/cpu/grouped_matmul.cc',
             'if (!HasFewRows(tile.shape)) return MultiplyTile(tile, beta);', 'if (!HasFewRows(tile.shape)) return MultiplyTile(tile, 0.0f);', EXPERTS,
             'experts'),
    Mutation("a piece's gradients of experts' adapters replace those of the piece before", f'{RUNTIME}/model/block_adapters.cc',
             '  adapter.da.adds |= adds;\n', '', LAYOUTS, 'adapters'),
    Mutation("the weight of an expert's output knows nothing of its adapters", f'{RUNTIME}/model/expert_feed_forward.cc',
             '  AddLowRankInputGradient(layer, adapter, /*first_row=*/0, dproduct, stream);\n', '', f'//{RUNTIME}/model:gradient_test', 'adapters'),
    Mutation("an expert's adapters drop what the rank's own tokens would", f'{RUNTIME}/model/expert_feed_forward.cc',
             '  if (adapter.dropout.is_on()) adapter.dropout.tokens = At(MemoryOf(pass).tokens);\n', '',
             '//worker_runtime/trainer/testing:dropout_test', 'dropout'),
    Mutation('an expert without rows loses the gradient of earlier microbatches', f'{RUNTIME}/ops/cpu/grouped_matmul.cc',
             'beta == 0 && row < tile.shape.m', 'row < tile.shape.m', EXPERTS, 'experts'),
    Mutation('no row to gather: the first one', f'{RUNTIME}/ops/cpu/expert_rows.cc',
             'cpu::EmbeddingForward(static_cast<int>(rows), columns, 0, std', 'cpu::EmbeddingForward(static_cast<int>(rows), columns, -1, std',
             EXPERTS, 'experts'),
    Mutation("a gate's logit learns as if the gate were open", f'{RUNTIME}/ops/cpu/expert_rows.cc',
             'Narrow((1 - gate) * dot, &dlogits[row]);', 'Narrow(dot, &dlogits[row]);', EXPERTS, 'experts'),
    Mutation('the gate of shared experts learns nothing from their input', FEED_FORWARD,
             '  if (s_.has_shared_gate()) GateBackward(pass, a, x, dx);\n', '', GOLDEN, 'experts'),
    Mutation('what the backward pass computes again has no gate', FEED_FORWARD,
             'if (recompute_.swiglu) Activate(a, pass.stream);',
             'if (recompute_.swiglu)\n    ActivationForward(s_.family->activation, s_.rows(), s_.ffn, At(a.gate_up), At(a.product), pass.stream);',
             '//worker_runtime/model:gradient_test', 'experts'),
    Mutation("the gate of shared experts keeps each tp rank's own part of its gradient", PARAMETERS,
             'gate.tp_copies = tp_size_;', 'gate.tp_copies = 1;', LAYOUTS, 'experts'),
    Mutation("a window ends with a context-parallel rank's part", f'{RUNTIME}/parallel/context_attention.h',
             'op.window = layer.window;', 'op.window = layer.window < local_.sequence_length ? layer.window : local_.sequence_length;', LAYOUTS, 'windows'),
    Mutation("a frozen router's bias is rounded where it lies", f'{RUNTIME}/shard/frozen_weights.cc',
             '  CentreBias(absl::MakeSpan(bias));\n', '', f'//{RUNTIME}/shard:frozen_weights_test', 'experts'),
    Mutation("a router's bias is rounded where it lies, to generate", f'{RUNTIME}/inference/weight_store.cc',
             '    CentreBias(absl::MakeSpan(bias));\n', '', f'//{RUNTIME}/inference:generator_test', 'experts'),
    Mutation("a folder of bf16 has routers' biases in bf16", f'{RUNTIME}/weights/write_weights.cc',
             'slabs[0][0].balances ? DType::kFloat32 : wanted', 'wanted', f'//{RUNTIME}/weights:write_weights_test', 'experts'),
    Mutation("a folder's own word on DeepSeek's even load is passed over", f'{RUNTIME}/weights/hf_config.cc',
             '  CONVENE_RETURN_IF_ERROR(ReadFields({{kSequenceLoss, &experts.balance_loss}}));\n', '', f'//{RUNTIME}/weights:hf_config_test', 'experts'),
    Mutation('a config.json turns whole heads', f'{RUNTIME}/weights/hf_config.cc',
             'static_cast<int>(config_.head_size * partial_rotary_);', '0;', f'//{RUNTIME}/weights:hf_config_test', 'families'),
]
