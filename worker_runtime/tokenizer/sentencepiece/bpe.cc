#include "worker_runtime/tokenizer/sentencepiece/bpe.h"

#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {

void BpeModel::Append(absl::string_view text, std::vector<int32_t>* ids, Scratch* scratch) const {
  const size_t first = ids->size();
  const char* const end = text.data() + text.size();
  const char* word = text.data();
  const char* at = word;
  const auto finish_word = [&] {
    if (at == word) return;
    AppendWord(absl::string_view(word, static_cast<size_t>(at - word)), first, ids, scratch);
    word = at;
  };
  char32_t previous = 0;
  while (at < end) {
    if (begins_user_symbol_[static_cast<unsigned char>(*at)]) {
      const ByteTrie::Match match =
          user_symbols_->Longest(absl::string_view(at, static_cast<size_t>(end - at)));
      if (match.length > 0) {
        finish_word();
        ids->push_back(match.value);
        at += match.length;
        word = at;
        continue;
      }
    }
    const char* next = at;
    const char32_t character = NextOfValid(&next, end);
    if (at != word && !MayJoin(previous, character)) finish_word();
    previous = character;
    at = next;
  }
  finish_word();
}

void BpeModel::AppendWord(absl::string_view word, size_t first, std::vector<int32_t>* ids,
                          Scratch* scratch) const {
  const char* at = word.data();
  const char32_t character = NextOfValid(&at, word.data() + word.size());
  if (at == word.data() + word.size()) {
    return AppendSymbol(characters_.Find(character), word, first, ids);
  }
  const size_t begin = ids->size();
  scratch->cache.Append(word, ids, [&] { MergeWord(word, ids, scratch); });
  unknown_.JoinRun(begin, first, ids);
}

void BpeModel::MergeWord(absl::string_view word, std::vector<int32_t>* ids,
                         Scratch* scratch) const {
  const size_t begin = ids->size();
  std::vector<int32_t>& symbols = scratch->symbols;
  symbols.clear();
  const char* const end = word.data() + word.size();
  for (const char* at = word.data(); at < end;) {
    symbols.push_back(characters_.Find(NextOfValid(&at, end)));
  }
  merges_->Apply(&symbols, &scratch->merges);
  for (const int32_t symbol : symbols) {
    size_t bytes = 0;
    if (symbol == kOther) {
      const char* at = word.data();
      NextOfValid(&at, end);
      bytes = static_cast<size_t>(at - word.data());
    } else {
      bytes = symbols_[symbol].bytes;
    }
    AppendSymbol(symbol, word.substr(0, bytes), begin, ids);
    word.remove_prefix(bytes);
  }
}

void BpeModel::AppendSymbol(int32_t symbol, absl::string_view text, size_t first,
                            std::vector<int32_t>* ids) const {
  if (symbol == kOther) return unknown_.Append(text, first, ids);
  const Symbol& known = symbols_[symbol];
  if (known.is_known) {
    ids->push_back(symbol);
    return;
  }
  if (known.expansion_begin == known.expansion_end) return unknown_.Append(text, first, ids);
  for (uint32_t i = known.expansion_begin; i < known.expansion_end; ++i) {
    const int32_t part = expansions_[i];
    const size_t bytes = symbols_[part].bytes;
    if (symbols_[part].is_known) {
      ids->push_back(part);
    } else {
      unknown_.Append(text.substr(0, bytes), first, ids);
    }
    text.remove_prefix(bytes);
  }
}

}  // namespace convene::worker
