// PURE. The flags of `convene plan`, and the job and cluster that they describe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tools/base/flag_reader.h"
#include "worker_runtime/planner/hardware.h"
#include "worker_runtime/planner/search.h"

namespace convene::launcher {

enum class PlanFile { kNone, kTrainYaml, kSbatch };
enum class PlanPrecision { kBf16, kFp8, kFp32 };

struct PlanFlags {
  std::string model = "llama-3-8b";  // worker::FindShape's
  int gpus = 8;
  std::string gpu;                       // "": h100, or the file's
  std::string network;                   // "": the usual one of the GPU, or the file's
  std::optional<int> nodes_of;           // nullopt: the GPU's usual machine
  std::string cluster;                   // a file; "": none
  std::vector<std::string> measured;     // files of `convene bench --save`
  std::optional<double> tokens;          // of the whole training
  std::optional<int> sequence_length;    // nullopt: 4096, or as many as the model has positions
  std::optional<int> global_batch_size;  // samples; nullopt: by the model's size
  PlanPrecision precision = PlanPrecision::kBf16;
  worker::DType reduce_dtype = worker::DType::kFloat32;
  std::string optimizer = "adamw";
  worker::Wishes wishes;
  int layouts = 3;
  bool explains = false;
  bool is_json = false;
  PlanFile file = PlanFile::kNone;
  std::optional<double> price;  // of a GPU for an hour
  std::string data = "tokens.bin";
};
void AddFlags(FlagReader* reader, PlanFlags* flags);

// "2T", "1.5e12", "300B", "40M": tokens. InvalidArgument for other text, and below 1.
absl::StatusOr<double> ParseCount(const std::string& text);

// `model`: of flags.model. InvalidArgument: a sequence longer than the model's positions, 8-bit
// products that the trainer lacks.
absl::StatusOr<worker::PlanJob> JobOf(const PlanFlags& flags, const worker::ModelConfig& model);

// `from_file`: of --cluster, whose network --network replaces; nullopt: by both flags. NotFound: an
// unknown name. InvalidArgument: GPUs that do not fill whole machines.
absl::StatusOr<worker::Cluster> ClusterOf(const PlanFlags& flags,
                                          const std::optional<worker::Cluster>& from_file);

}  // namespace convene::launcher
