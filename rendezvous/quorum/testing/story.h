// Tells what happens to a job as a transcript: lines that begin with "> " are events, the lines
// after them what the job did.
//
//   > a hello [rank=1] [incarnation=9] [last_epoch=7] [workers=2] [min=2] [max=4] [restarts=0]
//             [label=x] [role=x] [said=12] [with_workers] [stop_limit=30]
//   > a ready | a beats [step=5] | a fails rank=0 code=3 | a succeeds | a leaves [with_workers]
//   > a unfit | a drops
//     [epoch=N: other than its last one]
//   > wait 5s | rest 5s | hush 5s | sleep 5s
//   > show a
//
// In a rest every node that is there beats each second; in a wait none of those that the story
// names does, but the daemon hears others; in a hush it hears nobody; in a sleep it does nothing.
// "show" prints a node as `convene status` shows it.
//   > a hello ... holds [running=3]   > daemon restarts: from what is recorded then
//   > daemon of before roles restarts: from what an older version has recorded
//   > a hello ... hosts    > daemon ends soon [host=9]: told to, with the process of incarnation 9
//
// A name is a stream; the part before a quote is its host ("b" and "b'" are two streams of host b).
// Its store is on port 1000 + the stream's number. A fixture of tests: a line it does not
// understand fails the test.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "rendezvous/quorum/job.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

class Story {
 public:
  explicit Story(Hello hello) : hello_(std::move(hello)) {
    hello_.job_id = "story";
    hello_.lease = absl::Seconds(5);
    job_ = std::make_unique<Job>(now_, hello_, Epoch());
  }

  // Returns `transcript` with the job's real answers in place of the given ones.
  std::string Tell(const std::string& transcript) {
    std::string told(1, '\n');
    for (absl::string_view line : absl::StrSplit(transcript, '\n')) {
      line = absl::StripAsciiWhitespace(line);
      if (line.substr(0, 2) != "> ") continue;
      absl::StrAppend(&told, line, "\n");
      Outbox outbox;
      Do(std::string(line.substr(2)), &outbox);
      for (const Outbox::Item& item : outbox.items) absl::StrAppend(&told, Show(item), "\n");
      absl::StrAppend(&told, shown_);
      shown_.clear();
    }
    return told;
  }

  const Job& job() const { return *job_; }
  MonotonicTime now() const { return now_; }

 private:
  struct Stream {
    MemberId id;
    Incarnation incarnation;
    Epoch epoch;
  };
  using Options = std::map<std::string, std::string>;

  static int Number(const Options& options, const std::string& key, int otherwise) {
    const auto found = options.find(key);
    if (found == options.end()) return otherwise;
    int value = 0;
    REQUIRE(absl::SimpleAtoi(found->second, &value));
    return value;
  }

  static Options OptionsIn(const std::vector<std::string>& words) {
    Options options;
    for (size_t i = 2; i < words.size(); ++i) {
      const std::pair<std::string, std::string> pair = absl::StrSplit(words[i], '=');
      options.insert(pair);
    }
    return options;
  }

  void Do(const std::string& line, Outbox* outbox) {
    INFO("line: " << line);
    std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    REQUIRE(words.size() >= 2);
    if (words[0] == "daemon" && words[1] == "ends") {
      return job_->EndSoon(Incarnation(Number(OptionsIn(words), "host", 0)));
    }
    if (words[0] == "daemon") {
      JobRecord record = job_->Record(now_);
      if (words[1] == "of") {
        for (MemberRecord& member : record.members) member.role = MemberRecord().role;
      }
      job_ = std::make_unique<Job>(now_, record, MemberId(-1000));
      job_->set_survives_restart(true);
      return job_->Tick(now_, outbox);
    }
    absl::Duration duration;
    if (absl::ParseDuration(words[1], &duration)) {
      if (words[0] == "wait") return Wait(duration, outbox);
      if (words[0] == "hush") return Hush(duration, outbox);
      if (words[0] == "rest") return Rest(duration, outbox);
      REQUIRE(words[0] == "sleep");
      now_ = now_ + duration;
      return job_->Tick(now_, outbox);
    }
    if (words[0] == "show") {
      shown_ = ShowNode(words[1]);
      return;
    }
    const Options options = OptionsIn(words);
    if (words[1] == "hello") {
      Join(words[0], options, outbox);
    } else {
      Say(words[0], words[1], options, outbox);
    }
  }

