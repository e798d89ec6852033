#include "launcher/plan/plan_command.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/plan/cluster_file.h"
#include "launcher/plan/measured.h"
#include "launcher/plan/plan_flags.h"
#include "launcher/plan/report.h"
#include "launcher/print.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::launcher {
namespace {

std::string TextOf(const PlanAnswer& answer) {
  if (answer.flags.file == PlanFile::kTrainYaml) return TrainYaml(answer);
  if (answer.flags.file == PlanFile::kSbatch) return SbatchText(answer);
  return answer.flags.is_json ? PlanJson(answer) : PlanText(answer);
}

absl::StatusOr<int> PlanCommand(const PlanFlags& flags) {
  std::optional<worker::Cluster> from_file;
  if (!flags.cluster.empty()) {
    CONVENE_ASSIGN_OR_RETURN(from_file, ReadCluster(flags.cluster, flags.network.empty()));
  }
  CONVENE_ASSIGN_OR_RETURN(const worker::ModelConfig model, worker::FindShape(flags.model));
  CONVENE_ASSIGN_OR_RETURN(const worker::PlanJob job, JobOf(flags, model));
  CONVENE_ASSIGN_OR_RETURN(worker::Cluster cluster, ClusterOf(flags, from_file));
  worker::Efficiency efficiency = worker::EfficiencyOf(cluster.gpu);
  std::vector<Measured> files;
  for (const std::string& path : flags.measured) {
    CONVENE_ASSIGN_OR_RETURN(files.emplace_back(), ReadMeasured(path));
  }
  const GivenHardware given = {.gpu = from_file.has_value() || !flags.gpu.empty(),
                               .network = from_file.has_value() || !flags.network.empty()};
  CONVENE_RETURN_IF_ERROR(UseMeasured(files, job, given, &cluster, &efficiency));
  CONVENE_ASSIGN_OR_RETURN(
      const worker::Plans plans,
      worker::Search(job, cluster, flags.wishes, static_cast<size_t>(flags.layouts), efficiency));
  const PlanAnswer answer = {flags, job, cluster, plans};
  if (flags.file != PlanFile::kNone && plans.ranked.empty()) {
    return absl::FailedPreconditionError(
        "no layout fits, so there is no file to print; the same command without --emit says what "
        "to change");
  }
  CONVENE_RETURN_IF_ERROR(Print(TextOf(answer)));
  // A script asks by the code whether something fits.
  return static_cast<int>(plans.ranked.empty() ? ExitCode::kTrainingFailed : ExitCode::kOk);
}

}  // namespace

Command PlanRow() {
  return CommandRow(
      "plan", "plan a training: the layout, its memory, its time",
      "Which layout for which model on which cluster; whether it fits; how long a training takes. "
      "The command tries every layout of the GPUs on paper, on any machine, and shows the best "
      "ones: memory by part, time by cause, traffic by axis and link.",
      PlanCommand);
}

}  // namespace convene::launcher
