#include "worker_runtime/weights/write_weights.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <numeric>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/weights/hf_folder.h"
#include "worker_runtime/weights/model_tensors.h"
#include "worker_runtime/weights/safetensors.h"
#include "worker_runtime/weights/tokenizer_files.h"

namespace convene::worker {
namespace {

constexpr int64_t kRunElements = int64_t{1} << 24;  // 64 MiB in fp32
constexpr int64_t kShardElements = 2 * kRunElements;

absl::Status RefuseExisting(const std::string& path, MadeAs made_as) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(path);
  if (made_as == MadeAs::kFile && names.ok()) {
    return absl::AlreadyExistsError(absl::StrCat(
        path, " is a folder, and the output is one file: name it, such as ", path, "/model"));
  }
  if (absl::IsNotFound(names.status()) || (names.ok() && names->empty())) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat(path, " is there already; give another, or remove it"));
}

// The name that a rename can give to the whole output: that of an empty folder itself where
// `output` is a link to it.
absl::StatusOr<std::string> PlaceOf(const std::string& output, MadeAs made_as) {
  CONVENE_RETURN_IF_ERROR(RefuseExisting(output, made_as));
  std::error_code error;
  const std::string real = std::filesystem::canonical(output, error).string();
  if (error) return output.substr(0, output.find_last_not_of('/') + 1);
  struct stat own = {}, above = {};
  if (stat(real.c_str(), &own) == 0 && stat(ParentDirectory(real).c_str(), &above) == 0 &&
      (own.st_dev != above.st_dev || own.st_ino == above.st_ino)) {
    return absl::InvalidArgumentError(
        absl::StrCat(output,
                     " is where a file system is mounted, and the output gets its name when it is "
                     "whole: name a new folder in it, such as ",
                     output, "/model"));
  }
  return real;
}

// The lock of the only process that works in `folder`. A file that is open for writing: NFS locks
// no other ones between machines.
absl::StatusOr<UniqueFd> LockWork(const std::string& folder, const std::string& path) {
  CONVENE_RETURN_IF_ERROR(MakeDirectories(folder));
  CONVENE_ASSIGN_OR_RETURN(UniqueFd lock, OpenFile(path, O_RDWR | O_CREAT));
  const bool is_locked = flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
  if (!is_locked && errno != EWOULDBLOCK) {
    return ErrnoStatus(errno, absl::StrCat("flock ", path));
  }
  // The process before this one removes the file when it ends.
  struct stat held = {}, named = {};
  if (!is_locked || fstat(lock.get(), &held) != 0 || stat(path.c_str(), &named) != 0 ||
      held.st_ino != named.st_ino) {
    return absl::AlreadyExistsError(absl::StrCat(
        folder, ": another process is at work there; wait for its end, or give another output"));
  }
  return lock;
}

// A tensor of the files.
struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;
  // The model's tensors in it, from its begin to its end. The tensors of one slab have their file
  // rows in turn, and as many each.
  std::vector<std::vector<ModelTensor>> slabs;

  int64_t elements() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
  // transformers, too, keeps a router's bias in fp32: it may lie far from zero, where bf16 makes
  // equal what tells experts apart.
  DType TypeOf(DType wanted) const { return slabs[0][0].balances ? DType::kFloat32 : wanted; }
  int64_t BytesOf(DType wanted) const {
    return elements() * static_cast<int64_t>(SizeOf(TypeOf(wanted)));
  }
};

// In the order of the model's first tensor in each.
std::vector<FileTensor> FileTensorsOf(const std::vector<ModelTensor>& tensors) {
  std::vector<FileTensor> files;
  absl::flat_hash_map<std::string, size_t> places;
  std::vector<std::pair<std::pair<size_t, int64_t>, ModelTensor>> parts;
  for (const ModelTensor& tensor : tensors) {
    const auto [place, is_new] = places.insert({tensor.file.name, files.size()});
    if (is_new) files.push_back({.name = tensor.file.name, .shape = tensor.file.shape});
    parts.push_back({{place->second, tensor.file.first}, tensor});
  }
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [place, tensor] : parts) {
    auto& slabs = files[place.first].slabs;
    const bool is_beside =
        !slabs.empty() && tensor.file.first - slabs.back()[0].file.first < tensor.file_row_step();
    if (!is_beside) slabs.emplace_back();
    slabs.back().push_back(std::move(tensor));
  }
  return files;
}

