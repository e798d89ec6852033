#include "worker_runtime/options/adapter_options.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/report/number_text.h"

namespace convene::worker {

absl::Status ValidateTrainedModel(const TrainOptions& options, const Layout& layout) {
  CONVENE_RETURN_IF_ERROR(ValidateModel(options.model, layout));
  CONVENE_RETURN_IF_ERROR(ValidateAdapters(options.model, layout.tp));
  if (!options.model.adapter.is_on() || options.optimizer->matrices() == nullptr) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer ", options.optimizer->name(),
                   " is for whole matrices, which adapters are not; choose optimizer adamw or sgd "
                   "with lora_rank"));
}

std::string DescribeAdapters(const ModelConfig& model) {
  const AdapterConfig& adapter = model.adapter;
  if (!adapter.is_on()) return "";
  return absl::StrCat(
      "; LoRA of rank ", adapter.rank, " and alpha ", adapter.alpha,
      adapter.rank_stabilized ? " (rank-stabilized)" : "",
      adapter.dropout > 0 ? absl::StrCat(", dropout ", adapter.dropout) : "", " on ",
      adapter.targets.empty() ? "all matrices of blocks" : absl::StrJoin(adapter.targets, ", "),
      ": ", WithThousands(TrainedCount(model)), " parameters learn");
}

}  // namespace convene::worker
