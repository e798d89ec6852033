#include "worker_runtime/weights/mapped_weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/model/shape_text.h"

namespace convene::worker {
namespace {

// Pages of a file that were read would count as this process's memory.
void Release(absl::string_view mapped) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const size_t before = reinterpret_cast<uintptr_t>(mapped.data()) % page;
  madvise(const_cast<char*>(mapped.data()) - before, before + mapped.size(), MADV_DONTNEED);
}

class MappedWeights final : public StateSource {
 public:
  MappedWeights(std::string path, const ModelConfig& config, std::vector<MappedFile> files,
                HeldTensors tensors)
      : path_(std::move(path)),
        info_({.model = ShapeText(config)}),
        files_(std::move(files)),
        tensors_(std::move(tensors)) {}

  const std::string& name() const override { return path_; }
  const CheckpointInfo& info() const override { return info_; }
  absl::Status Read(const std::vector<PieceToRead>& pieces) const override;

 private:
  const std::string path_;
  const CheckpointInfo info_;
  const std::vector<MappedFile> files_;
  const HeldTensors tensors_;
};

absl::Status MappedWeights::Read(const std::vector<PieceToRead>& pieces) const {
  for (const PieceToRead& item : pieces) {
    const TensorPiece& piece = item.piece;
    if (piece.flat_count == 0) continue;
    CONVENE_RETURN_IF_ERROR(ValidatePiece(piece, item.data));
    const auto held = tensors_.find(piece.name);
    if (held == tensors_.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, " has no tensor '", piece.name, "'"));
    }
    const std::array<int64_t, 2>& shape = held->second.shape;
    if (piece.global_shape != std::vector<int64_t>(shape.begin(), shape.end())) {
      return absl::FailedPreconditionError(absl::StrCat(path_, ": tensor '", piece.name, "' is ",
                                                        absl::StrJoin(shape, " x "), ", not ",
                                                        absl::StrJoin(piece.global_shape, " x ")));
    }
    Release(CopyElements(held->second.matrix, piece.local_box, piece.flat_begin, item.data));
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<StateSource> MapWeights(std::string path, const ModelConfig& config,
                                        std::vector<MappedFile> files, HeldTensors tensors) {
  return std::make_unique<MappedWeights>(std::move(path), config, std::move(files),
                                         std::move(tensors));
}

}  // namespace convene::worker
