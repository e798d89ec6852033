#include "worker_runtime/checkpoint/state_source.h"

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/reshard_plan.h"

namespace convene::worker {

absl::Status ValidatePiece(const TensorPiece& piece, const ConstElements& data) {
  CONVENE_RETURN_IF_ERROR(ValidatePiece(piece));
  if (data.count == static_cast<size_t>(piece.flat_count) && data.dtype != DType::kFloat64) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("tensor '", piece.name, "': its data is ",
                                                 data.count, " elements in ", DTypeName(data.dtype),
                                                 ", not ", piece.flat_count, " in fp32 or bf16"));
}

absl::Status FillPieces(const std::vector<PieceToRead>& pieces, const std::string& source_name,
                        const std::vector<TensorPiece>& available,
                        absl::FunctionRef<absl::StatusOr<ConstElements>(int i)> load) {
  std::vector<TensorPiece> wanted;
  for (const PieceToRead& item : pieces) {
    if (item.piece.flat_count > 0) CONVENE_RETURN_IF_ERROR(ValidatePiece(item.piece, item.data));
    wanted.push_back(item.piece);
  }
  absl::StatusOr<std::vector<BoxCopy>> copies = PlanReshard(wanted, available);
  if (!copies.ok()) return Annotate(copies.status(), source_name);
  ConstElements data;
  for (size_t i = 0; i < copies->size(); ++i) {
    const BoxCopy& copy = (*copies)[i];
    if (i == 0 || copy.available_index != (*copies)[i - 1].available_index) {
      CONVENE_ASSIGN_OR_RETURN(data, load(copy.available_index));
    }
    CopyBox(copy, data, pieces[copy.wanted_index].data);
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
