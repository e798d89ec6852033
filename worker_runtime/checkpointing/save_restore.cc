#include "worker_runtime/checkpointing/save_restore.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "spdlog/spdlog.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/directory_lock.h"
#include "worker_runtime/checkpoint/step_directory.h"
#include "worker_runtime/model/shape_text.h"

namespace convene::worker {
namespace {

// torchrun's and our own run id where the user gives none.
constexpr absl::string_view kNobodysName = "none";
constexpr absl::Duration kOtherJobsTimeToEnd = absl::Seconds(5);
constexpr absl::Duration kLostMachinesTimeToEnd = absl::Minutes(2);

// Fails now, not after the steps up to the first checkpoint.
absl::Status MakeWritable(const std::string& directory) {
  absl::Status status = MakeDirectories(directory);
  if (status.ok() && access(directory.c_str(), W_OK | X_OK) != 0) {
    status = ErrnoStatus(errno, absl::StrCat("write to ", directory));
  }
  if (status.ok()) return status;
  return Annotate(status, "--checkpoint-dir cannot take checkpoints; give another");
}

absl::StatusOr<DirectoryLock> Claim(const TrainOptions& options, const JobIdentity& job) {
  CONVENE_RETURN_IF_ERROR(MakeWritable(options.checkpoint_dir));
  const auto warn = [](const std::string& text) { spdlog::warn("{}", text); };
  const absl::Duration wait_max = options.checkpoint_timeout / 2;
  absl::StatusOr<DirectoryLock> lock = LockDirectory(
      options.checkpoint_dir, {.job = job.name,
                               .is_restart = job.is_restart,
                               .has_own_name = job.name != kNobodysName,
                               .wait_timeout = std::min(kOtherJobsTimeToEnd, wait_max),
                               .lost_machine_timeout = std::min(kLostMachinesTimeToEnd, wait_max),
                               .on_wait = warn,
                               .on_unlocked = warn});
  if (!absl::IsAlreadyExists(lock.status()) && !absl::IsDeadlineExceeded(lock.status())) {
    return lock;
  }
  return absl::Status(lock.status().code(),
                      absl::StrCat(lock.status().message(),
                                   ": give this job another --checkpoint-dir, or stop that one. "
                                   "Where it died with its machine, "
                                   "and the file server still keeps its lock, remove ",
                                   options.checkpoint_dir, "/writer.lock"));
}

void LogRefused(const std::string& reason) { spdlog::warn("checkpoint refused: {}", reason); }

std::string DataText(const std::string& data, const std::string& samples) {
  return absl::StrCat(data, samples.empty() ? "" : ", ", samples);
}

bool IsOtherTokenizer(const TokenizerMark& a, const TokenizerMark& b) {
  return a.fingerprint != 0 && b.fingerprint != 0 && a.fingerprint != b.fingerprint;
}

// OK with a warning to log, "" without one.
absl::StatusOr<std::string> CompareData(const std::string& name, const CheckpointInfo& info,
                                        const JobIdentity& job, bool accept_new_data) {
  // Data that name their tokenizer tell one from the other too, by its number.
  const bool is_other_tokenizer = IsOtherTokenizer(info.tokenizer, job.tokenizer);
  const std::string words =
      is_other_tokenizer ? absl::StrCat(" (the checkpoint's tokenizer is ", info.tokenizer.path,
                                        ", this run's is another one, ", job.tokenizer.path, ")")
                         : "";
  if (info.data == job.data && info.samples == job.samples) {
    if (!is_other_tokenizer) return std::string();
    return absl::StrCat(name, " goes on with another tokenizer than it was trained with", words,
                        ": texts made from its tokens may make no sense");
  }
  const std::string here = DataText(job.data, job.samples);
  if (info.data.empty() || (info.data == job.data && info.samples.empty())) {
    return absl::StrCat(name, " does not say what ", info.data.empty() ? "data" : "samples",
                        " it was trained on (an earlier version of this program wrote it); going "
                        "on with ",
                        here);
  }
  const std::string trained_on = DataText(info.data, info.samples);
  if (accept_new_data) {
    return absl::StrCat(name, " was trained on ", trained_on, "; going on with ", here, words,
                        ", as --accept-new-data says");
  }
  return absl::FailedPreconditionError(absl::StrCat(
      name, " was trained on ", trained_on, "; this run has ", here, words,
      ": the samples, or their sums, would not be the same. Give the data, --sequence-length, "
      "--validation-fraction, --packed-documents, --reproducible and with that --micro-batch-size "
      "as it was trained with, or --accept-new-data to go on with these"));
}

// The checkpoint that rank 0 chose.
absl::StatusOr<std::unique_ptr<StateSource>> OpenChosen(const std::string& path) {
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(path);
  if (absl::IsNotFound(reader.status())) {
    return absl::NotFoundError(
        absl::StrCat(path,
                     ", which rank 0 found, is not to be seen on this node: checkpoints must "
                     "lie on a file system that all nodes share"));
  }
  if (!reader.ok()) return reader.status();
  return std::make_unique<CheckpointReader>(*std::move(reader));
}

// The advice about a checkpoint of shape `held`, which is not the run's.
std::string HowToFit(const std::string& held, const ModelConfig& model) {
  const absl::StatusOr<ModelConfig> shape = ParseShapeText(held);
  ModelConfig but_adapters = model, but_scaling = model;
  if (shape.ok()) {
    but_adapters.adapter = shape->adapter;
    but_scaling.rope_scaling = shape->rope_scaling;
  }
  if (ShapeText(but_adapters) == held) {
    return "give --lora-rank, --lora-alpha, --lora-targets and --lora-rank-stabilized as it was "
           "trained with, or another --checkpoint-dir";
  }
  if (ShapeText(but_scaling) == held) {
    return "the rotary positions differ: give --rope-scaling-factor as it was trained "
           "with (1: not scaled), or another --checkpoint-dir";
  }
  return "give the --model it was trained with, or another --checkpoint-dir";
}

absl::Status Load(const StateSource& source, const TrainOptions& options, const JobIdentity& job,
                  bool is_speaker, CheckpointedState& optimizer) {
  const CheckpointInfo& info = source.info();
  if (info.model != ShapeText(options.model)) {
    return absl::FailedPreconditionError(
        absl::StrCat(source.name(), " holds a model of shape ", info.model, ", not ",
                     ShapeText(options.model), "; ", HowToFit(info.model, options.model)));
  }
  if (info.seed != options.seed) {
    return absl::FailedPreconditionError(
        absl::StrCat(source.name(), " was trained with --seed ", info.seed, ", not ", options.seed,
                     ": the sample order would change; give that seed, or --resume none with "
                     "another --checkpoint-dir"));
  }
  if (info.optimizer != options.optimizer->name()) {
    return absl::FailedPreconditionError(
        absl::StrCat(source.name(), " was trained with --optimizer ", info.optimizer, ", not ",
                     options.optimizer->name(),
                     ", which keeps other numbers; give that optimizer, or another "
                     "--checkpoint-dir"));
  }
  CONVENE_ASSIGN_OR_RETURN(const std::string warning,
                           CompareData(source.name(), info, job, options.accept_new_data));
  if (is_speaker && !warning.empty()) spdlog::warn("{}", warning);
  // The same weights may lie elsewhere now, so another path is no error.
  if (is_speaker && info.base != options.init_from && !info.base.empty() &&
      !StepIn(options.init_from, info.base).has_value()) {
    spdlog::warn(
        "{} was trained beside {}, and --init-from is {}: it goes on well only if both hold the "
        "same weights",
        source.name(), info.base, options.init_from);
  }
  CONVENE_ASSIGN_OR_RETURN(const std::vector<PieceToRead> pieces, optimizer.PiecesToRead());
  absl::Status read = source.Read(pieces);
  if (absl::IsFailedPrecondition(read) && options.optimizer == &SgdRule()) {
    return absl::FailedPreconditionError(
        absl::StrCat(read.message(),
                     "; a checkpoint that --momentum 0 wrote has no momentum: give --momentum 0 "
                     "to go on with it"));
  }
  return read;
}

// By rank 0.
CheckpointChoice ChooseAndTell(const TrainOptions& options, const JobIdentity& job,
                               Refused* refused) {
  const size_t known = refused->reasons.size();
  const CheckpointChoice choice = ChooseCheckpoint(options, refused);
  for (size_t i = known; i < refused->reasons.size(); ++i) LogRefused(refused->reasons[i]);
  if (choice.status.ok() && choice.origin == Origin::kOwnDirectory && !job.is_restart &&
      options.resume != ResumeMode::kAuto) {
    spdlog::info(
        "{} holds checkpoints of a run that began with --resume {}: it goes on. To begin anew, "
        "give another --checkpoint-dir",
        options.checkpoint_dir, BeganWith(options));
  }
  return choice;
}

}  // namespace

absl::StatusOr<Agreement> SaveCheckpoint(const std::string& directory, const CheckpointInfo& info,
                                         int keep,
                                         const absl::StatusOr<std::vector<PieceToWrite>>& pieces,
                                         Collective& world, Stream& stream, ShardWrite* write,
                                         absl::Span<const NamedFile> tokenizer_files,
                                         const DirectoryLock* lock) {
  const auto check = [lock] { return lock == nullptr ? absl::OkStatus() : lock->Check(); };
  absl::Status written = pieces.ok() ? check() : pieces.status();
  if (written.ok()) written = WriteShard(directory, info.step, world.rank(), *pieces, write);
  CONVENE_ASSIGN_OR_RETURN(
      const Agreement all_written,
      ReachAgreement(written, "write its part of the checkpoint", world, stream));
  absl::Status published;
  if (world.rank() == 0) {
    if (all_written.verdict.ok()) {
      published = PublishCheckpoint(directory, info, tokenizer_files, lock);
      const absl::Status removed =
          published.ok() ? RemoveOldCheckpoints(directory, info.step, keep) : absl::OkStatus();
      // The new checkpoint exists all the same; after the next one old ones are removed again.
      if (!removed.ok())
        spdlog::warn("old checkpoints could not be removed: {}", removed.ToString());
    }
    // Files that a manifest names stay, and so do those of another start.
    if ((!all_written.verdict.ok() || !published.ok()) && check().ok()) {
      const absl::Status discarded = DiscardUnpublished(directory, info.step);
      if (!discarded.ok())
        spdlog::warn("the remains of a failed checkpoint could not be removed: {}",
                     discarded.ToString());
    }
  }
  if (!all_written.verdict.ok()) {
    // No rank begins the next attempt while rank 0 may still remove the files of this one.
    CONVENE_RETURN_IF_ERROR(world.Barrier(stream));
    return all_written;
  }
  return ReachAgreement(published, "publish the checkpoint", world, stream);
}

absl::StatusOr<std::optional<DirectoryLock>> ClaimCheckpointDirectory(const TrainOptions& options,
                                                                      const JobIdentity& job,
                                                                      Collective& world,
                                                                      Stream& stream) {
  std::optional<DirectoryLock> lock;
  absl::Status status;
  if (world.rank() == 0 && !options.checkpoint_dir.empty()) {
    absl::StatusOr<DirectoryLock> claimed = Claim(options, job);
    status = claimed.status();
    if (claimed.ok()) lock = *std::move(claimed);
  }
  CONVENE_RETURN_IF_ERROR(Agree(status, "have the checkpoint directory for itself", world, stream));
  return lock;
}

absl::StatusOr<Agreement> RestoreFrom(const absl::StatusOr<std::unique_ptr<StateSource>>& source,
                                      const TrainOptions& options, const JobIdentity& job,
                                      CheckpointedState& optimizer, Collective& world,
                                      Stream& stream) {
  const absl::Status loaded =
      source.ok() ? Load(**source, options, job, world.rank() == 0, optimizer) : source.status();
  CONVENE_ASSIGN_OR_RETURN(const Agreement all_loaded,
                           ReachAgreement(loaded, "load the checkpoint", world, stream));
  if (all_loaded.verdict.ok()) CONVENE_RETURN_IF_ERROR(optimizer.FinishRead());
  return all_loaded;
}

absl::StatusOr<std::optional<Restored>> RestoreCheckpoint(
    const TrainOptions& options, const JobIdentity& job, CheckpointedState& optimizer,
    Collective& world, Stream& stream, StatesInMemory* memory, int64_t below_step) {
  std::unique_ptr<StateSource> state;  // the newest in memory that was not refused
  if (memory != nullptr && job.is_restart) {
    CONVENE_ASSIGN_OR_RETURN(state, memory->OpenNext());
  }
  Refused refused = {.below_step = below_step};
  for (;;) {
    CheckpointChoice choice;
    if (world.rank() == 0) choice = ChooseAndTell(options, job, &refused);
    const bool has_none = absl::IsDataLoss(choice.status) || absl::IsNotFound(choice.status);
    if (state != nullptr && has_none) choice = {};
    CONVENE_RETURN_IF_ERROR(Agree(choice.status, "open the checkpoint", world, stream));
    double told[] = {static_cast<double>(choice.origin), static_cast<double>(choice.step)};
    CONVENE_RETURN_IF_ERROR(world.AllReduce(absl::MakeSpan(told), ReduceOp::kMax, stream));
    choice = {absl::OkStatus(), static_cast<Origin>(static_cast<int>(told[0])),
              static_cast<int64_t>(told[1])};
    const bool is_in_memory = state != nullptr && state->info().step >= choice.step;
    if (choice.origin == Origin::kNothing && !is_in_memory) return std::nullopt;
    const bool is_named = choice.origin == Origin::kNamed && !is_in_memory;
    const std::string path = is_in_memory ? "" : PathOf(options, choice);
    const auto source = is_in_memory ? std::exchange(state, nullptr) : OpenChosen(path);
    CONVENE_ASSIGN_OR_RETURN(const Agreement loaded,
                             RestoreFrom(source, options, job, optimizer, world, stream));
    const absl::Status& verdict = loaded.verdict;
    if (verdict.ok()) {
      Restored restored = {(*source)->info(), path};
      if (is_named) restored.info.began_with = BeganWith(options);
      return restored;
    }
    if (is_named || !IsDamage(verdict)) return verdict;
    const std::string reason =
        absl::StrCat(is_in_memory ? (*source)->name() : path, ": ", verdict.message());
    if (world.rank() == 0) LogRefused(reason);
    if (is_in_memory) {
      CONVENE_ASSIGN_OR_RETURN(state, memory->OpenNext());
      continue;
    }
    refused.reasons.push_back(reason);
    refused.below_step = choice.step;
  }
}

}  // namespace convene::worker
