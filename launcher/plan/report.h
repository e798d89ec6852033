// PURE. The answers of `convene plan`: a text for people, JSON, and files that run the plan.
#pragma once

#include <string>

#include "launcher/plan/plan_flags.h"

namespace convene::launcher {

// A question and its answer. Borrows.
struct PlanAnswer {
  const PlanFlags& flags;
  const worker::PlanJob& job;
  const worker::Cluster& cluster;
  const worker::Plans& plans;
};

// Figures of a whole training on one layout.
struct PlanFigures {
  double tokens_per_second = 0;
  double tokens_per_gpu = 0;  // a second
  // Model FLOPs utilisation: FLOPs of tokens over the GPUs' peak in the products' type, with all of
  // attention's scores (PaLM, torchtitan) and with those below the diagonal (Megatron-LM).
  double peak = 0;  // FLOP/s of a GPU
  double mfu_full = 0;
  double mfu_causal = 0;
  // Hardware FLOPs utilisation: mfu_full, and the FLOPs that are computed again.
  double hfu = 0;
  double days = 0;   // 0: no --tokens
  double mwh = 0;    // megawatt hours; 0: the GPU has no watts
  double price = 0;  // 0: no --price-per-gpu-hour
};
PlanFigures FiguresOf(const PlanAnswer& answer, const worker::Estimate& estimate);

std::string PlanText(const PlanAnswer& answer);
// One object; README.md names its keys.
std::string PlanJson(const PlanAnswer& answer);

// REQUIRES: plans.ranked is not empty. A configuration of convene-train, and a batch file of Slurm
// that runs it from the file train.yaml beside it.
std::string TrainYaml(const PlanAnswer& answer);
std::string SbatchText(const PlanAnswer& answer);

}  // namespace convene::launcher
