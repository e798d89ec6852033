// PURE. Turns the daemon's messages into the output of `convene logs`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/output/line_prefix.h"
#include "rendezvous/client/log_client.h"
#include "rendezvous/quorum/log_lines.h"
#include "tools/base/clock.h"

namespace convene::launcher {

// Lines that the nodes already have are shown in the order of their times, when all nodes have sent
// them; later lines are shown as they come. Not thread-safe.
class LogsView {
 public:
  static constexpr absl::Duration kAnswerPatience =
      absl::Seconds(5);                                             // of the nodes that are asked
  static constexpr absl::Duration kEndPatience = absl::Seconds(4);  // for the last lines of a run
  static constexpr size_t kMostHeldBytes = 64 << 20;  // lines that wait to be put in order

  struct Options {
    std::string job_id;
    bool follow = false;
    bool json = false;            // a line is an object
    std::string prefix_template;  // agent::LogOptions::prefix_template
    bool to_terminal = false;     // of a line's escape sequences colors alone are shown
  };
  struct Chunk {
    bool is_notice = false;  // for stderr: a remark about the view, no worker's line
    std::string text;        // whole lines
  };

  explicit LogsView(Options options) : options_(std::move(options)) {}

  // A call begins: the first one, or the next one after a broken call.
  void Begin(MonotonicTime now);
  void Take(MonotonicTime now, rendezvous::LogClient::News news);
  // The call broke: its remaining lines do not come.
  void Break();
  // Handles due work: see deadline().
  void OnTime(MonotonicTime now);
  // OnTime is needed at that time.
  MonotonicTime deadline() const { return deadline_; }

  // Takes the chunks to show now, in order.
  std::vector<Chunk> TakeChunks();
  // Whether all lines asked for have been shown.
  bool done() const { return done_; }
  // Whether the daemon has answered the latest call.
  bool has_started() const { return has_started_; }
  // The marks for the next call.
  std::vector<rendezvous::LogMark> seen() const;

 private:
  struct HeldLine {
    std::string host;
    std::string role;
    rendezvous::LogLine line;
  };

  void Take(rendezvous::LogStart start);
  void Take(rendezvous::LogBatch batch);
  void Take(const rendezvous::LogsGone& gone);
  void Take(const rendezvous::RunEnded& ended);
  void Hold(rendezvous::LogBatch batch);
  void ShowHeld();
  void Show(const std::string& host, const std::string& role, const rendezvous::LogLine& line);
  // Notes that these nodes' lines ended without the nodes' own end.
  void NoteCutOff(const std::vector<std::string>& hosts);
  void ShowLoss(const std::string& host, uint64_t count);
  void ForgetHosts();
  void Note(const std::string& text);
  std::string& Text(bool is_notice);
  void Decide(MonotonicTime now);

  const Options options_;
  std::map<rendezvous::AgentId, std::string> hosts_;   // of nodes that publish
  std::map<rendezvous::AgentId, uint64_t> next_line_;  // of nodes that have published
  std::set<rendezvous::AgentId> unanswered_;           // asked, and not caught up yet
  std::set<rendezvous::AgentId> complete_;             // have sent all there is
  bool has_started_ = false;
  bool is_live_ = false;  // the lines from before have been shown
  std::vector<HeldLine> held_;
  size_t held_bytes_ = 0;
  std::optional<rendezvous::RunEnded> ended_;
  bool done_ = false;
  MonotonicTime deadline_ = MonotonicTime::InfiniteFuture();
  std::vector<Chunk> chunks_;

  // The source of the line shown last.
  std::string prefix_host_;
  int prefix_rank_ = -1;
  agent::LinePrefix prefix_;
};

}  // namespace convene::launcher
