#include <fcntl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/weights/llmc_model.h"
#include "worker_runtime/weights/write_weights.h"

namespace convene::worker {
namespace {

constexpr int64_t kTableMultiple = 128;  // llm.c's rows of the table

template <typename T>
absl::Status WriteTensors(const StateSource& source, const LlmcShape& shape, int fd,
                          const std::string& path) {
  constexpr int64_t kRunElements = int64_t{1} << 24;
  int64_t elements = 0;
  int64_t written = 0;
  std::vector<T> run;
  const auto write = [&] {
    written += static_cast<int64_t>(run.size());
    return WriteAll(fd, {reinterpret_cast<const char*>(run.data()), run.size() * sizeof(T)}, path);
  };
  for (LlmcPlace& place : LlmcPlaces(shape, &elements)) {
    run.assign(place.begin - written, T());  // the rows that fill up the table
    CONVENE_RETURN_IF_ERROR(write());
    place.tensor.file = {.row_step = place.tensor.shape[1]};
    for (const TensorPiece& piece : RunsOf(place.tensor, kRunElements)) {
      run.resize(piece.flat_count);
      CONVENE_RETURN_IF_ERROR(source.Read({{piece, absl::MakeSpan(run)}}));
      CONVENE_RETURN_IF_ERROR(write());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExportLlmc(const Weights& weights, DType type, const std::string& output) {
  const ModelConfig& config = weights.config;
  const int64_t rows =
      (config.vocabulary_size + kTableMultiple - 1) / kTableMultiple * kTableMultiple;
  const bool is_float32 = type == DType::kFloat32;
  const LlmcHeader header = {kLlmcModelMagic,    is_float32 ? kLlmcFloat32 : kLlmcBFloat16,
                             config.positions,   config.vocabulary_size,
                             config.layers,      config.heads,
                             config.hidden_size, static_cast<int32_t>(rows)};
  const absl::StatusOr<LlmcShape> shape = ReadLlmcHeader(header);
  if (!shape.ok() || ShapeText(shape->config) != ShapeText(config)) {
    return absl::InvalidArgumentError(
        absl::StrCat("llm.c's files hold GPT-2 alone, and this model is ", ShapeText(config),
                     ": export it with --format hf"));
  }
  return MakeWhole(output, MadeAs::kFile, [&](const std::string& path) -> absl::Status {
    CONVENE_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_WRONLY | O_CREAT | O_EXCL));
    CONVENE_RETURN_IF_ERROR(
        WriteAll(fd.get(), {reinterpret_cast<const char*>(header.data()), sizeof(header)}, path));
    CONVENE_RETURN_IF_ERROR(is_float32
                                ? WriteTensors<float>(*weights.source, *shape, fd.get(), path)
                                : WriteTensors<BFloat16>(*weights.source, *shape, fd.get(), path));
    return SyncFile(fd.get(), path);
  });
}

}  // namespace convene::worker
