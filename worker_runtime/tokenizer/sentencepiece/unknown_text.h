// How a model spells characters that it has no piece for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/sentencepiece/model_file.h"

namespace convene::worker {

// sentencepiece_processor.cc, PopulateSentencePieceText. PURE, read-only, thread-safe.
class UnknownText {
 public:
  explicit UnknownText(const ModelFile& model);

  // Appends the ids of `text`, which is not empty: the pieces of its bytes, or the unknown piece,
  // which stands once for a run of unknown characters. `first` is where the ids of this text begin:
  // an unknown piece before that is of another text.
  void Append(absl::string_view text, size_t first, std::vector<int32_t>* ids) const {
    if (byte_fallback_) {
      for (const char byte : text) ids->push_back(bytes_[static_cast<unsigned char>(byte)]);
    } else if (!EndsUnknown(first, *ids)) {
      ids->push_back(id_);
    }
  }

  // Appends ids that Append and pieces made, as if they had been made here.
  void AppendIds(const int32_t* begin, const int32_t* end, size_t first,
                 std::vector<int32_t>* ids) const {
    if (begin != end && *begin == id_ && !byte_fallback_ && EndsUnknown(first, *ids)) ++begin;
    ids->insert(ids->end(), begin, end);
  }

  int32_t id() const { return id_; }

 private:
  bool EndsUnknown(size_t first, const std::vector<int32_t>& ids) const {
    return ids.size() > first && ids.back() == id_;
  }

  int32_t id_ = -1;
  bool byte_fallback_;
  std::array<int32_t, 256> bytes_{};
};

}  // namespace convene::worker
