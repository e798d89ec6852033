// The dialects in which patterns are written.
#pragma once

namespace convene::worker {

enum class PatternDialect {
  kOniguruma,  // of tokenizer.json: Hugging Face's tokenizers run it by Oniguruma, in its own
               // syntax
  kRust,       // of tiktoken's vocabularies and tekken.json: tiktoken runs it by fancy-regex
};

struct PatternRules {
  PatternDialect dialect = PatternDialect::kOniguruma;
  // Whether the sets have what Unicode 16 changed (unicode_changes.h). Without, they are right for
  // texts that have no such character, and faster.
  bool has_changes = true;
};

}  // namespace convene::worker
