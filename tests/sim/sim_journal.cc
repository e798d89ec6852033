#include "tests/sim/sim_journal.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"

namespace convene::sim {
namespace {

// Small, so that it is rewritten often.
constexpr int64_t kRewriteBytes = 4096;

absl::Time g_wall_time;

absl::Time SimWallNow() { return g_wall_time; }

std::string ContentOf(const std::string& path) {
  absl::StatusOr<std::string> content = ReadFile(path);
  Expect(content.ok(), "the journal's file is gone");
  return *std::move(content);
}

void Leave(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

absl::Time WallTimeOf(const Simulation& simulation) {
  return absl::FromUnixSeconds(1'700'000'000) + simulation.now().since_epoch();
}

}  // namespace

std::vector<rendezvous::JobRecord> SimJournal::Open() {
  g_wall_time = WallTimeOf(simulation_);
  absl::StatusOr<rendezvous::Journal::Opened> opened =
      rendezvous::FileJournal::Open({directory_.path(), kRewriteBytes, &SimWallNow});
  Expect(opened.ok(), absl::StrCat("what a crash left is refused: ", opened.status().ToString()));
  journal_ = std::move(opened->journal);
  is_current_ = true;
  return std::move(opened->jobs);
}

void SimJournal::BeginWrite(const rendezvous::RecordChanges& changes) {
  g_wall_time = WallTimeOf(simulation_);
  is_writing_ = true;
  before_ = ContentOf(path());
  std::optional<ScopedFileFault> full;
  if (is_full_) {
    full.emplace([left = simulation_.Between(0, 3)](FileOp, const std::string&) mutable {
      return left-- > 0 ? 0 : ENOSPC;
    });
  }
  journal_->Append(changes).IgnoreError();
  // The rewrite has already lost the old content; the daemon hears of it at the end.
  if (!journal_->is_current()) is_current_ = false;
}

void SimJournal::EndWrite() {
  is_writing_ = false;
  is_current_ = journal_->is_current();
}

void SimJournal::Crash() {
  journal_ = nullptr;
  if (std::exchange(is_writing_, false)) LeaveTorn();
}

// Leaves any part of the write that was under way.
void SimJournal::LeaveTorn() {
  std::string after = ContentOf(path());
  const bool is_appended = absl::StartsWith(after, before_);
  const auto cut = [this](size_t least, const std::string& whole) {
    const auto bytes = static_cast<int>(whole.size() - least);
    return least + static_cast<size_t>(simulation_.Between(0, bytes));
  };
  if (is_appended) {
    const size_t length = cut(before_.size(), after);
    const size_t data = cut(before_.size(), after.substr(0, length));
    after.resize(length);
    // The file's length may be on the disk before its bytes are.
    if (simulation_.Chance(0.3)) std::fill(after.begin() + static_cast<int>(data), after.end(), 0);
    Leave(path(), after);
  } else if (simulation_.Chance(0.5)) {  // It was rewritten, and not renamed yet.
    Leave(path() + ".new", after.substr(0, cut(0, after)));
    Leave(path(), before_);
  }
}

}  // namespace convene::sim
