"""Bugs planted in the CUDA kernels: the tests on the emulated GPU must catch each."""

from planting import Mutation

OPS = 'worker_runtime/ops/cuda'
KERNELS = f'//{OPS}:kernels_emulated_test_'
ATTENTION = f'//{OPS}/attention:attention_emulated_test_'
TRAINER = '//tests/e2e:emulated_gpu_test'
FLASH = f'{OPS}/attention/flash_attention.cu'

MUTATIONS = [
    Mutation('no barrier between the warps and the first one', f'{OPS}/cross_entropy.cu',
             '__syncthreads();', '', KERNELS + 'forward'),
    Mutation('no barrier in the sum of a block', f'{OPS}/vector.cuh',
             '__syncthreads();\n  return WarpSum', 'return WarpSum', KERNELS + 'forward'),
    Mutation('one scratch for two rows in turn', f'{OPS}/rms_norm_backward.cu',
             'scratch[turn]);\n    turn ^= 1;\n    WriteGradient', 'scratch[turn]);\n    WriteGradient', KERNELS + 'forward'),
    Mutation('a tile is loaded over one that is read', FLASH,
             'query_begin += kTile) {\n      __syncthreads();  // nobody reads the tiles of before', 'query_begin += kTile) {', ATTENTION + 'forward'),
    Mutation('no __syncwarp between the lanes of a row', FLASH,
             '__syncwarp();  // a row\'s dscores stay within its warp', '', ATTENTION + 'forward'),
    Mutation('one element past the end', f'{OPS}/elementwise.cu',
             'if (i < count) element(i);', 'if (i <= count) element(i);', KERNELS + 'forward'),
    Mutation('a shared tile one row short', FLASH,
             'constexpr size_t kSharedBytes = 3 * Tiles::kRowsBytes + Tiles::kScoresBytes;',
             'constexpr size_t kSharedBytes = 3 * Tiles::kRowsBytes + Tiles::kScoresBytes - sizeof(typename Tiles::ScoreRow);',
             ATTENTION + 'forward'),
    Mutation('half of the warp in the mask', f'{OPS}/vector.cuh',
             '__shfl_xor_sync(0xffffffffu', '__shfl_xor_sync(0x0000ffffu', KERNELS + 'forward'),
    Mutation('a sum of a quarter of the warp', f'{OPS}/vector.cuh',
             'int distance = kWarp / 2; distance', 'int distance = kWarp / 4; distance', KERNELS + 'forward'),
    Mutation('wide accesses to arrays that are not aligned', f'{OPS}/launch_geometry.h',
             'return reinterpret_cast<uintptr_t>(array) % access_bytes == 0;',
             'return array == nullptr || access_bytes > 0;', KERNELS + 'forward'),
    Mutation('an array in registers one too short', f'{OPS}/swiglu.cu',
             'Vector<T, kWidth> ups[kForwardUnroll];', 'Vector<T, kWidth> ups[kForwardUnroll - 1];', KERNELS + 'address'),
    Mutation('shared memory that nobody wrote', f'{OPS}/vector.cuh',
             'if (lane == 0) scratch[warp] = value;', 'if (threadIdx.x == 0) scratch[warp] = value;', KERNELS + 'forward'),
    Mutation('a register that nobody wrote', f'{OPS}/rms_norm.cu',
             'Vector<T, kWidth> kept[kVectors] = {};', 'Vector<T, kWidth> kept[kVectors];', KERNELS + 'forward'),
    Mutation('threads that return before the barrier', f'{OPS}/rms_norm.cu',
             'const int64_t row = blockIdx.x;',
             'const int64_t row = blockIdx.x;\n  if (static_cast<int>(threadIdx.x) >= a.columns) return;', KERNELS + 'forward'),
    Mutation('more threads than the launch bounds', f'{OPS}/launch_geometry.h',
             'int64_t{width} * kVectorsPerThread), kWarp), kWarp, 512));',
             'int64_t{width} * kVectorsPerThread), kWarp), kWarp, 1024));', KERNELS + 'forward'),
    Mutation('two blocks write one place', f'{OPS}/adamw.cu',
             'Launch(stream, "decide_step", 1, dim3(1)', 'Launch(stream, "decide_step", 2, dim3(1)', KERNELS + 'thread'),
    Mutation('all threads of a block write one place', f'{OPS}/elementwise.cu',
             'if (threadIdx.x == 0) partials[blockIdx.x] = total;', 'partials[blockIdx.x] = total;', KERNELS + 'thread'),
    Mutation('more than 48 KiB without asking', FLASH,
             'static_cast<int>(bytes)),\n               "attention: shared memory");',
             'static_cast<int>(bytes / 2)),\n               "attention: shared memory");', ATTENTION + 'forward'),
    Mutation('attention sees the next token', FLASH,
             'c >= hidden && c < visible ? geometry.scale * scores[i]', 'c >= hidden && c <= visible ? geometry.scale * scores[i]', TRAINER),
    Mutation('a key is hidden by its place instead of its position', FLASH,
             'return positions.keys == nullptr ? key : positions.keys[key];', 'return key;', ATTENTION + 'forward'),
    Mutation('the statistics of a part have the heads last', FLASH,
             'heads_last(shape.packed && !shape.is_part())', 'heads_last(shape.packed)', ATTENTION + 'forward'),
    Mutation('another row of the embedding', f'{OPS}/embedding.cu',
             '(is_here ? int64_t{token} - vocabulary_begin : 0) * columns;', '(is_here ? int64_t{token ^ 1} - vocabulary_begin : 0) * columns;',
             TRAINER),
]
