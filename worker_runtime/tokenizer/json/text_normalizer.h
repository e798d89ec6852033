// The "normalizer" of a tokenizer.json: rewrites text before it is cut into pieces.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/json/json_node.h"

namespace convene::worker {

// One kind of rewriting. Read-only and thread-safe.
class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;

  // True only if Apply would leave `text` as it is: spares the copy. False is always right.
  virtual bool Leaves(absl::string_view text) const = 0;

  // Writes the rewritten `text`, UTF-8, to `result`, which must be empty. The first `at_start`
  // bytes of `text` come from the document's first character; the return value is their number in
  // the result, to which Metaspace's prepend_scheme "first" looks.
  virtual size_t Apply(absl::string_view text, size_t at_start, std::string* result) const = 0;

  // One byte becomes at most so many, as far as the file decides about it.
  virtual size_t growth() const { return 1; }
};

// Read-only and thread-safe.
class TextNormalizer {
 public:
  // Buffers of Apply, for one thread.
  struct Scratch {
    std::string texts[2];
  };

  // `node`: the file's "normalizer", absent where that is null. InvalidArgument, Unimplemented.
  static absl::StatusOr<TextNormalizer> Read(const std::optional<JsonNode>& node);

  // `text` itself where nothing changes, else a view of the scratch that holds until the next
  // call. *at_start: as NormalizerStep::Apply has it.
  absl::string_view Apply(absl::string_view text, size_t* at_start, Scratch* scratch) const;

 private:
  std::vector<std::unique_ptr<NormalizerStep>> steps_;
};

// Reads the parts of `node`, whose Sequences have them in the member `list`, by read(type, part).
// InvalidArgument: no such parts. Unimplemented: a text would become more than 4,096 times as long,
// so that a file of a few lines could fill the memory; real ones make a space three bytes.
template <typename Step>
absl::Status ReadSteps(const JsonNode& node, absl::string_view list,
                       absl::StatusOr<std::unique_ptr<Step>> (*read)(const std::string& type,
                                                                     const JsonNode& part),
                       std::vector<std::unique_ptr<Step>>* steps) {
  constexpr size_t kLargestGrowth = 4096;
  size_t growth = 1;
  return ForEachPart(node, list, [&](const std::string& type, const JsonNode& part) {
    absl::StatusOr<std::unique_ptr<Step>> step = read(type, part);
    if (!step.ok()) return step.status();
    growth *= (*step)->growth();
    if (growth > kLargestGrowth) {
      return LacksFeature(part.place(),
                          "\"Replace\" that makes a text more than 4,096 times as long");
    }
    steps->push_back(*std::move(step));
    return absl::OkStatus();
  });
}

}  // namespace convene::worker
