#include "worker_runtime/trainer/references.h"

#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "spdlog/spdlog.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpointing/agree.h"
#include "worker_runtime/data/sample_order.h"
#include "worker_runtime/trainer/run_data.h"

namespace convene::worker {
namespace {

constexpr char kTitle[] = "references of pairs, 1\n";

// Of the file, on all ranks; empty where it is none of this key, and of so many rows.
absl::StatusOr<std::vector<double>> ReadReferences(const KeptReferences& kept, size_t count,
                                                   Collective& world, Stream& stream) {
  // The last number says whether there are any.
  std::vector<double> all(count + 1, 0.0);
  if (world.rank() == 0 && IsFile(kept.path)) {
    absl::StatusOr<std::vector<double>> read = absl::NotFoundError("it cannot be read");
    const absl::StatusOr<std::string> bytes = ReadFile(kept.path);
    if (bytes.ok()) read = ParseReferences(*bytes, kept.key, kept.mark);
    if (read.ok() && read->size() == count) {
      std::copy(read->begin(), read->end(), all.begin());
      all.back() = 1;
    } else {
      spdlog::info("the references of the pairs are made again: {}: {}", kept.path,
                   read.ok() ? "they are of other data" : std::string(read.status().message()));
    }
  }
  CONVENE_RETURN_IF_ERROR(world.AllReduce(absl::MakeSpan(all), ReduceOp::kSum, stream));
  if (all.back() == 0) return std::vector<double>();
  all.pop_back();
  return all;
}

absl::StatusOr<std::vector<double>> MakeReferences(BatchLoader& loader, Engine& engine,
                                                   absl::FunctionRef<void(double done)> tell,
                                                   Collective& world, Stream& stream) {
  const int64_t rows = loader.dataset().row_count();
  std::vector<double> all(rows, 0.0);
  for (int64_t first = 0; first < rows; first += loader.global_batch_size()) {
    tell(static_cast<double>(first) / static_cast<double>(rows));
    CONVENE_ASSIGN_OR_RETURN(const TokenBatch batch, loader.Rows(first));
    CONVENE_ASSIGN_OR_RETURN(const std::vector<double> references,
                             engine.References(batch, static_cast<int>(loader.microbatches())));
    for (size_t i = 0; i < references.size(); ++i) {
      const int64_t number = loader.positions()[i];
      if (number != kNoSample) all[number] = references[i];
    }
  }
  CONVENE_RETURN_IF_ERROR(world.AllReduce(absl::MakeSpan(all), ReduceOp::kSum, stream));
  return all;
}

// Another one where files at these paths, or in these directories, were written anew; "": there are
// none at one of them.
std::string MarkOf(const FirstWeights& first) {
  std::string text;
  for (const std::string& path : {first.weights, first.adapter}) {
    std::vector<std::string> files = {path};
    for (const std::string& name : ListDirectory(path).value_or(std::vector<std::string>())) {
      files.push_back(absl::StrCat(path, "/", name));
    }
    const size_t before = text.size();
    struct stat info;
    for (const std::string& file : files) {
      if (stat(file.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
      absl::StrAppend(&text, file, " ", info.st_size, " ", info.st_mtim.tv_sec, ".",
                      info.st_mtim.tv_nsec, "\n");
    }
    if (!path.empty() && text.size() == before) return "";
  }
  return absl::StrCat(absl::Hex(XXH3_64bits(text.data(), text.size())));
}

}  // namespace

std::string ReferencesText(absl::string_view key, absl::string_view mark,
                           absl::Span<const double> references) {
  const size_t size = references.size() * sizeof(double);
  const uint64_t hash = XXH3_64bits(references.data(), size);
  return absl::StrCat(kTitle, key, "\n", mark, "\n",
                      absl::string_view(reinterpret_cast<const char*>(&hash), sizeof(hash)),
                      absl::string_view(reinterpret_cast<const char*>(references.data()), size));
}

absl::StatusOr<std::vector<double>> ParseReferences(absl::string_view bytes, absl::string_view key,
                                                    absl::string_view mark) {
  const bool is_key = absl::ConsumePrefix(&bytes, kTitle) && absl::ConsumePrefix(&bytes, key) &&
                      absl::ConsumePrefix(&bytes, "\n");
  const size_t end = is_key ? bytes.find('\n') : absl::string_view::npos;
  const bool is_of_these = mark.empty() || bytes.substr(0, end) == mark;
  if (end == absl::string_view::npos || !is_of_these) {
    return absl::NotFoundError("these are no references, or those of other data or first weights");
  }
  bytes.remove_prefix(end + 1);
  uint64_t hash = 0;
  if (bytes.size() < sizeof(hash)) return absl::NotFoundError("they are cut short");
  std::memcpy(&hash, bytes.data(), sizeof(hash));
  bytes.remove_prefix(sizeof(hash));
  if (bytes.size() % sizeof(double) != 0 || XXH3_64bits(bytes.data(), bytes.size()) != hash) {
    return absl::NotFoundError("they are damaged");
  }
  std::vector<double> references(bytes.size() / sizeof(double));
  std::memcpy(references.data(), bytes.data(), bytes.size());
  return references;
}

KeptReferences KeptReferencesOf(const TrainOptions& options, const FirstWeights& first,
                                const Dataset& training) {
  const std::string& directory = options.checkpoint_dir;
  return {.path = directory.empty() ? "" : absl::StrCat(directory, "/references"),
          .key = absl::StrCat(DataIdentity(options, training), ", ", training.SamplesText(),
                              ", of ", first.weights, " ", first.adapter),
          .mark = MarkOf(first)};
}

absl::StatusOr<std::vector<double>> FindReferences(const KeptReferences& kept, BatchLoader& loader,
                                                   Engine& engine,
                                                   absl::FunctionRef<absl::Status()> make_weights,
                                                   absl::FunctionRef<void(double done)> tell,
                                                   Collective& world, Stream& stream) {
  const auto count = static_cast<size_t>(loader.dataset().row_count());
  CONVENE_ASSIGN_OR_RETURN(std::vector<double> references,
                           ReadReferences(kept, count, world, stream));
  if (!references.empty()) return references;
  CONVENE_RETURN_IF_ERROR(make_weights());
  CONVENE_ASSIGN_OR_RETURN(references, MakeReferences(loader, engine, tell, world, stream));
  const bool writes = world.rank() == 0 && !kept.path.empty();
  CONVENE_RETURN_IF_ERROR(
      Agree(writes ? WriteFileAtomic(kept.path, ReferencesText(kept.key, kept.mark, references))
                   : absl::OkStatus(),
            "keep the references of the pairs", world, stream));
  return references;
}

}  // namespace convene::worker
