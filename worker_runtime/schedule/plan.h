// PURE. Pipeline schedules as lists of compute alone. generators.h makes them, schedule_csv.h reads
// them, simulate.h checks and times them, lower.h turns them into messages and memory.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace convene::worker {

// The model is cut into chunks, numbered from the embedding to the head. Each pipeline rank holds
// one chunk or several ("virtual stages").
enum class ComputeKind {
  kForward,
  kBackward,  // both halves at once
  // The halves. No other rank waits for the second one.
  kBackwardInput,   // the gradient of the chunk's input
  kBackwardWeight,  // the gradients of its parameters
};

struct Compute {
  ComputeKind kind;
  int chunk;
  int microbatch;
  friend bool operator==(const Compute&, const Compute&) = default;
};

// As PyTorch writes it: "3F0" is chunk 3 forward with microbatch 0. F, B, I and W in the order of
// the kinds.
std::string ToString(const Compute& compute);

// [chunk]: the pipeline rank that holds it.
using ChunkPlacement = std::vector<int>;

struct Schedule {
  ChunkPlacement placement;
  int microbatches = 0;
  std::vector<std::vector<Compute>> ranks;  // [rank]: what it computes, in order
};

// The chunk that makes what `compute` reads, and the one that reads what `compute` makes, with the
// same microbatch and in the same direction. -1 where that is no other chunk: at the model's ends,
// and for weight halves.
int SourceOf(const Schedule& schedule, const Compute& compute);
int ReaderOf(const Schedule& schedule, const Compute& compute);

// The pairs of ranks between which messages go, in both directions: each once and in ascending
// order, the lower rank first.
std::vector<std::pair<int, int>> LinksOf(const ChunkPlacement& placement);

}  // namespace convene::worker
