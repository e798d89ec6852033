#include "worker_runtime/report/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::worker {
namespace {

constexpr absl::string_view kLineStart = "{\"step\":";

// Calls visit(key, member) for each key in the line's order: writing and reading share it.
template <typename Metrics, typename Visitor>
void Visit(Metrics& metrics, Visitor& visit) {
  visit("step", metrics.step);
  if constexpr (std::is_same_v<std::remove_const_t<Metrics>, ValidationMetrics>) {
    visit("validation_set", metrics.validation_set);
    visit("validation_loss", metrics.validation_loss);
    visit("bits_per_byte", metrics.bits_per_byte);
    visit("reward_accuracy", metrics.reward_accuracy);
    visit("reward_margin", metrics.reward_margin);
  } else if constexpr (std::is_same_v<std::remove_const_t<Metrics>, CheckpointMetrics>) {
    visit("checkpoint_held_seconds", metrics.checkpoint_held_seconds);
    visit("checkpoint_seconds", metrics.checkpoint_seconds);
  } else if constexpr (std::is_same_v<std::remove_const_t<Metrics>, SampleMetrics>) {
    visit("sample_prompt", metrics.sample_prompt);
    visit("sample_text", metrics.sample_text);
    visit("sample_tokens", metrics.sample_tokens);
    visit("sample_end", metrics.sample_end);
  } else {
    visit("loss", metrics.loss);
    visit("grad_norm", metrics.grad_norm);
    visit("learning_rate", metrics.learning_rate);
    visit("balance_loss", metrics.balance_loss);
    visit("z_loss", metrics.z_loss);
    visit("expert_load", metrics.expert_load);
    visit("expert_entropy", metrics.expert_entropy);
    visit("experts_in_pieces", metrics.experts_in_pieces);
    visit("reward_accuracy", metrics.reward_accuracy);
    visit("reward_margin", metrics.reward_margin);
    visit("skipped", metrics.skipped);
    visit("rollbacks", metrics.rollbacks);
    visit("tokens", metrics.tokens);
    visit("counted_share", metrics.counted_share);
    visit("tokens_per_second", metrics.tokens_per_second);
    visit("step_seconds", metrics.step_seconds);
    visit("mfu_full_attention", metrics.mfu_full_attention);
    visit("mfu_causal_attention", metrics.mfu_causal_attention);
    visit("data_seconds", metrics.data_seconds);
    visit("host_memory_peak_bytes", metrics.host_memory_peak_bytes);
    visit("epoch", metrics.epoch);
    visit("world_size", metrics.world_size);
    visit("layout", metrics.layout);
  }
}

class LineWriter {
 public:
  void operator()(const char* key, int64_t value) { absl::StrAppend(Key(key), value); }

  void operator()(const char* key, double value) {
    // The shortest text that reads back as the same double.
    char text[32];
    const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
    absl::StrAppend(Key(key),
                    std::isfinite(value) ? absl::string_view(text, end.ptr - text) : "null");
  }

  template <typename T>
  void operator()(const char* key, const std::optional<T>& value) {
    if (value.has_value()) (*this)(key, *value);
  }

  void operator()(const char* key, const std::string& value) {
    absl::StrAppend(Key(key), JsonText(value));
  }

  std::string Line() const { return line_ + "}\n"; }

 private:
  std::string* Key(const char* key) {
    absl::StrAppend(&line_, line_.empty() ? "{" : ",", "\"", key, "\":");
    return &line_;
  }

  std::string line_;
};

class NumberVisitor {
 public:
  explicit NumberVisitor(absl::FunctionRef<void(const char*, double)> hear) : hear_(hear) {}

  template <typename T>
  void operator()(const char* key, const T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      if (absl::string_view(key) != "step") hear_(key, static_cast<double>(value));
    }
  }
  template <typename T>
  void operator()(const char* key, const std::optional<T>& value) {
    if (value.has_value()) (*this)(key, *value);
  }

 private:
  const absl::FunctionRef<void(const char*, double)> hear_;
};

// Takes "key":value pairs off the front of a line in the order they were written.
class LineReader {
 public:
  explicit LineReader(absl::string_view line)
      : rest_(line), ok_(absl::ConsumePrefix(&rest_, "{")) {}

  void operator()(const char* key, int64_t& value) {
    Require(absl::SimpleAtoi(Value(key), &value));
  }

  void operator()(const char* key, double& value) {
    const absl::string_view text = Value(key);
    if (text == "null") {
      value = std::numeric_limits<double>::quiet_NaN();
      return;
    }
    Require(absl::SimpleAtod(text, &value) && std::isfinite(value));
  }

  template <typename T>
  void operator()(const char* key, std::optional<T>& value) {
    if (!absl::StartsWith(rest_, absl::StrCat("\"", key, "\":"))) return;
    (*this)(key, value.emplace());
  }

  void operator()(const char* key, std::string& value) {
    Require(absl::ConsumePrefix(&rest_, absl::StrCat("\"", key, "\":\"")));
    value.clear();
    while (ok_ && !absl::ConsumePrefix(&rest_, "\"")) {
      Require(!rest_.empty());
      if (ok_) value += Character();
    }
    Require(absl::ConsumePrefix(&rest_, ",") || absl::ConsumePrefix(&rest_, "}"));
  }

  // Whether the line was as asked for, and nothing is left of it.
  bool IsWhole() const { return ok_ && rest_.empty(); }

 private:
  void Require(bool holds) { ok_ = ok_ && holds; }

