"""Bugs planted in the arithmetic of optimizers, above all of Muon, and in parts of families that a GPU computes otherwise than a CPU."""

from planting import Mutation

RUNTIME = 'worker_runtime'
MUON = f'{RUNTIME}/optimizer/muon_rule.cc'
SGD = f'{RUNTIME}/ops/cpu/sgd.cc'
SINKS = f'{RUNTIME}/ops/cuda/attention_sink.cu'
TESTS = f'//{RUNTIME}/trainer/testing'
NEWTON_SCHULZ = f'{TESTS}:golden_muon_test'
GOLDEN_LAYOUTS = f'{TESTS}:golden_layout_test'
ON_GPUS = f'{TESTS}:on_gpus_emulated_test_forward'

MUTATIONS = [
    Mutation('Newton-Schulz ends an iteration early', MUON, 'kIterations = 5;', 'kIterations = 4;', NEWTON_SCHULZ, 'muon'),
    Mutation('a factor of Newton-Schulz is wrong in its fourth digit', MUON, '-4.7750f', '-4.7740f', NEWTON_SCHULZ, 'muon'),
    Mutation('the fourth power of a matrix takes the place of its square in Newton-Schulz', MUON, 'b, c, product, square, stream);',
             'c, b, product, square, stream);', NEWTON_SCHULZ, 'muon'),
    Mutation("a step of Muon is as large as the shorter side wants it", MUON, 'std::sqrt(std::max(matrix.rows, matrix.columns))',
             'std::sqrt(std::min(matrix.rows, matrix.columns))', NEWTON_SCHULZ, 'muon'),
    Mutation('Newton-Schulz begins with a matrix of half the length', f'{RUNTIME}/ops/cpu/muon.cc', 'static_cast<float>(1 / std::max(',
             'static_cast<float>(0.5 / std::max(', NEWTON_SCHULZ, 'muon'),
    Mutation('a matrix is cut in two before Newton-Schulz', f'{RUNTIME}/shard/whole_matrices.cc', '{.rows = static_cast<int>(mine.matrix_rows),',
             '{.rows = static_cast<int>((mine.matrix_rows + 1) / 2),', GOLDEN_LAYOUTS, 'muon'),
    Mutation('Muon makes nothing of --weight-decay', MUON, '.decay = static_cast<float>(parameters.weight_decay)}};', '.decay = 0}};', GOLDEN_LAYOUTS,
             'muon'),
    Mutation("Nesterov's momentum is the ordinary one", SGD, 'nesterov != 0 ? gradient + mass * sum : sum;', 'nesterov != 0 ? sum : sum;', GOLDEN_LAYOUTS,
             'optimizer'),
    Mutation('the second half of a pair turns the other way', f'{RUNTIME}/ops/cpu/rope.cc', 'Narrow(b * cosines[i] + a * sine, &high[i]);',
             'Narrow(b * cosines[i] - a * sine, &high[i]);', f'{TESTS}:golden_test', 'families'),
    Mutation('on a GPU a window holds one key more', f'{RUNTIME}/ops/cuda/attention/flash_attention.cu', 'QueryPosition(query) - window + 1);',
             'QueryPosition(query) - window);', f'//{RUNTIME}/ops/cuda/attention:attention_emulated_test_forward', 'windows'),
    Mutation('on a GPU a sink learns to take more where it should take less', SINKS, 'terms[place.row] = -expf(', 'terms[place.row] = expf(', ON_GPUS,
             'sinks'),
]
