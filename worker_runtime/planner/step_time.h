// PURE. How long a step takes on a layout, and where the time goes.
#pragma once

#include <string>
#include <vector>

#include "worker_runtime/planner/counts.h"
#include "worker_runtime/planner/hardware.h"
#include "worker_runtime/planner/job.h"

namespace convene::worker {

// The software's use of the hardware. The values are fitted on the odd rows of the published
// tables, and judged on the even ones (published_test.cc); `product_share` alone differs between
// the systems in those tables.
struct Efficiency {
  double product_share = 0.86;    // of the peak that a GPU sustains, in a large bf16 product
  double float8_share = 0.85;     // the same of the 8-bit peak
  double expert_share = 0.5;      // of the rate of other products: many small ones, by expert
  double attention_share = 0.60;  // of the bf16 peak, of the scores below the diagonal
  double memory_share = 0.70;     // of the memory's bandwidth, in passes over activations
  double half_rows = 180;         // tokens, and
  double half_width = 350;        // columns, at which a product reaches half its rate
  double half_head = 0;           // columns of a head at which attention does
  double tp_overlap = 0.6;        // of the sums over tp runs beside products
  bool overlaps_float8 = false;   // also of 8-bit ones
  // Tokens for several experts of one domain cross the network once, and are copied there (DeepEP).
  bool sends_tokens_once = false;
  // ZeRO-1 and 2 gather a bucket after the other behind the next forward pass; else all weights at
  // once after the update, beside nothing.
  bool hides_gathers = true;
  double bucket_elements = 0;    // of a data-parallel collective; 0: as the trainer cuts them
  double collective_cost = 0.3;  // of a hidden collective: the multiprocessors that it takes
  double pass_seconds = 25e-6;   // of each block and pass: launches that nothing hides
  double straggling = 0.006;     // of a step, for each doubling of the GPUs
  double step_seconds = 0.02;    // of each step: the batch, the log, the first launches
  bool fused_attention = true;   // scores stay on the chip
};

// The defaults above, or what a rank on a CPU reaches of its row.
Efficiency EfficiencyOf(const Gpu& gpu);

// Where the collectives of one axis go.
struct AxisTraffic {
  std::string axis;  // "tp", "cp", "ep", "pp", "dp"
  std::string link;
  double bytes = 0;    // that one GPU sends in a step
  double seconds = 0;  // of a step, if nothing else ran
  double exposed = 0;  // of these, what arithmetic does not hide
};

// Seconds of one step. The sum is `total`.
struct StepTime {
  double products = 0;
  double attention = 0;
  double passes = 0;  // norms, activations, launches: bound by memory
  double recomputed = 0;
  double communication = 0;  // exposed, and what hidden collectives cost the arithmetic
  double bubble = 0;
  double optimizer = 0;
  double stragglers = 0;
  double total = 0;
  std::vector<AxisTraffic> axes;
};

// The passes, forward and backward, of one chunk and micro batch that a step of the schedule takes
// beyond the work of one rank (schedule/generators.h).
double BubblePasses(const Strategy& strategy, double microbatches);

// Not thread-safe. Borrows all but the values.
class StepTimer {
 public:
  StepTimer(const PlanJob& job, const Cluster& cluster, const Efficiency& efficiency,
            ModelCounts& counts);

  // REQUIRES: the layout is legal (Legal, search.h).
  StepTime Time(const Strategy& strategy);

 private:
  // One pass of a micro batch through one block.
  struct Pass {
    double products = 0, attention = 0, passes = 0, tp = 0, cp = 0, ep = 0;
    double Seconds() const { return products + attention + passes + tp + cp + ep; }
    void Add(const Pass& other, double times);
  };
  struct Passes {
    Pass forward, backward, recomputed;
    double weights = 0;  // seconds of the weight half of the backward pass
  };
  // A pipeline rank in one micro batch.
  struct Stage {
    const std::vector<ChunkCount>* chunks = nullptr;
    double forward = 0, backward = 0;  // seconds
    double weights = 0;                // of these, what a weight half takes
    Pass pass, again;                  // both directions; what is recomputed
  };
  // Messages of data-parallel ranks for one gather of all weights and one sum of all gradients.
  struct StoreTraffic {
    double gather = 0, scatter = 0;  // seconds
    double bytes_gather = 0, bytes_scatter = 0;
    double owned = 0;  // parameters that this rank updates
    std::string link;
  };

  double ProductSeconds(double multiplied, double rows, double width, bool is_float8) const;
  Passes BlockPasses(const Strategy& strategy, double rows, bool has_experts) const;
  void AddTensorParallel(const Strategy& strategy, double rows, Passes& passes) const;
  void AddContextParallel(const Strategy& strategy, double rows, Passes& passes) const;
  void AddExperts(const Strategy& strategy, double rows, Passes& passes) const;
  void AddRecompute(const Strategy& strategy, Passes& passes) const;
  Pass HeadPass(const Strategy& strategy, double rows) const;
  Stage SlowestStage(const Strategy& strategy, double rows) const;
  void AddStore(const Strategy& strategy, double parameters, double blocks, int shards, int copies,
                int stride, StoreTraffic& store) const;
  void AddDataParallel(const Strategy& strategy, double microbatches, const Stage& stage,
                       StepTime& time) const;
  void AddPipeline(const Strategy& strategy, double microbatches, double rows, const Stage& stage,
                   StepTime& time) const;
  void AddBlockAxes(const Strategy& strategy, double microbatches, double rows, const Stage& stage,
                    StepTime& time) const;

  const PlanJob& job_;
  const Cluster& cluster_;
  const Efficiency efficiency_;
  ModelCounts& counts_;
  double mean_keys_ = 0;                       // scores of a query, the mean of the layers
  const ModelCounts::Units* units_ = nullptr;  // of the strategy that is timed
};

}  // namespace convene::worker