// File rows [begin, end) of the slab's tensors, as the file has them.
template <typename T>
absl::Status ReadRun(const StateSource& source, const std::vector<ModelTensor>& slab, int64_t begin,
                     int64_t end, std::vector<T>* run, std::vector<T>* spare) {
  run->resize((end - begin) * slab[0].file_row_step());
  for (const ModelTensor& tensor : slab) {
    const TensorPiece piece = RowsOf(tensor, begin, end);
    if (tensor.file.column_step == 1) {
      CONVENE_RETURN_IF_ERROR(source.Read({{piece, absl::MakeSpan(*run)}}));
      continue;
    }
    spare->resize(piece.flat_count);
    CONVENE_RETURN_IF_ERROR(source.Read({{piece, absl::MakeSpan(*spare)}}));
    const FilePlace& file = tensor.file;
    const T* from = spare->data();
    for (int64_t row = 0; row < piece.local_box.extent[0]; ++row) {
      T* const to = run->data() + (file.first - slab[0].file.first) + row * file.row_step;
      for (int64_t column = 0; column < piece.local_box.extent[1]; ++column) {
        to[column * file.column_step] = *from++;
      }
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status WriteTensor(const StateSource& source, const FileTensor& tensor, int fd,
                         const std::string& path) {
  std::vector<T> run;
  std::vector<T> spare;
  for (const std::vector<ModelTensor>& slab : tensor.slabs) {
    const int64_t rows = slab[0].file_rows();
    const int64_t step = std::max<int64_t>(1, kRunElements / slab[0].file_row_step());
    for (int64_t row = 0; row < rows; row += step) {
      CONVENE_RETURN_IF_ERROR(ReadRun(source, slab, row, std::min(rows, row + step), &run, &spare));
      const absl::string_view bytes(reinterpret_cast<const char*>(run.data()),
                                    run.size() * sizeof(T));
      CONVENE_RETURN_IF_ERROR(WriteAll(fd, bytes, path));
    }
  }
  return absl::OkStatus();
}

// Tensors in fp32 come first, so that each begins at a multiple of its elements' size, as torch
// wants.
absl::Status WriteFile(const StateSource& source, std::vector<FileTensor> tensors, DType type,
                       const std::string& path) {
  const auto is_float = [=](const FileTensor& tensor) {
    return tensor.TypeOf(type) == DType::kFloat32;
  };
  std::stable_partition(tensors.begin(), tensors.end(), is_float);
  std::vector<SafeTensor> headers;
  for (const FileTensor& tensor : tensors) {
    headers.push_back(
        {.name = tensor.name, .type = is_float(tensor) ? "F32" : "BF16", .shape = tensor.shape});
  }
  CONVENE_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_WRONLY | O_CREAT | O_EXCL));
  CONVENE_RETURN_IF_ERROR(WriteAll(fd.get(), MakeSafeTensorsHeader(&headers), path));
  for (const FileTensor& tensor : tensors) {
    CONVENE_RETURN_IF_ERROR(is_float(tensor)
                                ? WriteTensor<float>(source, tensor, fd.get(), path)
                                : WriteTensor<BFloat16>(source, tensor, fd.get(), path));
  }
  return SyncFile(fd.get(), path);
}

// Neighbours together, of which all have at most `most` by `size_of`.
template <typename Tensor, typename SizeOfTensor>
std::vector<std::vector<Tensor>> GroupsOf(std::vector<Tensor> tensors, int64_t most,
                                          const SizeOfTensor& size_of) {
  std::vector<std::vector<Tensor>> groups;
  int64_t size = 0;
  for (Tensor& tensor : tensors) {
    if (groups.empty() || size + size_of(tensor) > most) {
      groups.emplace_back();
      size = 0;
    }
    size += size_of(tensor);
    groups.back().push_back(std::move(tensor));
  }
  return groups;
}

absl::Status WriteTensors(const Weights& weights, const HfExport& wanted,
                          const std::string& folder) {
  const auto bytes_of = [&](const FileTensor& tensor) { return tensor.BytesOf(wanted.type); };
  const auto groups =
      GroupsOf(FileTensorsOf(ModelTensors(weights.config)), wanted.file_bytes, bytes_of);
  std::vector<std::string> map;
  int64_t total = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string name = groups.size() == 1 ? kHfWeightsName
                                                : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                                                  i + 1, groups.size());
    const std::string path = absl::StrCat(folder, "/", name);
    CONVENE_RETURN_IF_ERROR(WriteFile(*weights.source, groups[i], wanted.type, path));
    for (const FileTensor& tensor : groups[i]) {
      map.push_back(absl::StrCat("    \"", tensor.name, "\": \"", name, "\""));
      total += bytes_of(tensor);
    }
  }
  if (groups.size() == 1) return absl::OkStatus();
  return WriteFileAtomic(
      absl::StrCat(folder, "/", kHfIndexName),
      absl::StrCat("{\n  \"metadata\": {\"total_size\": ", total, "},\n  \"weight_map\": {\n",
                   absl::StrJoin(map, ",\n"), "\n  }\n}\n"));
}

