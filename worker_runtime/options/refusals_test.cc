// Illegal combinations of options: each is refused in one paragraph that names the value, and each
// value that the paragraph names as legal is legal.
#include <algorithm>
#include <cctype>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/options/elastic_layout.h"
#include "worker_runtime/options/load_options.h"

namespace convene::worker {
namespace {

using Flags = std::vector<std::string>;  // "--tp-size=3"

struct Refused {
  const char* what;
  int world_size;
  Flags flags;
  const char* value;  // its part of the paragraph
  // The keys that stand in the paragraph before legal values.
  std::vector<std::string> keys;
  const char* csv = "";  // a schedule's file
};

// A job with these flags, up to where something would start.
absl::Status Start(const Flags& flags, int world_size, const std::string& csv) {
  Flags all = {"--data=a.txt", "--token-cache-dir=/cache"};
  all.insert(all.end(), flags.begin(), flags.end());
  auto options = LoadOptions(all, [](const std::string&) { return std::optional<std::string>(); });
  if (!options.ok()) return options.status();
  if (!csv.empty()) {
    (*options)->pp_schedule = "own.csv";
    (*options)->pp_schedule_csv = csv;
  }
  return DecideLayout(**options, world_size, /*job_has_begun=*/false).status();
}

// The words of a list that `text` begins with: "1, 2 or 8; ..." gives 1, 2 and 8. The list ends
// where a word of it is followed by neither a comma nor "or".
std::vector<std::string> ListAt(absl::string_view text) {
  std::vector<std::string> values;
  for (;;) {
    size_t length = 0;
    while (length < text.size() && (std::isalnum(static_cast<unsigned char>(text[length])) ||
                                    text[length] == '-' || text[length] == '.')) {
      ++length;
    }
    while (length > 0 && text[length - 1] == '.') --length;  // a sentence's end
    if (length == 0 || text.substr(0, length) == "which") return values;
    values.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
    const size_t gap = absl::StartsWith(text, " or ") ? 4 : absl::StartsWith(text, ", ") ? 2 : 0;
    if (gap == 0) return values;
    text.remove_prefix(gap);
    // ", or another_key can be ...": another list.
    if (absl::StartsWith(text, "or ")) return values;
  }
}

// All values that the paragraph says `key` can have; "" for leaving it out. Of a range the end that
// is nearer to the value that was given.
std::vector<std::string> LegalValues(const std::string& paragraph, const std::string& key) {
  std::smatch match;
  const std::regex offer(absl::StrCat(
      "(?:", key,
      "(?: (-?[0-9]+))?(?: is no token: it)? (?:can be at most|can be|must be at least|",
      "must be a number from|must be from|must be)|choose (?:.* and )?", key, ") "));
  if (!std::regex_search(paragraph, match, offer)) return {};
  const std::string rest = match.suffix();
  if (absl::StartsWith(rest, "left out")) return {""};
  const std::vector<std::string> values = ListAt(rest);
  std::smatch range;
  int64_t given = 0;
  if (!std::regex_search(rest, range, std::regex("^([0-9]+) to ([0-9]+)")) ||
      !absl::SimpleAtoi(match[1].str(), &given)) {
    return values;
  }
  return {given < 1 ? range[1].str() : range[2].str()};
}

// The flags with the key's value replaced, or left out where it is "".
Flags With(Flags flags, const std::string& key, const std::string& value) {
  const std::string flag = absl::StrCat("--", absl::StrReplaceAll(key, {{"_", "-"}}), "=");
  flags.erase(std::remove_if(flags.begin(), flags.end(),
                             [&](const std::string& f) { return absl::StartsWith(f, flag); }),
              flags.end());
  if (!value.empty()) flags.push_back(absl::StrCat(flag, value));
  return flags;
}

const Refused kRefused[] = {
    // The model, and its split over tp. llama-tiny has 16 heads, 8 key and value heads, 8 layers.
    {"layers", 1, {"--layers=0"}, "layers 0", {"layers"}},
    {"many layers", 1, {"--layers=5000"}, "layers 5000", {"layers"}},
    {"heads over kv heads", 1, {"--kv-heads=6"}, "kv_heads 6", {"kv_heads"}},
    {"odd heads", 1, {"--head-size=5"}, "head_size 5", {"head_size"}},
    {"heads over tp", 18, {"--tp-size=3"}, "heads 16", {"tp_size"}},
    {"ffn over tp", 8, {"--tp-size=8", "--ffn-size=100"}, "ffn_size 100", {"tp_size"}},
    {"vocabulary over tp",
     4,
     {"--tp-size=4", "--vocabulary-size=258"},
     "vocabulary_size 258",
     {"tp_size"}},
    {"learned positions over tp",
     4,
     {"--model=gpt2-tiny", "--tp-size=4", "--positions=1022"},
     "positions 1022",
     {"tp_size"}},
    {"heads of keys with biases, copied",
     4,
     {"--model=qwen2-tiny", "--tp-size=4", "--kv-heads=2"},
     "kv_heads 2",
     {"tp_size"}},
    {"more tokens than positions",
     1,
     {"--model=gpt2-tiny", "--positions=16"},
     "learned positions",
     {"sequence_length"}},
    // Experts. moe-tiny has 8, of ffn 96, and a token goes to 2.
    {"ep without experts", 4, {"--ep-size=2"}, "the model has none", {}},
    {"experts over ep", 6, {"--model=moe-tiny", "--ep-size=3"}, "experts 8", {"ep_size"}},
    {"more ep than dp", 2, {"--model=moe-tiny", "--ep-size=4"}, "ep_size 4", {"ep_size"}},
    {"ep beside dp", 6, {"--model=moe-tiny", "--ep-size=4"}, "come out even", {"ep_size"}},
    {"top k above the experts",
     1,
     {"--model=moe-tiny", "--experts-per-token=9"},
     "experts_per_token 9",
     {"experts_per_token"}},
    {"expert ffn over tp",
     8,
     {"--model=moe-tiny", "--tp-size=8", "--expert-ffn-size=12"},
     "expert_ffn_size 12",
     {"tp_size"}},
    {"a negative loss of the router",
     1,
     {"--model=moe-tiny", "--router-balance-loss=-1"},
     "router_balance_loss -1",
     {}},
    {"more groups than the router has",
     1,
     {"--model=deepseek-tiny", "--router-groups=2", "--router-groups-per-token=3"},
     "router_groups_per_token 3",
     {"router_groups_per_token"}},
    {"groups of unequal sizes",
     1,
     {"--model=deepseek-tiny", "--router-groups=3", "--router-groups-per-token=1"},
     "3 groups of equal size",
     {"router_groups"}},
    {"groups of unequal sizes, of which a token goes to two",
     1,
     {"--model=deepseek-tiny", "--router-groups=3"},
     "router_groups can be 2 or 4",
     {"router_groups"}},
    {"groups of which no number is right",
     1,
     {"--model=deepseek-tiny", "--router-groups=8", "--router-groups-per-token=5"},
     "no number of groups goes with router_groups_per_token 5",
     {}},
    {"groups too small to be judged",
     1,
     {"--model=deepseek-tiny", "--router-groups=8", "--router-groups-per-token=1",
      "--experts-per-token=1"},
     "8 groups of equal size, each judged by 2 experts",
     {"router_groups"}},
    {"top k above the groups that a token goes to",
     1,
     {"--model=deepseek-tiny", "--router-groups=4", "--router-groups-per-token=1",
      "--experts-per-token=3"},
     "experts_per_token 3",
     {"experts_per_token"}},
    {"a negative cap", 1, {"--model=gemma2-tiny", "--score-cap=-1"}, "score_cap -1", {}},
    {"no room for experts' tokens",
     1,
     {"--model=moe-tiny", "--expert-memory-factor=0"},
     "expert_memory_factor 0",
     {}},
    {"a negative peak", 1, {"--peak-tflops=-1"}, "peak_tflops -1", {}},
    // Sequence, batch and rows.
    {"no sequence", 1, {"--sequence-length=0"}, "sequence_length 0", {"sequence_length"}},
    {"rows over tp",
     4,
     {"--tp-size=4", "--sequence-length=30", "--sequence-parallel"},
     "sequence_length 30",
     {"sequence_length"}},
    {"few rows over tp",
     4,
     {"--tp-size=4", "--sequence-length=3", "--sequence-parallel"},
     "sequence_length 3",
     {"sequence_length"}},
    {"heads over cp", 3, {"--cp-size=3", "--cp-method=ulysses"}, "cp_size 3", {"cp_size"}},
    {"a row over cp",
     2,
     {"--cp-size=2", "--cp-method=ring", "--sequence-length=30"},
     "sequence_length 30",
     {"sequence_length"}},
    {"a row over cp and tp",
     8,
     {"--tp-size=4", "--cp-size=2", "--sequence-length=10", "--sequence-parallel"},
     "sequence_length 10",
     {"sequence_length"}},
    {"a row over odd tp and cp",
     6,
     {"--tp-size=3", "--cp-size=2", "--sequence-length=8", "--sequence-parallel", "--heads=6",
      "--kv-heads=3", "--ffn-size=96", "--vocabulary-size=300"},
     "sequence_length 8",
     {"sequence_length"}},
    {"no batch", 1, {"--global-batch-size=0"}, "global_batch_size 0", {"global_batch_size"}},
    {"no micro batch", 1, {"--micro-batch-size=-1"}, "micro_batch_size -1", {"micro_batch_size"}},
    {"a step's tokens",
     2,
     {"--global-batch-size=16777216"},
     "global_batch_size 16777216",
     {"global_batch_size", "sequence_length"}},
    {"a micro batch's numbers",
     1,
     {"--global-batch-size=131072", "--micro-batch-size=131072"},
     "micro_batch_size 131072",
     {"micro_batch_size", "sequence_length"}},
    {"a long sequence",
     1,
     {"--sequence-length=16777216", "--global-batch-size=1"},
     "sequence_length 16777216",
     {"sequence_length"}},
    {"all tokens", 1, {"--steps=9223372036854775807"}, "steps 9223372036854775807", {"steps"}},
    {"a token that is none",
     1,
     {"--packed-documents", "--eod-token=256"},
     "eod_token 256",
     {"eod_token"}},
    // The workers.
    {"too few for a replica",
     3,
     {"--tp-size=2", "--pp-size=2"},
     "and this job has 3",
     {"tp_size", "pp_size", "elastic_layout"}},
    {"one worker", 1, {"--tp-size=2"}, "tp_size 2", {"tp_size", "elastic_layout"}},
    {"dp over the world",
     6,
     {"--tp-size=2", "--dp-size=4"},
     "dp_size 4",
     {"dp_size", "elastic_layout"}},
    {"dp and an odd world",
     7,
     {"--tp-size=2", "--dp-size=2"},
     "dp_size 2",
     {"dp_size", "elastic_layout"}},
    {"shards over the world",
     3,
     {"--dp-shard-size=4"},
     "dp_shard_size 4",
     {"dp_shard_size", "elastic_layout"}},
    {"shards over dp",
     6,
     {"--dp-size=6", "--dp-shard-size=4"},
     "dp_shard_size 4",
     {"dp_size", "dp_shard_size"}},
    {"copies over dp",
     6,
     {"--dp-size=6", "--dp-replicate-size=4"},
     "dp_replicate_size 4",
     {"dp_size", "dp_replicate_size"}},
    {"shards x copies over dp",
     8,
     {"--dp-size=8", "--dp-shard-size=2", "--dp-replicate-size=2"},
     "dp_replicate_size 2",
     {"dp_size", "dp_shard_size", "dp_replicate_size"}},
    {"shards x copies over the world",
     6,
     {"--dp-shard-size=4", "--dp-replicate-size=2"},
     "dp_shard_size 4 x dp_replicate_size 2",
     {"dp_shard_size", "dp_replicate_size"}},
    {"shards without zero",
     4,
     {"--zero-stage=0", "--dp-shard-size=2"},
     "dp_shard_size 2",
     {"dp_shard_size", "zero_stage"}},
    {"an unknown stage", 1, {"--zero-stage=9"}, "zero_stage 9", {"zero_stage"}},
    // The pipeline.
    {"an unknown schedule", 2, {"--pp-size=2", "--pp-schedule=2f2b"}, "2f2b", {"the schedules"}},
    {"stages that 1f1b has not",
     2,
     {"--pp-size=2", "--pp-virtual-stages=3"},
     "1f1b has",
     {"pp_virtual_stages"}},
    {"more stages than layers", 11, {"--pp-size=11"}, "pp_size 11", {"pp_size"}},
    {"more chunks than layers",
     6,
     {"--pp-size=6", "--pp-schedule=interleaved"},
     "pp_size 6",
     {"pp_size"}},
    {"virtual stages over layers",
     2,
     {"--pp-size=2", "--pp-schedule=interleaved", "--pp-virtual-stages=1000000000"},
     "pp_virtual_stages 1000000000",
     {"pp_virtual_stages"}},
    {"a cut of other layers", 2, {"--pp-size=2", "--pp-layout=5,4"}, "5,4", {"pp_layout"}},
    {"a cut of other chunks", 4, {"--pp-size=4", "--pp-layout=4,4"}, "4,4", {"pp_layout"}},
    {"a cut without a layer", 4, {"--pp-size=4", "--pp-layout=4,0,2,2"}, "4,0,2,2", {"pp_layout"}},
    {"a cut that is no cut", 2, {"--pp-size=2", "--pp-layout=a,b"}, "a,b", {"pp_layout"}},
    {"a file of other ranks",
     4,
     {"--pp-size=4", "--global-batch-size=64", "--micro-batch-size=16"},
     "own.csv",
     {"pp_size"},
     "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"},
    {"a file of other micro batches",
     2,
     {"--pp-size=2"},
     "own.csv",
     {"micro_batch_size"},
     "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"},
    {"a file of more micro batches than samples",
     2,
     {"--pp-size=2", "--global-batch-size=1"},
     "own.csv",
     {"global_batch_size"},
     "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"},
    {"a file and virtual stages",
     2,
     {"--pp-size=2", "--micro-batch-size=16", "--pp-virtual-stages=1"},
     "pp_virtual_stages",
     {"leave pp_virtual_stages"},
     "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"},
    {"a file without a backward",
     2,
     {"--pp-size=2", "--micro-batch-size=16"},
     "own.csv",
     {},
     "0F0,0F1\n1F0,1F1\n"},
    // Words.
    {"a policy", 1, {"--elastic-layout=grow"}, "grow", {"elastic_layout"}},
    {"a precision", 1, {"--precision=fp4"}, "fp4", {"precision"}},
    {"8-bit floats of an odd width",
     8,
     {"--precision=fp8", "--tp-size=8"},
     "heads / tp_size x head_size is 8",
     {"precision"}},
    {"8-bit floats of an odd sequence",
     1,
     {"--precision=fp8", "--sequence-length=40"},
     "sequence_length / cp_size is 40",
     {"precision"}},
    {"8-bit floats of experts",
     1,
     {"--precision=fp8", "--model=moe-tiny"},
     "moe-tiny",
     {"precision"}},
    {"8-bit floats of latent attention",
     1,
     {"--precision=fp8", "--model=mla-tiny"},
     "mla-tiny",
     {"precision"}},
    {"no block in 8-bit floats",
     1,
     {"--precision=fp8", "--bf16-end-blocks=4"},
     "bf16_end_blocks 4",
     {"bf16_end_blocks"}},
    {"recomputation", 1, {"--recompute=some"}, "some", {"recompute"}},
};

// The key of a flag, and its legal values in the paragraph, where a row names them in other words.
std::vector<std::string> ValuesOf(const std::string& paragraph, std::string* key) {
  const auto behind = [&](absl::string_view phrase) {
    const std::vector<std::string> parts =
        absl::StrSplit(paragraph, absl::MaxSplits(std::string(phrase), 1));
    return parts.size() == 2 ? parts[1] : "";
  };
  if (*key == "the schedules") {
    *key = "pp_schedule";
    return ListAt(behind("the schedules are "));
  }
  if (*key == "leave pp_virtual_stages") {
    *key = "pp_virtual_stages";
    return absl::StrContains(paragraph, "leave pp_virtual_stages out")
               ? std::vector<std::string>{""}
               : std::vector<std::string>();
  }
  if (*key == "pp_virtual_stages" && absl::StrContains(paragraph, "virtual stages a rank")) {
    return ListAt(behind(" has "));
  }
  if (*key == "pp_layout") {
    const std::vector<std::string> parts = absl::StrSplit(paragraph, "; ");
    return {std::string(absl::StripSuffix(parts.back(), " would be legal"))};
  }
  const std::string is = absl::StrCat("; it can be ");
  if (absl::StrContains(paragraph, is)) return ListAt(behind(is));
  return LegalValues(paragraph, *key);
}

TEST_CASE("what is illegal is refused in one paragraph, whose values are legal") {
  for (const Refused& row : kRefused) {
    const absl::Status refusal = Start(row.flags, row.world_size, row.csv);
    const std::string paragraph(refusal.message());
    INFO(row.what << ": " << paragraph);
    CHECK(refusal.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(paragraph, Catch::Contains(row.value) && !Catch::Contains("\n"));
    for (std::string key : row.keys) {
      const std::vector<std::string> values = ValuesOf(paragraph, &key);
      INFO(key);
      CHECK_FALSE(values.empty());
      for (const std::string& value : values) {
        INFO("with " << key << " " << value);
        const absl::Status with = Start(With(row.flags, key, value), row.world_size, row.csv);
        CHECK_OK(with);
      }
    }
  }
}

TEST_CASE("a home folder that no shell has put in its place is refused, but in a text") {
  const auto load = [](const Flags& flags) {
    return LoadOptions(flags,
                       [](const std::string& name) {
                         return name == "HOME" ? std::optional<std::string>("/home/ada")
                                               : std::nullopt;
                       })
        .status();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  CHECK_STATUS(load({"--checkpoint-dir=~/ckpt"}), kInvalid,
               "checkpoint_dir \"~/ckpt\": `~` is the shell's, and no shell reads it here: write "
               "/home/ada/ckpt, or ./~/ckpt for a folder of this name");
  CHECK_STATUS(load({"--data", "a.txt", "~/b.txt"}), kInvalid, "write /home/ada/b.txt");
  CHECK_OK(load({"--data=a~b", "--sample-prompt=~/x", "--sample-every=5", "--log-every=1",
                 "--checkpoint-dir=./~/c"}));
}

TEST_CASE("a model by its name on the Hub is refused with the way to fetch it") {
  CHECK_STATUS(
      Start({"--model=Qwen/Qwen3-8B"}, 1, ""), absl::StatusCode::kNotFound,
      "there is no folder and no GGUF file Qwen/Qwen3-8B. A model's name is not looked up");
}

}  // namespace
}  // namespace convene::worker
