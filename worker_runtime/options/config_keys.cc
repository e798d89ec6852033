#include "worker_runtime/options/config_keys.h"

#include <cmath>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"

namespace convene::worker {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

namespace {

constexpr ConfigKeyRow kRows[] = {
    {"data", "Data", "", "text files or globs to train on (required)"},
    {"sequence_length", "Data", "128", "tokens a sample"},
    {"packed_documents", "Data", "false", "documents of a sample do not see each other"},
    {"eod_token", "Data", "", "... what ends one; the target after it counts [the tokenizer's]"},
    {"accept_new_data", "Data", "false",
     "resume although data or samples are not the checkpoint's"},
    {"validation_fraction", "Data", "0.05", "share of the tokens held out, from the end"},
    {"token_cache_dir", "Data", "",
     "where token files are made [$XDG_CACHE_HOME/convene or ~/.cache/convene]"},

    {"model", "Model", "llama-tiny", "a named model: its shape (llama-15m, llama-3-8b, ...)"},
    {"layers", "Model", "", "changes the named model's number of blocks"},
    {"hidden_size", "Model", "", "... width of the residual stream"},
    {"ffn_size", "Model", "", "... inner width of the feed-forward layers"},
    {"heads", "Model", "", "... query heads"},
    {"kv_heads", "Model", "", "... key and value heads; divides heads"},
    {"head_size", "Model", "", "... values a head; even"},
    {"vocabulary_size", "Model", "", "... number of tokens"},
    {"rope_theta", "Model", "", "... base of the rotary frequencies"},
    {"rope_scaling_factor", "Model", "", "... Llama 3.1's scaling of these; 1 = none"},
    {"rope_low_frequency_factor", "Model", "", "... waves beyond original / this are scaled"},
    {"rope_high_frequency_factor", "Model", "", "... waves below original / this stay"},
    {"rope_original_positions", "Model", "", "... the context that is scaled from"},
    {"norm_epsilon", "Model", "", "... added under RMSNorm's root"},
    {"tied_embeddings", "Model", "", "... the output head is the input embedding"},
    {"initializer_range", "Model", "", "... standard deviation of the initial weights"},

    {"steps", "Training", "100", "optimizer steps in all, also after a resume"},
    {"global_batch_size", "Training", "32", "samples a step over all ranks, on any world size"},
    {"micro_batch_size", "Training", "4", "samples a forward pass, at the most"},
    {"seed", "Training", "1234", "of the initial weights and the sample order"},

    {"device", "Device", "auto", "cpu, cuda, or auto (cuda where this program and node have it)"},
    {"precision", "Device", "auto", "fp32, bf16 (fp32 master weights), or auto (bf16 on a GPU)"},
    {"reduce_dtype", "Device", "fp32", "of gradients between data-parallel ranks: fp32 or bf16"},
    {"recompute", "Device", "none",
     "in the backward pass: none, selective (norms, SwiGLU) or full (blocks)"},
    {"deterministic", "Device", "false",
     "same bits in every run and after a restart, on a GPU too; slower there"},
    {"cuda_graphs", "Device", "false", "queue a pass as one CUDA graph (never measured yet)"},
    {"print_memory_plan", "Device", "false", "print what each stage would allocate, and end"},

    {"learning_rate", "Optimizer", "1e-3", "peak, reached after the warm-up"},
    {"min_learning_rate", "Optimizer", "", "at the cosine's end [learning_rate / 10]"},
    {"warmup_steps", "Optimizer", "", "linear warm-up [the smaller of 100 and steps / 10]"},
    {"weight_decay", "Optimizer", "0.1", "AdamW's, on matrices only"},
    {"beta1", "Optimizer", "0.9", "AdamW's decay of the first moment"},
    {"beta2", "Optimizer", "0.95", "AdamW's decay of the second moment"},
    {"epsilon", "Optimizer", "1e-8", "AdamW's, in the divisor"},
    {"clip_grad_norm", "Optimizer", "1.0", "largest global gradient norm; 0 = no clipping"},
    {"max_skipped_steps", "Optimizer", "20",
     "steps in a row whose gradient is no number that end the run"},

    {"tp_size", "Layout", "1", "tensor-parallel ranks"},
    {"pp_size", "Layout", "1", "pipeline stages"},
    {"dp_size", "Layout", "",
     "data-parallel ranks [as many as there is room for; ranks left over wait]"},
    {"collective_timeout_seconds", "Layout", "300",
     "a collective that waits longer fails and names its group"},

    {"checkpoint_dir", "Checkpoints", "", "where checkpoints go [none are written]"},
    {"checkpoint_every", "Checkpoints", "50", "steps between checkpoints; 0 = only the last"},
    {"checkpoint_keep", "Checkpoints", "3", "newest ones to keep, at least 2"},
    {"max_failed_checkpoints", "Checkpoints", "3",
     "failed ones in a row that end the run; fewer are said and tried again"},
    {"resume", "Checkpoints", "auto",
     "at the first start: auto (newest), none, or a checkpoint's directory"},
    {"checkpoint_timeout_seconds", "Checkpoints", "1800", "patience with others' files"},

    {"profile", "Reports", "false", "time every op; print at the end where a step's time went"},
    {"log_every", "Reports", "10", "steps between progress lines when not on a terminal"},
    {"metrics_file", "Reports", "", "JSON lines, one object a step [none is written]"},
    {"validation_every", "Reports", "50", "steps between validations; 0 = only at the end"},
    {"validation_samples", "Reports", "64", "at most so many a validation"},
};

}  // namespace

const std::vector<ConfigKeyRow>& ConfigKeyTable() {
  static const auto* const table =
      new std::vector<ConfigKeyRow>(std::begin(kRows), std::end(kRows));
  return *table;
}

const std::vector<ConfigKey>& ConfigKeys() {
  static const auto* const keys = [] {
    auto* result = new std::vector<ConfigKey>;
    const Descriptor* config = TrainConfig::descriptor();
    for (int i = 0; i < config->field_count(); ++i) {
      const FieldDescriptor* field = config->field(i);
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        result->push_back({field, nullptr});
        continue;
      }
      const Descriptor* part = field->message_type();
      for (int j = 0; j < part->field_count(); ++j) result->push_back({part->field(j), field});
    }
    return result;
  }();
  return *keys;
}

