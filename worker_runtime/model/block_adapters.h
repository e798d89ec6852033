// The low-rank adapters of a block's linear layers and experts (parallel/low_rank.h): where each
// begins, and the scratch that all blocks of a rank share.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "worker_runtime/device/arena.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/unit.h"
#include "worker_runtime/parallel/low_rank.h"

namespace convene::worker {

struct BlockShape;

// Room for the adapters of any layer of one block.
template <typename T>
struct AdapterScratch {
  ArenaBlock<T> spread;
  ArenaBlock<T> inner;
  ArenaBlock<T> inner_gradient;
  ArenaBlock<T> dropped;
  ArenaBlock<float> spread_gradient;
  ArenaBlock<float> b_gradient;
};
// Declares nothing where the model has no adapters. `shape`: room for any block of the rank.
template <typename T>
AdapterScratch<T> DeclareAdapterScratch(const BlockShape& shape, const AdapterConfig& config,
                                        Arena& arena);

// One block's. By default it has none.
template <typename T>
class BlockAdapters {
 public:
  BlockAdapters() = default;
  // `unit`: the block's, with its adapters' tensors.
  // `seed`: of the dropout's mask.
  BlockAdapters(const UnitSpec& unit, const AdapterConfig& config, uint64_t seed,
                const AdapterScratch<T>& scratch);

  // The adapters of a tensor's layer in this pass; of experts without their rows (LowRank::groups).
  LowRank<T> Of(const Pass<T>& pass, BlockTensor tensor) const;
  // The same with places for their gradients, which an input half of a backward pass makes; `adds`:
  // to what the pass has made of these already.
  LowRank<T> WithGradients(const Pass<T>& pass, BlockTensor tensor, bool adds = false) const;

 private:
  struct Layer {
    std::vector<LowRankPart> parts;
    BlockTensor a;
    BlockTensor b;
    int ranks = 0;
    DropoutMask dropout;  // without its tokens
  };

  std::map<BlockTensor, Layer> layers_;
  int rank_ = 0;
  float scale_ = 0;
  AdapterScratch<T> scratch_;
};

}  // namespace convene::worker