  // The next one of a text as JsonText writes it. REQUIRES: the line goes on.
  char Character() {
    char c = rest_.front();
    rest_.remove_prefix(1);
    if (c != '\\') return c;
    int code = 0;
    if (absl::ConsumePrefix(&rest_, "u")) {
      Require(rest_.size() >= 4 && absl::SimpleHexAtoi(rest_.substr(0, 4), &code) && code < ' ');
      rest_.remove_prefix(std::min<size_t>(4, rest_.size()));
      return static_cast<char>(code);
    }
    if (absl::ConsumePrefix(&rest_, "n")) return '\n';
    Require(absl::StartsWith(rest_, "\"") || absl::StartsWith(rest_, "\\"));
    if (!ok_) return c;
    c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }

  // Of a number, in which there is no comma and no brace.
  absl::string_view Value(const char* key) {
    Require(absl::ConsumePrefix(&rest_, absl::StrCat("\"", key, "\":")));
    const size_t end = rest_.find_first_of(",}");
    Require(end != absl::string_view::npos);
    if (!ok_) return "";
    const absl::string_view value = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return value;
  }

  absl::string_view rest_;
  bool ok_;
};

template <typename Metrics>
std::optional<MetricsRecord> Parse(absl::string_view line) {
  Metrics metrics;
  LineReader reader(line);
  Visit(metrics, reader);
  if (!reader.IsWhole()) return std::nullopt;
  return metrics;
}

// The lines of `content` that a run keeps when it resumes after `resumed_step` steps, without a
// torn last one; those of that step go to *of_resumed_step too.
absl::StatusOr<std::string> KeptLines(absl::string_view content, const std::string& path,
                                      int64_t resumed_step,
                                      std::vector<MetricsRecord>* of_resumed_step) {
  std::string kept;
  for (int64_t line_number = 1; !content.empty(); ++line_number) {
    const size_t end = content.find('\n');
    const bool is_last = end == absl::string_view::npos;
    const absl::string_view line = content.substr(0, end);
    content.remove_prefix(is_last ? content.size() : end + 1);
    const absl::StatusOr<MetricsRecord> record = ParseMetricsLine(line);
    if (!record.ok()) {
      const bool is_torn =
          is_last && (absl::StartsWith(line, kLineStart) || absl::StartsWith(kLineStart, line));
      if (is_torn) break;
      return Annotate(record.status(), absl::StrCat(path, ":", line_number));
    }
    const int64_t step = std::visit([](const auto& metrics) { return metrics.step; }, *record);
    if (resumed_step == 0 || step > resumed_step) continue;
    absl::StrAppend(&kept, line, "\n");
    if (step == resumed_step) of_resumed_step->push_back(*record);
  }
  return kept;
}

// A pipe or a device keeps no lines that could be dropped, and reading it might never end.
bool KeepsNothing(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

absl::Status PruneFile(const std::string& path, int64_t resumed_step,
                       std::vector<MetricsRecord>* of_resumed_step) {
  if (KeepsNothing(path)) return absl::OkStatus();
  const absl::StatusOr<std::string> content = ReadFile(path);
  if (absl::IsNotFound(content.status())) return absl::OkStatus();
  CONVENE_RETURN_IF_ERROR(content.status());
  const absl::StatusOr<std::string> kept = KeptLines(*content, path, resumed_step, of_resumed_step);
  if (!kept.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(kept.status().message(),
                     "; the file is left as it is: give another metrics_file, or move it away"));
  }
  if (*kept == *content) return absl::OkStatus();
  return WriteFileAtomic(path, *kept);
}

}  // namespace

std::string JsonText(absl::string_view text) {
  std::string json = "\"";
  for (const char c : Utf8(text)) {
    if (c == '"' || c == '\\') {
      json.append({'\\', c});
    } else if (c == '\n') {
      json += "\\n";
    } else if (c >= 0 && c < ' ') {
      absl::StrAppend(&json, "\\u", absl::Hex(c, absl::kZeroPad4));
    } else {
      json += c;
    }
  }
  return json + "\"";
}

void ForEachNumber(const MetricsRecord& record,
                   absl::FunctionRef<void(const char* key, double value)> hear) {
  NumberVisitor visitor(hear);
  std::visit([&](const auto& metrics) { Visit(metrics, visitor); }, record);
}

std::string MetricsLine(const MetricsRecord& record) {
  LineWriter writer;
  std::visit([&writer](const auto& metrics) { Visit(metrics, writer); }, record);
  return writer.Line();
}

absl::StatusOr<MetricsRecord> ParseMetricsLine(absl::string_view line) {
  if (const auto step = Parse<StepMetrics>(line)) return *step;
  if (const auto validation = Parse<ValidationMetrics>(line)) return *validation;
  if (const auto checkpoint = Parse<CheckpointMetrics>(line)) return *checkpoint;
  if (const auto sample = Parse<SampleMetrics>(line)) return *sample;
  return absl::InvalidArgumentError("not a line of a metrics file");
}

absl::StatusOr<MetricsFile> MetricsFile::Open(const std::string& path, int64_t resumed_step) {
  CONVENE_RETURN_IF_ERROR(MakeDirectories(ParentDirectory(path)));
  std::vector<MetricsRecord> of_resumed_step;
  CONVENE_RETURN_IF_ERROR(PruneFile(path, resumed_step, &of_resumed_step));
  CONVENE_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_WRONLY | O_APPEND | O_CREAT));
  return MetricsFile(path, std::move(fd), std::move(of_resumed_step));
}

absl::Status MetricsFile::Append(const MetricsRecord& record) {
  const off_t size = lseek(fd_.get(), 0, SEEK_END);
  absl::Status status = WriteAll(fd_.get(), MetricsLine(record), path_);
  if (!status.ok() && size >= 0 && ftruncate(fd_.get(), size) != 0) {
    return Annotate(status, "a torn line stays behind");
  }
  return status;
}

}  // namespace convene::worker
