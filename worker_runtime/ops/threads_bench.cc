// Prints what threads bring to each op on a CPU: threads_bench MODEL MICRO_BATCH SEQUENCE
// THREADS...
//
// Each op runs at the model's shapes with one thread and with each number of THREADS, in turns; the
// table holds the medians of its calls, and last the op that more threads slow down most.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/rounding.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/bench_ops.h"
#include "worker_runtime/ops/cpu/team_watch.h"

namespace convene::worker {
namespace {

constexpr int64_t kFlatMax = int64_t{1} << 24;  // elements of the ops over all parameters

double Seconds(const BenchInputs& inputs, const BenchOp& op) {
  using SteadyClock = std::chrono::steady_clock;
  Pieces set(inputs);
  const auto start = SteadyClock::now();
  op.run(set);
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// The medians of calls with each number of threads. The first call of each turn wakes the team and
// is not counted.
std::vector<double> Medians(const BenchInputs& inputs, const BenchOp& op,
                            const std::vector<int>& threads) {
  constexpr int kTurns = 5;
  constexpr double kTurnSeconds = 2e-3;
  constexpr int kCallsMax = 200;
  std::vector<std::vector<double>> seconds(threads.size());
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t i = 0; i < threads.size(); ++i) {
      omp_set_num_threads(threads[i]);
      (void)Seconds(inputs, op);
      double spent = 0;
      for (int call = 0; call < kCallsMax && spent < kTurnSeconds; ++call) {
        seconds[i].push_back(Seconds(inputs, op));
        spent += seconds[i].back();
      }
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& each : seconds) medians.push_back(Median(each));
  return medians;
}

struct Worst {
  double ratio = 0;
  std::string op;
};

void Bench(const BenchInputs& inputs, const char* type, const std::vector<BenchOp>& ops,
           const std::vector<int>& threads, std::vector<Worst>& worst) {
  for (const BenchOp& op : ops) {
    const std::vector<double> medians = Medians(inputs, op, threads);
    std::printf("%-4s %-34s %10.1f", type, op.name.c_str(), medians[0] * 1e6);
    for (size_t i = 1; i < medians.size(); ++i) {
      const double ratio = medians[i] / medians[0];
      std::printf(" %10.1f %5.2f", medians[i] * 1e6, ratio);
      if (ratio > worst[i].ratio) worst[i] = {ratio, absl::StrCat(type, " ", op.name)};
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

absl::Status BenchAll(const std::string& model, int micro_batch, int sequence,
                      const std::vector<int>& threads) {
  CONVENE_ASSIGN_OR_RETURN(const ModelConfig config, NamedModel(model));
  const int rows = micro_batch * sequence;
  const int64_t parameters = std::min(kFlatMax, ParameterCount(config)) / kFlagBlock * kFlagBlock;
  const BenchShape shape = {.rows = rows,
                            .hidden = config.hidden_size,
                            .ffn = config.ffn_size,
                            .heads = config.heads,
                            .kv_heads = config.kv_heads,
                            .head_size = config.head_size,
                            .sequence_length = sequence,
                            .vocabulary = config.vocabulary_size,
                            .activations = int64_t{rows} * config.hidden_size,
                            .parameters = parameters};
  const int most = *std::max_element(threads.begin(), threads.end());
  // Each op has its set alone: a product, a loss, AdamW, or attention's scratch.
  const size_t arena_bytes =
      size_t{4} *
          (size_t{4} * rows * (config.vocabulary_size + 8 * config.ffn_size) +
           size_t{2} * config.vocabulary_size * config.hidden_size + size_t{5} * parameters +
           size_t{8} * most * sequence * RoundUp(config.head_size, 16)) +
      (size_t{64} << 20);
  const std::unique_ptr<Device> device = Device::Cpu();
  CONVENE_ASSIGN_OR_RETURN(const BenchInputs inputs, MakeBenchInputs(*device, shape, arena_bytes));
  std::printf("%s, %d x %d tokens: us with 1 thread", model.c_str(), micro_batch, sequence);
  for (size_t i = 1; i < threads.size(); ++i) std::printf("; with %d, ratio", threads[i]);
  std::printf("\n");
  std::vector<Worst> worst(threads.size());
  const auto bench_type = [&]<typename T>(T /*zero*/) {
    const char* const type = DTypeName(kDTypeOf<T>);
    for (const auto& ops : {ProductOps<T>(inputs), ExpertOps<T>(inputs), AttentionOps<T>(inputs),
                            RowOps<T>(inputs)}) {
      Bench(inputs, type, ops, threads, worst);
    }
  };
  bench_type(float{});
  bench_type(BFloat16{});
  Bench(inputs, "both", FlatOps(inputs), threads, worst);
  for (size_t i = 1; i < threads.size(); ++i) {
    std::printf("worst with %d threads: %.2f, %s\n", threads[i], worst[i].ratio,
                worst[i].op.c_str());
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) {
  std::vector<int> numbers;
  for (int i = 2; i < argc; ++i) numbers.push_back(std::atoi(argv[i]));
  if (numbers.size() < 3 || *std::min_element(numbers.begin(), numbers.end()) < 1) {
    std::fprintf(stderr, "usage: threads_bench MODEL MICRO_BATCH SEQUENCE THREADS...\n");
    return 64;
  }
  convene::worker::cpu::watches_teams = true;  // as in the trainer
  std::vector<int> threads = {1};
  threads.insert(threads.end(), numbers.begin() + 2, numbers.end());
  const absl::Status status = convene::worker::BenchAll(argv[1], numbers[0], numbers[1], threads);
  if (status.ok()) return 0;
  std::fprintf(stderr, "threads_bench: %s\n", status.ToString().c_str());
  return 1;
}