  void Wait(absl::Duration duration, Outbox* outbox) {
    const MonotonicTime end = now_ + duration;
    while (now_ < end) {
      job_->Hear(now_, outbox);
      Hush(std::min(absl::Duration(absl::Seconds(1)), end - now_), outbox);
    }
  }

  // Waits in steps, as the daemon's ticker does.
  void Hush(absl::Duration duration, Outbox* outbox) {
    const MonotonicTime end = now_ + duration;
    while (job_->wake_at() <= end && !job_->closed()) {
      now_ = std::max(now_, job_->wake_at());
      job_->Tick(now_, outbox);
    }
    now_ = end;
  }

  void Rest(absl::Duration duration, Outbox* outbox) {
    const MonotonicTime end = now_ + duration;
    while (now_ < end) {
      Wait(std::min(absl::Duration(absl::Seconds(1)), end - now_), outbox);
      job_->Hear(now_, outbox);
      std::vector<MemberId> here;
      for (const auto& [id, node] : job_->state().nodes()) here.push_back(id);
      for (const MemberId id : here) {
        job_->Receive(now_, id, streams_[names_[id]].epoch, Heartbeat(), outbox);
      }
    }
  }

  std::string ShowNode(const std::string& host) const {
    std::string shown;
    for (const NodeView& node : job_->View(now_).nodes) {
      if (node.host != host) continue;
      absl::StrAppend(&shown, node.host, ": ", node.state, node.why.empty() ? "" : ": ", node.why,
                      "\n");
    }
    return shown;
  }

  void Join(const std::string& name, const Options& options, Outbox* outbox) {
    Stream& stream = streams_[name];
    stream.id = MemberId(++last_id_);
    names_[stream.id] = name;
    Hello hello = hello_;
    hello.host = name.substr(0, name.find('\''));
    hello.node_rank = Number(options, "rank", -1);
    hello.local_world_size = Number(options, "workers", 1);
    hello.nodes_min = Number(options, "min", hello.nodes_min);
    hello.nodes_max = Number(options, "max", hello.nodes_max);
    hello.max_restarts = Number(options, "restarts", hello.max_restarts);
    hello.last_epoch = Epoch(Number(options, "last_epoch", 0));
    if (options.count("label") > 0) hello.topology = options.at("label");
    if (options.count("role") > 0) hello.role = options.at("role");
    hello.said_at = MonotonicTime::FromEpoch(absl::Seconds(Number(options, "said", 0)));
    hello.holds_place = options.count("holds") > 0;
    hello.running_epoch = Epoch(Number(options, "running", 0));
    hello.has_workers = options.count("with_workers") > 0;
    hello.may_host = options.count("hosts") > 0;
    hello.stop_limit = absl::Seconds(Number(options, "stop_limit", 0));
    stream.incarnation = Incarnation(Number(options, "incarnation", last_id_));
    job_->Hear(now_, outbox);
    const absl::Status joined = job_->Join(now_, stream.id, stream.incarnation, hello, outbox);
    if (!joined.ok()) outbox->End(stream.id, joined);
  }

  static AgentEvent EventOf(const std::string& name, MemberId id, const std::string& verb,
                            const Options& options) {
    if (verb == "ready") return Ready{name, 1000 + static_cast<int>(id.value())};
    if (verb == "succeeds") return WorkersSucceeded();
    if (verb == "leaves") return Leave{"SIGTERM", false, options.count("with_workers") > 0};
    if (verb == "unfit") return Leave{"health check: exit code 1", true};
    if (verb == "beats") {
      Heartbeat heartbeat;
      if (options.count("step") > 0) heartbeat.progress = {Number(options, "step", 0), 0, "step"};
      return heartbeat;
    }
    REQUIRE(verb == "fails");
    WorkerFailure failure;
    failure.global_rank = Number(options, "rank", 0);
    failure.exit_code = Number(options, "code", 1);
    failure.why = absl::StrCat("exit code ", failure.exit_code);
    failure.costs_budget = failure.exit_code != 75;
    failure.is_final = failure.exit_code == 64;
    return failure;
  }