const ConfigKey* FindConfigKey(absl::string_view name) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (name == key.field->name()) return &key;
  }
  return nullptr;
}

Message* MessageOf(const ConfigKey& key, TrainConfig* config) {
  if (key.parent == nullptr) return config;
  return config->GetReflection()->MutableMessage(config, key.parent);
}

absl::Status SetFromText(Message* message, const FieldDescriptor* field, const std::string& text) {
  const Reflection* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) {
        return absl::InvalidArgumentError("must be a whole number");
      }
      reflection->SetInt64(message, field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value = 0;
      if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
        return absl::InvalidArgumentError("must be a number");
      }
      reflection->SetDouble(message, field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      if (text != "true" && text != "false") {
        return absl::InvalidArgumentError("must be true or false");
      }
      reflection->SetBool(message, field, text == "true");
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_STRING:
      if (field->is_repeated()) {
        reflection->AddString(message, field, text);
      } else {
        reflection->SetString(message, field, text);
      }
      return absl::OkStatus();
    default:
      // The proto has no other types.
      CONVENE_CHECK(false);
  }
}

void Overlay(const TrainConfig& winner, TrainConfig* config) {
  std::vector<const FieldDescriptor*> fields;
  winner.GetReflection()->ListFields(winner, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->is_repeated()) config->GetReflection()->ClearField(config, field);
  }
  config->MergeFrom(winner);
}

TrainConfig DefaultConfig() {
  TrainConfig config;
  for (const ConfigKeyRow& row : ConfigKeyTable()) {
    if (row.default_value[0] == '\0') continue;
    const ConfigKey* key = FindConfigKey(row.key);
    CONVENE_CHECK(key != nullptr);
    CONVENE_CHECK(SetFromText(MessageOf(*key, &config), key->field, row.default_value).ok());
  }
  return config;
}

}  // namespace convene::worker
