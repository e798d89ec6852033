#include "worker_runtime/weights/safetensors_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"

namespace convene::worker {

absl::Status AddTensors(const MappedFile& file, TensorPlaces* places) {
  const auto annotate = [&](const absl::Status& status) { return Annotate(status, file.path()); };
  const absl::StatusOr<int64_t> length =
      SafeTensorsHeaderLength(file.bytes().substr(0, kSafeTensorsLengthBytes), file.size());
  if (!length.ok()) return annotate(length.status());
  const int64_t begin = kSafeTensorsLengthBytes + *length;
  absl::StatusOr<std::vector<SafeTensor>> tensors = ParseSafeTensorsHeader(
      file.bytes().substr(kSafeTensorsLengthBytes, *length), file.size() - begin);
  if (!tensors.ok()) return annotate(tensors.status());
  for (SafeTensor& tensor : *tensors) {
    const char* const data = file.data() + begin + tensor.begin;
    const std::string name = tensor.name;
    if (!places->insert({name, {std::move(tensor), &file, data}}).second) {
      return annotate(absl::InvalidArgumentError(
          absl::StrCat("another file of the folder has the tensor \"", name, "\" too")));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const TensorPlace& place, const std::vector<int64_t>& wanted) {
  std::vector<int64_t> shape = place.tensor.shape;
  if (shape.size() == 2 && shape[0] == 1 && wanted.size() == 1) shape = {shape[1]};
  if (shape == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      place.file->path(), ": tensor \"", place.tensor.name, "\" is ", absl::StrJoin(shape, " x "),
      ", and config.json makes it ", absl::StrJoin(wanted, " x "),
      ": the two are not of one model; fetch both again"));
}

absl::StatusOr<StoredMatrix> Fit(const TensorPlace& place, const FilePlace& wanted) {
  const SafeTensor& tensor = place.tensor;
  CONVENE_RETURN_IF_ERROR(CheckShape(place, wanted.shape));
  StoredMatrix matrix = {.data = place.data,
                         .first = wanted.first,
                         .row_step = wanted.row_step,
                         .column_step = wanted.column_step};
  if (StoredTypeNamed(tensor.type, &matrix.type)) return matrix;
  return absl::UnimplementedError(
      absl::StrCat(place.file->path(), ": tensor \"", tensor.name, "\" is in ", tensor.type,
                   "; weights can be in F32, F16 and BF16. Convert the folder first"));
}

}  // namespace convene::worker
