#include "worker_runtime/bench/bench_flags.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

constexpr size_t kSizesMax = 4096;
constexpr double kBytesMost = 64.0 * (1 << 30);
constexpr double kPairBytesMost = 4.0 * (1 << 30);  // elements are counted in 32 bits there

const std::vector<std::pair<std::string, CollectiveKind>>& Operations() {
  static const auto& operations = *new std::vector<std::pair<std::string, CollectiveKind>>{
      {"all_reduce", CollectiveKind::kAllReduce},
      {"all_gather", CollectiveKind::kAllGather},
      {"reduce_scatter", CollectiveKind::kReduceScatter},
      {"all_to_all", CollectiveKind::kAllToAll},
      {"broadcast", CollectiveKind::kBroadcast},
      {"sendrecv", CollectiveKind::kShift}};
  return operations;
}

template <typename Size>
void SizeOption(FlagReader* reader, const std::string& name, char letter, Size* target,
                const std::string& help) {
  reader->Custom(name,
                 [target](const std::string& text) -> absl::Status {
                   int64_t bytes = 0;
                   CONVENE_RETURN_IF_ERROR(ParseSize(text, &bytes));
                   if (bytes < 0 || static_cast<double>(bytes) > kBytesMost) {
                     return absl::InvalidArgumentError("write a size from 0 to 64G");
                   }
                   *target = bytes;
                   return absl::OkStatus();
                 },
                 help, {.value = "SIZE", .letter = letter});
}

absl::Status Check(const BenchFlags& flags) {
  for (const std::string& name : flags.operations) {
    if (name == kCompute || OperationNamed(name).has_value()) continue;
    return absl::InvalidArgumentError(absl::StrCat("the operation `", name, "` is unknown: write ",
                                                   absl::StrJoin(OperationNames(), ", "), ", ",
                                                   kCompute));
  }
  if (flags.least_bytes < 1 || flags.least_bytes > MostBytes(flags)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sizes go from --minbytes ", flags.least_bytes, " to --maxbytes ",
                     MostBytes(flags), ": the first is at least 1, and not above the second"));
  }
  if (BenchSizes(flags).size() > kSizesMax) {
    return absl::InvalidArgumentError(absl::StrCat("--stepbytes ", flags.step_bytes,
                                                   " makes more than ", kSizesMax,
                                                   " sizes: take a larger one, or --stepfactor"));
  }
  if (flags.json && !flags.compare.empty()) {
    return absl::InvalidArgumentError(
        "--json and --compare do not go together: compare in text, or --save each run and read "
        "both");
  }
  if (flags.pairs && MostBytes(flags) < 4) {
    return absl::InvalidArgumentError("--maxbytes is at least 4 with --pairs: a number's bytes");
  }
  if (flags.pairs && static_cast<double>(MostBytes(flags)) > kPairBytesMost) {
    return absl::InvalidArgumentError("--maxbytes is at most 4G with --pairs");
  }
  return absl::OkStatus();
}

void AddSweepFlags(FlagReader* reader, BenchFlags* flags) {
  reader->Group("As nccl-tests has them");
  SizeOption(reader, "minbytes", 'b', &flags->least_bytes, "the smallest size (8)");
  SizeOption(reader, "maxbytes", 'e', &flags->most_bytes,
             "the largest size (128M; 64M with --pairs)");
  reader->Option("stepfactor", &flags->factor, "each size is this many times the one before (2)",
                 {.value = "X", .letter = 'f', .least = 1.01, .most = 1e6});
  SizeOption(reader, "stepbytes", 'i', &flags->step_bytes,
             "each size is this much more than the one before, in place of --stepfactor");
  reader->Option("iters", &flags->iterations, "timed calls of each size (20)",
                 {.value = "N", .letter = 'n', .least = 1, .most = 1e6});
  reader->Option("warmup-iters", &flags->warmup_iterations, "calls before these (5)",
                 {.value = "N", .letter = 'w', .least = 0, .most = 1e6});
  reader->Option("check", &flags->check, "compare each result with the right one; 0: do not (1)",
                 {.value = "N", .letter = 'c'});
  reader->Choice<DType>("datatype", &flags->dtype,
                        {{"float", DType::kFloat32}, {"bfloat16", DType::kBFloat16}},
                        "the type of the elements (float)", {.letter = 'd'});
  reader->Choice<ReduceOp>("op", &flags->op, {{"sum", ReduceOp::kSum}, {"max", ReduceOp::kMax}},
                           "the reduction (sum)", {.letter = 'o'});
  reader->Option("root", &flags->root, "the rank that broadcasts (0)",
                 {.value = "RANK", .letter = 'r', .least = 0, .most = 1 << 20});
  reader->Option("timeout", &flags->timeout, "a call that takes longer ends the bench (120)",
                 {.value = "SECONDS", .letter = 'T', .least = 0.001});
}

}  // namespace

void AddFlags(FlagReader* reader, BenchFlags* flags) {
  reader->Words("OPERATION ...", &flags->operations);
  AddSweepFlags(reader, flags);
  reader->Group("Beyond nccl-tests");
  reader->Switch(
      "pairs", &flags->pairs,
      "measure each pair of nodes, or of ranks on one node, and name the slow link; operations "
      "that are named are timed before");
  reader->Option("device", &flags->device, "auto takes a GPU where there is one (auto)",
                 {.choices = {"auto", "cpu", "cuda"}});
  reader->Switch("json", &flags->json, "print JSON, for programs");
  reader->Option("save", &flags->save, "write the result into FILE as JSON", {.value = "FILE"});
  reader->Option("compare", &flags->compare, "show it beside FILE, the result of a --save",
                 {.value = "FILE"});
  reader->Option("nproc-per-node", &flags->nproc_per_node,
                 "ranks on each node, where this command starts them (a rank a GPU, else a CPU)",
                 {.value = "N"});
  reader->Check([flags] { return Check(*flags); });
}

int64_t MostBytes(const BenchFlags& flags) {
  const int64_t usual = flags.pairs ? 64 << 20 : 128 << 20;
  return flags.most_bytes.value_or(std::max(usual, flags.least_bytes));
}

bool TimesOperations(const BenchFlags& flags) { return !flags.pairs || !flags.operations.empty(); }

std::vector<int64_t> BenchSizes(const BenchFlags& flags) {
  const int64_t most = MostBytes(flags);
  std::vector<int64_t> sizes;
  for (int64_t size = flags.least_bytes; size <= most && sizes.size() <= kSizesMax;) {
    sizes.push_back(size);
    const auto scaled = static_cast<int64_t>(std::floor(static_cast<double>(size) * flags.factor));
    size = flags.step_bytes > 0 ? size + flags.step_bytes : std::max(size + 1, scaled);
  }
  return sizes;
}

std::vector<std::string> OperationNames() {
  std::vector<std::string> names;
  for (const auto& [name, kind] : Operations()) names.push_back(name);
  return names;
}

std::optional<CollectiveKind> OperationNamed(const std::string& name) {
  for (const auto& [each, kind] : Operations()) {
    if (each == name) return kind;
  }
  return std::nullopt;
}

}  // namespace convene::worker
