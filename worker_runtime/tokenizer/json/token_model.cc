#include "worker_runtime/tokenizer/json/token_model.h"

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/bpe_model.h"
#include "worker_runtime/tokenizer/json/unigram_model.h"

namespace convene::worker {

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
