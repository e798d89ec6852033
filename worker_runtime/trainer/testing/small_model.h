// A model whose step is short on an emulated GPU too.
#pragma once

#include "worker_runtime/model/config.h"

namespace convene::worker::testing {

// Token 65 is its last.
inline ModelConfig SmallModel() {
  return {.layers = 4,
          .hidden_size = 16,
          .ffn_size = 24,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 4,
          .vocabulary_size = 66};
}

}  // namespace convene::worker::testing
