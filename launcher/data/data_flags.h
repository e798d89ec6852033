// The flags of `convene data`'s commands: their spelling, targets and help.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/base/flag_reader.h"
#include "worker_runtime/data/chat/conversation.h"
#include "worker_runtime/data/prepare/options.h"
#include "worker_runtime/data/prepare/token_cache.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::launcher {

struct PrepareFlags {
  std::string tokenizer;      // "": byte, or that of `vocabulary_of`
  std::string vocabulary_of;  // "": the tokenizer's own vocabulary
  std::string output;
  worker::PrepareOptions options;  // all but the tokenizer

  std::string chat_template;  // "": plain texts
  worker::TrainOn train_on = worker::TrainOn::kAnswers;
  std::string chat_date;  // as ParseChatDate takes it

  bool no_eod = false;  // these two: in `options` once all is read
  bool append_eod = false;
};

struct ShowFlags {
  std::string file;
  std::string tokenizer;  // "": by the path that the file names
  std::string format = "text";
  std::optional<int64_t> first;
  std::optional<int64_t> sample;
};

struct VerifyFlags {
  std::vector<std::string> files;
};

struct BlendFlags {
  std::vector<std::string> specs;
};

struct ConvertFlags {
  std::string input;
  std::string output;
  std::optional<worker::TokenFormat> to;
  bool drop_counted = false;
};

struct CacheFlags {
  std::string directory;  // "": the default of convene-train
  bool prune = false;
  bool all = false;
  worker::TokenCacheBounds bounds;
};

void AddFlags(FlagReader* reader, PrepareFlags* flags);
void AddFlags(FlagReader* reader, ShowFlags* flags);
void AddFlags(FlagReader* reader, VerifyFlags* flags);
void AddFlags(FlagReader* reader, BlendFlags* flags);
void AddFlags(FlagReader* reader, ConvertFlags* flags);
void AddFlags(FlagReader* reader, CacheFlags* flags);

}  // namespace convene::launcher