absl::Status FillFolder(const Weights& weights, const HfExport& wanted, const std::string& config,
                        const std::string& folder) {
  CONVENE_RETURN_IF_ERROR(WriteTensors(weights, wanted, folder));
  CONVENE_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(folder, "/", kHfConfigName), config));
  for (const NamedFile& file : wanted.other_files) {
    CONVENE_RETURN_IF_ERROR(WriteNamedFile(folder, file));
  }
  return absl::OkStatus();
}

// As that rank's part of a checkpoint.
absl::Status WriteGroup(const StateSource& source, const std::vector<ModelTensor>& tensors,
                        int rank, const std::string& folder) {
  std::vector<std::vector<float>> values;
  std::vector<PieceToWrite> pieces;
  for (const ModelTensor& tensor : tensors) {
    const TensorPiece piece = RowsOf(tensor, 0, tensor.file_rows());
    std::vector<float>& held = values.emplace_back(piece.flat_count);
    CONVENE_RETURN_IF_ERROR(source.Read({{piece, absl::MakeSpan(held)}}));
    pieces.push_back({piece, absl::MakeConstSpan(held)});
  }
  return WriteShard(folder, source.info().step, rank, pieces);
}

}  // namespace

absl::Status ExportHf(const Weights& weights, HfExport wanted) {
  wanted.extras.type = wanted.type == DType::kFloat32 ? "float32" : "bfloat16";
  CONVENE_ASSIGN_OR_RETURN(const std::string config, WriteHfConfig(weights.config, wanted.extras));
  return MakeWhole(wanted.output, MadeAs::kFolder, [&](const std::string& folder) -> absl::Status {
    CONVENE_RETURN_IF_ERROR(MakeDirectories(folder));
    return FillFolder(weights, wanted, config, folder);
  });
}

absl::Status WriteTensorFile(const StateSource& source, const std::vector<ModelTensor>& tensors,
                             DType type, const std::string& path) {
  return WriteFile(source, FileTensorsOf(tensors), type, path);
}

absl::Status ExportSafeTensors(const Weights& weights, DType type, const std::string& output) {
  return MakeWhole(output, MadeAs::kFile, [&](const std::string& path) {
    return WriteTensorFile(*weights.source, ModelTensors(weights.config), type, path);
  });
}

absl::Status MakeWhole(const std::string& output, MadeAs made_as,
                       absl::FunctionRef<absl::Status(const std::string& path)> make) {
  CONVENE_ASSIGN_OR_RETURN(const std::string name, PlaceOf(output, made_as));
  // Always the same folder: what a killed process left there goes with the next one.
  const std::string folder = absl::StrCat(name, ".partial");
  const std::string unfinished = absl::StrCat(folder, "/whole");
  const std::string lock_path = absl::StrCat(folder, "/lock");
  CONVENE_ASSIGN_OR_RETURN(const UniqueFd lock, LockWork(folder, lock_path));
  const absl::Cleanup remove = [&] {
    RemoveTree(unfinished).IgnoreError();
    unlink(lock_path.c_str());
    rmdir(folder.c_str());
  };
  // Another process may have been at work until now.
  CONVENE_RETURN_IF_ERROR(RefuseExisting(name, made_as));
  CONVENE_RETURN_IF_ERROR(RemoveTree(unfinished));
  CONVENE_RETURN_IF_ERROR(make(unfinished));
  CONVENE_RETURN_IF_ERROR(RenameFile(unfinished, name));
  return SyncDirectory(ParentDirectory(name));
}

absl::Status ImportCheckpoint(const Weights& weights, const std::string& output) {
  // Each group is written as a rank's part.
  const auto groups =
      GroupsOf(ModelTensors(weights.config), kShardElements,
               [](const ModelTensor& tensor) { return tensor.shape[0] * tensor.shape[1]; });
  CheckpointInfo info = weights.source->info();
  // Weights go without a vocabulary that we cannot read (of a GGUF file).
  CONVENE_ASSIGN_OR_RETURN(const std::string tokenizer, weights.tokenizer);
  absl::StatusOr<std::vector<NamedFile>> files = TokenizerFiles(tokenizer);
  if (files.ok()) info.tokenizer.path = tokenizer;
  if (absl::IsUnimplemented(files.status())) files.emplace();
  CONVENE_RETURN_IF_ERROR(files.status());
  info.longest_text = weights.longest_text;
  info.layout = "imported";
  info.world_size = static_cast<int>(groups.size());
  return MakeWhole(output, MadeAs::kFolder, [&](const std::string& folder) -> absl::Status {
    CONVENE_RETURN_IF_ERROR(MakeDirectories(folder));
    for (int rank = 0; rank < info.world_size; ++rank) {
      CONVENE_RETURN_IF_ERROR(WriteGroup(*weights.source, groups[rank], rank, folder));
    }
    return PublishCheckpoint(folder, info, *files);
  });
}

}  // namespace convene::worker
