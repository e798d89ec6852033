#include "launcher/launch/task.h"

#include <algorithm>
#include <csignal>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

// A change of the format changes this word.
constexpr absl::string_view kHeader = "convene-launch-2 ";
// More than execve takes.
constexpr size_t kLargestTask = 16 << 20;
constexpr size_t kLongestHeader = 64;
constexpr size_t kFixedTexts = 4;  // before the variables
// No terminal shows the first byte, and no program begins a line with it.
constexpr absl::string_view kMark =
    "\x1e"
    "convene launched: ";
constexpr absl::string_view kStarted = "started";
constexpr absl::string_view kEnded = "ended ";
// It ends a line, for a program on the way that passes on whole lines only.
constexpr absl::string_view kAlive =
    "\x1e"
    "convene launched: alive\n";

absl::Status NotATask(absl::string_view bytes) {
  return absl::InvalidArgumentError(absl::StrCat(
      "`convene launched` is what `convene launch` of the same version starts on each host, and "
      "this is not its task: \"",
      absl::CHexEscape(bytes.substr(0, kLongestHeader)),
      "\". Install the same version of Convene on all hosts"));
}

absl::StatusOr<HostTask> ParseBody(absl::string_view body) {
  if (!absl::ConsumeSuffix(&body, absl::string_view("\0", 1))) return NotATask("");
  const std::vector<std::string> texts = absl::StrSplit(body, '\0');
  HostTask task;
  int64_t milliseconds = 0;
  size_t count = 0;
  if (texts.size() < kFixedTexts || !absl::SimpleAtoi(texts[0], &milliseconds) ||
      milliseconds < 1 || !absl::SimpleAtoi(texts[3], &count) ||
      count > texts.size() - kFixedTexts) {
    return NotATask(texts[0]);
  }
  task.link_timeout = absl::Milliseconds(milliseconds);
  task.name = texts[1];
  task.directory = texts[2];
  const size_t arguments = kFixedTexts + count;
  for (size_t i = kFixedTexts; i < arguments; ++i) {
    const size_t equals = texts[i].find('=');
    if (equals == 0 || equals == std::string::npos) return NotATask(texts[i]);
    task.variables.emplace_back(texts[i].substr(0, equals), texts[i].substr(equals + 1));
  }
  task.arguments.assign(texts.begin() + static_cast<std::ptrdiff_t>(arguments), texts.end());
  return task;
}

}  // namespace

std::string EncodeTask(const HostTask& task) {
  std::string body;
  const auto add = [&body](absl::string_view text) {
    absl::StrAppend(&body, text, absl::string_view("\0", 1));
  };
  add(absl::StrCat(absl::ToInt64Milliseconds(task.link_timeout)));
  add(task.name);
  add(task.directory);
  add(absl::StrCat(task.variables.size()));
  for (const auto& [name, value] : task.variables) add(absl::StrCat(name, "=", value));
  for (const std::string& argument : task.arguments) add(argument);
  return absl::StrCat(kHeader, body.size(), "\n", body);
}

absl::StatusOr<size_t> TaskReader::Add(absl::string_view bytes) {
  size_t taken = 0;
  while (!body_size_.has_value() && taken < bytes.size()) {
    const char c = bytes[taken++];
    if (c != '\n') {
      header_.push_back(c);
      const size_t compared = std::min(header_.size(), kHeader.size());
      const bool is_ours =
          absl::string_view(header_).substr(0, compared) == kHeader.substr(0, compared);
      if (!is_ours || header_.size() > kLongestHeader) return NotATask(header_);
      continue;
    }
    size_t size = 0;
    if (header_.size() < kHeader.size() ||
        !absl::SimpleAtoi(header_.substr(kHeader.size()), &size) || size > kLargestTask) {
      return NotATask(header_);
    }
    body_size_ = size;
  }
  if (!body_size_.has_value() || task_.has_value()) return taken;
  const size_t more = std::min(*body_size_ - body_.size(), bytes.size() - taken);
  body_.append(bytes.data() + taken, more);
  taken += more;
  if (body_.size() == *body_size_) {
    CONVENE_ASSIGN_OR_RETURN(task_, ParseBody(body_));
  }
  return taken;
}

Request RequestOf(int signal) {
  switch (signal) {
    case SIGINT:
      return Request::kInterrupt;
    case SIGHUP:
      return Request::kHangUp;
    case SIGQUIT:
      return Request::kQuit;
    default:
      return Request::kTerminate;
  }
}

int SignalIn(Request request) {
  switch (request) {
    case Request::kInterrupt:
      return SIGINT;
    case Request::kTerminate:
      return SIGTERM;
    case Request::kHangUp:
      return SIGHUP;
    case Request::kQuit:
      return SIGQUIT;
    default:
      return 0;
  }
}

std::string StartedLine() { return absl::StrCat(kMark, kStarted); }

std::string EndedLine(int exit_code) { return absl::StrCat(kMark, kEnded, exit_code); }

std::optional<LaunchedNews> ReadNews(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, kMark)) return std::nullopt;
  if (line == kStarted) return LaunchedNews{};
  int exit_code = 0;
  if (!absl::ConsumePrefix(&line, kEnded) || !absl::SimpleAtoi(line, &exit_code)) {
    return std::nullopt;
  }
  return LaunchedNews{exit_code};
}

absl::string_view HeartbeatMark() { return kAlive; }

std::string HeartbeatFilter::Add(absl::string_view bytes) {
  waiting_.append(bytes.data(), bytes.size());
  std::string others = absl::StrReplaceAll(waiting_, {{kAlive, ""}});
  size_t kept = std::min(others.size(), kAlive.size() - 1);
  while (!absl::EndsWith(others, kAlive.substr(0, kept))) --kept;
  waiting_ = others.substr(others.size() - kept);
  others.resize(others.size() - kept);
  return others;
}

}  // namespace convene::launcher
