#include "worker_runtime/planner/train_yaml.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "worker_runtime/planner/explain.h"

namespace convene::worker {

const char* PrecisionName(const PlanJob& job) { return job.float8 ? "fp8" : DTypeName(job.dtype); }

std::string TrainYaml(const RunSettings& settings, const PlanJob& job, const Strategy& strategy) {
  const Layout& layout = strategy.layout;
  std::string text = absl::StrCat(
      "# CHANGE: data and tokenizer are yours.\ndata: [\"", absl::Utf8SafeCHexEscape(settings.data),
      "\"]\nmodel: \"", absl::Utf8SafeCHexEscape(settings.model), "\"\nsteps: ", settings.steps,
      "\nglobal_batch_size: ", job.global_batch_size,
      "\nmicro_batch_size: ", strategy.micro_batch_size, "\nsequence_length: ", job.sequence_length,
      "\nprecision: ", PrecisionName(job), "\nreduce_dtype: ", DTypeName(job.reduce_dtype),
      "\noptimizer: ", settings.optimizer, "\nrecompute: ", RecomputeText(strategy.recompute),
      "\ntp_size: ", layout.tp, "\npp_size: ", layout.pp, "\ncp_size: ", layout.cp,
      "\nep_size: ", layout.ep, "\ndp_size: ", layout.dp, "\nzero_stage: ", strategy.zero_stage,
      "\n");
  if (strategy.zero_stage > 0) {
    absl::StrAppend(&text, "dp_shard_size: ", layout.dp_shard(),
                    "\ndp_replicate_size: ", layout.dp_replicate, "\n");
  }
  if (layout.pp > 1) absl::StrAppend(&text, "pp_schedule: ", ScheduleName(strategy), "\n");
  if (strategy.virtual_stages > 1) {
    absl::StrAppend(&text, "pp_virtual_stages: ", strategy.virtual_stages, "\n");
  }
  return text;
}

}  // namespace convene::worker
