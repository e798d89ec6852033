// PURE. One case of the layout property test: a model, its data, and a legal way to train it on up
// to eight ranks. All of it is a table of axes, from which drawing, text and shrinking follow.
//
// A new axis is a field of LayoutCase, a row of LayoutAxes(), and a line in OptionsOf (or, where
// the trainer has no option for it, in the test's RunOf); a new value of an axis (a schedule, say)
// is a number and a word in its row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/options/options.h"

namespace convene::worker::testing {

// Plain numbers, each with its row in LayoutAxes(), which says its values.
struct LayoutCase {
  // How many ranks each axis of the mesh has.
  int pp, dp_replicate, dp_shard, cp, tp;
  int ep;  // of these ranks of dp x cp
  // How they go about it.
  int schedule, virtual_stages, uneven_cut, micro_batch, sequence_parallel, row_chunks, cp_method,
      recompute, recompute_layers, zero_stage, reshard, offload, overlap, bucket, gloo;
  // The task: the same for the one process that tells what is right.
  int family, layers, hidden, kv_heads, queries_a_key, head_size, ffn, vocabulary, tied;
  int sequence_length, global_batch, packed, masked, clip;
  int experts, chosen, expert_ffn, router_losses, expert_memory;
  int optimizer, decay, spikes, ramp, lora;
  int window;  // in tokens, where the family has windows

  friend bool operator==(const LayoutCase&, const LayoutCase&) = default;
};

struct LayoutAxis {
  enum class Kind { kRanks, kExecution, kTask };

  const char* name;
  int LayoutCase::*field;
  Kind kind;
  // The drawn values, the simplest one first; a value that stands here twice is drawn twice as
  // often.
  std::vector<int> values;
  std::vector<const char*> words;  // for the values 0, 1, 2, ...; empty: they are numbers
};

const std::vector<LayoutAxis>& LayoutAxes();

// The words of some axes, which the test reads too.
enum Masked {
  kNothingMasked,
  kTokensMasked,
  kSamplesMasked,
  kAllButOneSampleMasked,  // of each step: elsewhere whole ranks and micro batches do not count
  kAllButOneTokenMasked,   // of each step
  kStepsMasked,            // two of the five steps count nowhere, the others in some tokens
};

// Every axis at its simplest value.
LayoutCase SimplestCase();

// The axes that are not at their simplest: "pp=2 schedule=gpipe packed=1".
std::string TextOf(const LayoutCase& the_case);
// The inverse; InvalidArgument names a word or a number that is none.
absl::StatusOr<LayoutCase> CaseOfText(absl::string_view text);

int RanksOf(const LayoutCase& the_case);
// The settings with which a user would ask for it.
TrainOptions OptionsOf(const LayoutCase& the_case);
// InvalidArgument for more than eight ranks, and what LayoutOf and ValidateOptions refuse. So it is
// for sequences and windows of one token, whose queries and keys have gradients that are rounding
// alone, where these would be told apart: Muon makes whole steps of them, and biases begin at 0.
absl::StatusOr<Layout> LegalLayout(const LayoutCase& the_case);

// A family's legal cases, by their numbers. A case depends on the family's name and on the axes,
// and on no other family. `family`: LayoutCase::family.
LayoutCase CaseOfFamily(int family, uint64_t number);
// The families take turns: seeds from 1 on.
LayoutCase CaseOfSeed(uint64_t seed);
// Seeds from 1 to here are trained by every check: fourteen rounds of all families.
uint64_t CheckedSeeds();

// The same task as one process does it that knows no axis, the whole batch in one pass.
LayoutCase OneProcess(LayoutCase the_case);

struct Shrunk {
  LayoutCase smallest;
  int runs = 0;
};
// Brings one axis after the other nearer to its simplest value as long as the case is legal and
// `fails`, which is asked at most `runs_max` times. REQUIRES: `the_case` fails.
Shrunk Shrink(const LayoutCase& the_case, int runs_max,
              absl::FunctionRef<bool(const LayoutCase&)> fails);

}  // namespace convene::worker::testing
