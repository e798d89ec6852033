// Tells what happens to a job as a transcript: lines that begin with "> " are events, the lines
// after them what the job did.
//
//   > a hello [rank=1] [incarnation=9] [last_epoch=7] [workers=2] [min=2] [max=4] [restarts=0]
//   > a ready | a beats | a fails rank=0 code=3 | a succeeds | a leaves | a drops        [epoch=N:
//   other than its last one] > wait 5s
//
// A name is a stream; what stands before a quote is its host ("b" and "b'" are two streams of host
// b). Its store is on port 1000 + the stream's number. A fixture of tests: a line it does not
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

  // `transcript` with what really happened in place of its answers.
  std::string Tell(const std::string& transcript) {
    std::string told(1, '\n');
    for (absl::string_view line : absl::StrSplit(transcript, '\n')) {
      line = absl::StripAsciiWhitespace(line);
      if (line.substr(0, 2) != "> ") continue;
      absl::StrAppend(&told, line, "\n");
      Outbox outbox;
      Do(std::string(line.substr(2)), &outbox);
      for (const Outbox::Item& item : outbox.items) absl::StrAppend(&told, Show(item), "\n");
    }
    return told;
  }

  const Job& job() const { return *job_; }

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

  void Do(const std::string& line, Outbox* outbox) {
    INFO("line: " << line);
    std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    REQUIRE(words.size() >= 2);
    if (words[0] == "wait") {
      absl::Duration duration;
      REQUIRE(absl::ParseDuration(words[1], &duration));
      Wait(duration, outbox);
      return;
    }
    Options options;
    for (size_t i = 2; i < words.size(); ++i) {
      const std::pair<std::string, std::string> pair = absl::StrSplit(words[i], '=');
      options.insert(pair);
    }
    if (words[1] == "hello") {
      Join(words[0], options, outbox);
    } else {
      Say(words[0], words[1], options, outbox);
    }
  }

  // In steps, as the daemon's ticker would.
  void Wait(absl::Duration duration, Outbox* outbox) {
    const MonotonicTime end = now_ + duration;
    while (job_->wake_at() <= end && !job_->closed()) {
      now_ = std::max(now_, job_->wake_at());
      job_->Tick(now_, outbox);
    }
    now_ = end;
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
    stream.incarnation = Incarnation(Number(options, "incarnation", last_id_));
    const absl::Status joined = job_->Join(now_, stream.id, stream.incarnation, hello, outbox);
    if (!joined.ok()) outbox->End(stream.id, joined);
  }

  void Say(const std::string& name, const std::string& verb, const Options& options,
           Outbox* outbox) {
    REQUIRE(streams_.count(name) == 1);
    const Stream& stream = streams_[name];
    const Epoch epoch(Number(options, "epoch", stream.epoch.value()));
    if (verb == "drops") {
      job_->Disconnect(now_, stream.id, outbox);
      return;
    }
    AgentEvent event;
    if (verb == "ready") {
      event = Ready{name, 1000 + static_cast<int>(stream.id.value())};
    } else if (verb == "beats") {
      event = Heartbeat();
    } else if (verb == "fails") {
      WorkerFailure failure;
      failure.global_rank = Number(options, "rank", 0);
      failure.exit_code = Number(options, "code", 1);
      failure.why = absl::StrCat("exit code ", failure.exit_code);
      failure.costs_budget = failure.exit_code != 75;
      failure.is_final = failure.exit_code == 64;
      event = failure;
    } else if (verb == "succeeds") {
      event = WorkersSucceeded();
    } else {
      REQUIRE(verb == "leaves");
      event = Leave{"SIGTERM"};
    }
    job_->Receive(now_, stream.id, epoch, event, outbox);
  }

  std::string Show(const Outbox::Item& item) {
    const std::string& name = names_[item.to];
    if (const auto* status = std::get_if<absl::Status>(&item.what)) {
      return absl::StrCat(name, ": end ", status->ToString());
    }
    const DaemonEvent& event = std::get<DaemonEvent>(item.what);
    if (std::holds_alternative<Welcome>(event.body)) return absl::StrCat(name, ": welcome");
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
                        assignment.store_host, ", failures ", assignment.restart_count);
  }

  Hello hello_;
  MonotonicTime now_;
  std::unique_ptr<Job> job_;
  int last_id_ = 0;
  std::map<std::string, Stream> streams_;
  std::map<MemberId, std::string> names_;
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

// The transcript must be what really happens.
inline void Check(Story story, const std::string& transcript) {
  const std::string expected = Flat(transcript);
  CHECK(story.Tell(expected) == expected);
}

}  // namespace convene::rendezvous
