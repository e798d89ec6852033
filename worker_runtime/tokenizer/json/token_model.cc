#include "worker_runtime/tokenizer/json/token_model.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/base/status_macros.h"

namespace convene::worker {

ByteFallback::ByteFallback(const Vocabulary& vocabulary) {
  for (int byte = 0; byte < 256; ++byte) {
    ids_[byte] = vocabulary.Find(absl::StrFormat("<0x%02X>", byte)).value_or(-1);
  }
}

bool ByteFallback::Append(absl::string_view text, std::vector<int32_t>* ids) const {
  const size_t before = ids->size();
  for (const char c : text) {
    const int32_t id = ids_[static_cast<unsigned char>(c)];
    if (id < 0) {
      ids->resize(before);
      return false;
    }
    ids->push_back(id);
  }
  return true;
}

absl::StatusOr<std::unique_ptr<TokenModel>> ReadModel(const JsonNode& node,
                                                      const SpecialContents& specials) {
  const auto type = node.Find("type");
  if (!type.has_value()) {
    // Files of 2020 have no type; only a BPE model has merges.
    if (node.Find("merges").has_value()) return ReadBpeModel(node, specials);
    return node.Error("has no \"type\"");
  }
  CONVENE_ASSIGN_OR_RETURN(const std::string name, type->String());
  if (name == "BPE") return ReadBpeModel(node, specials);
  if (name == "Unigram") return ReadUnigramModel(node, specials);
  return LacksFeature(node.place(), absl::StrCat("\"", name, "\""));
}

}  // namespace convene::worker