  void Say(const std::string& name, const std::string& verb, const Options& options,
           Outbox* outbox) {
    REQUIRE(streams_.count(name) == 1);
    const Stream& stream = streams_[name];
    const Epoch epoch(Number(options, "epoch", stream.epoch.value()));
    job_->Hear(now_, outbox);
    if (verb == "drops") {
      job_->Disconnect(now_, stream.id, outbox);
      return;
    }
    job_->Receive(now_, stream.id, epoch, EventOf(name, stream.id, verb, options), outbox);
  }

  std::string Show(const Outbox::Item& item) {
    const std::string& name = names_[item.to];
    if (const auto* status = std::get_if<absl::Status>(&item.what)) {
      return absl::StrCat(name, ": end ", status->ToString());
    }
    const DaemonEvent& event = std::get<DaemonEvent>(item.what);
    if (const auto* welcome = std::get_if<Welcome>(&event.body)) {
      if (!welcome->resumed) return absl::StrCat(name, ": welcome");
      streams_[name].epoch = event.epoch;
      return absl::StrCat(name, ": welcome back in epoch ", event.epoch.value());
    }
    if (const auto* stop = std::get_if<Stop>(&event.body)) {
      return absl::StrCat(name, ": stop ", stop->kind == StopKind::kAbort ? "abort" : "checkpoint",
                          ": ", stop->why);
    }
    if (const auto* close = std::get_if<Close>(&event.body)) {
      const char* const outcomes[] = {"succeeded", "failed", "timed out", "left"};
      return absl::StrCat(name, ": close ", outcomes[static_cast<int>(close->outcome)], ": ",
                          close->why,
                          close->first_failure.has_value()
                              ? absl::StrCat(" [rank ", close->first_failure->global_rank, "]")
                              : "");
    }
    const Assignment& assignment = std::get<Assignment>(event.body);
    streams_[name].epoch = event.epoch;
    return absl::StrCat(name, ": epoch ", event.epoch.value(), " node ", assignment.group_rank,
                        " of ", assignment.group_world_size, ", ranks from ",
                        assignment.first_global_rank, " of ", assignment.world_size, ", store ",
                        assignment.store_host, ", failures ", assignment.restart_count,
                        assignment.role_world_size == assignment.world_size
                            ? ""
                            : absl::StrCat(", role ranks from ", assignment.first_role_rank, " of ",
                                           assignment.role_world_size));
  }

  Hello hello_;
  MonotonicTime now_;
  std::unique_ptr<Job> job_;
  int last_id_ = 0;
  std::map<std::string, Stream> streams_;
  std::map<MemberId, std::string> names_;
  std::string shown_;
};

// A job of least to most nodes, with short waits.
inline Hello Nodes(int least, int most, int max_restarts = 0) {
  Hello hello;
  hello.nodes_min = least;
  hello.nodes_max = most;
  hello.max_restarts = max_restarts;
  hello.last_call = absl::Seconds(3);
  hello.join_timeout = absl::Seconds(4);
  return hello;
}

// Without the indentation that the test's own code gives it; a line that ends with '\' goes on in
// the next one.
inline std::string Flat(const std::string& text) {
  std::string flat(1, '\n');
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    const bool goes_on = absl::ConsumeSuffix(&line, "\\");
    absl::StrAppend(&flat, line, goes_on ? "" : "\n");
  }
  return flat;
}

// Checks that the job's real answers are those of the transcript.
inline void Check(Story story, const std::string& transcript) {
  const std::string expected = Flat(transcript);
  CHECK(story.Tell(expected) == expected);
}

}  // namespace convene::rendezvous
