#include "tests/sim/sim_daemon.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/journal/record_wire.h"

namespace convene::sim {
namespace {

using rendezvous::MemberId;
using rendezvous::Outbox;

constexpr absl::Duration kMostDelay = absl::Milliseconds(200);
// The journal's delay: rendezvous/attend/daemon_record.cc.
constexpr absl::Duration kLazily = absl::Seconds(1);
constexpr absl::Duration kRetry = absl::Seconds(10);
constexpr absl::Duration kQuickDisk = absl::Milliseconds(10);
constexpr absl::Duration kSlowDisk = absl::Seconds(1);
// The lease of a leader among several daemons, how much earlier it ends its tenure, and how much of
// that its clock may be slow or fast: real margins and clocks are both smaller.
constexpr absl::Duration kLeaderLease = absl::Seconds(4);
constexpr absl::Duration kTenureMargin = absl::Seconds(1);
constexpr double kClockError = 0.2;
constexpr absl::Duration kBetweenCampaigns = absl::Seconds(1);

const char* NameOf(const rendezvous::AgentEvent& event) {
  const char* const names[] = {"Ready", "Heartbeat", "WorkerFailure", "WorkersSucceeded", "Leave"};
  return names[event.index()];
}

std::string TextOf(const rendezvous::DaemonEvent& event) {
  const char* const names[] = {"Welcome", "Assignment", "Stop",    "Close",
                               "Heard",   "LogsWanted", "HandOver"};
  return absl::StrCat(names[event.body.index()], " of epoch ", event.epoch.value());
}

}  // namespace

SimDaemon::SimDaemon(Simulation* simulation, Invariants* invariants, SimMemory* memory,
                     bool has_standbys)
    : simulation_(*simulation),
      invariants_(*invariants),
      memory_(*memory),
      has_standbys_(has_standbys),
      clock_rate_(has_standbys ? 1 - kClockError + 2 * kClockError * simulation_.Fraction() : 1) {
  if (has_standbys_) {
    leads_ = false;
    Campaign();
  } else if (has_journal()) {
    Start();
  }
}

void SimDaemon::Campaign() {
  simulation_.After(kBetweenCampaigns * (0.5 + 0.5 * simulation_.Fraction()),
                    [this] { Campaign(); });
  if (!is_well() || (leads_ && !MayLead()) || simulation_.now() < memory_.away_until) return;
  if (!leads_ && memory_.leader != nullptr && simulation_.now() < memory_.leads_until) return;
  if (!leads_) return Lead();
  memory_.leads_until = simulation_.now() + kLeaderLease;
  tenure_until_ = EndOfTenure();
}

void SimDaemon::Lead() {
  // The one before is paused, or its machine is dead: it does not know yet.
  SimDaemon* const before = std::exchange(memory_.leader, this);
  Expect(before == nullptr || !before->leads_ || simulation_.now() >= before->tenure_until_,
         "a daemon leads, and the one before may speak still");
  if (before != nullptr && before->leads_) before->LoseAll(/*ends_streams=*/false);
  leads_ = true;
  term_ = ++memory_.term;
  memory_.leads_until = simulation_.now() + kLeaderLease;
  tenure_until_ = EndOfTenure();
  simulation_.Note("daemon: leads in term ", term_);
  Start();
}

MonotonicTime SimDaemon::EndOfTenure() const {
  return simulation_.now() + (kLeaderLease - kTenureMargin) / clock_rate_;
}

void SimDaemon::LoseMemory(Simulation* simulation, SimMemory* memory, absl::Duration duration) {
  simulation->Note("the memory is away for ", absl::FormatDuration(duration));
  memory->away_until = std::max(memory->away_until, simulation->now() + duration);
  simulation->At(memory->away_until, [simulation, memory] {
    memory->leads_until = std::max(memory->leads_until, simulation->now() + kLeaderLease);
  });
}

bool SimDaemon::MayLead() {
  if (!has_standbys_ || !leads_ || simulation_.now() < tenure_until_) return true;
  simulation_.Note("daemon: its tenure is over");
  LoseAll(/*ends_streams=*/true);
  return false;
}

void SimDaemon::WhenWell(Happening happen) {
  if (!has_standbys_ || is_well()) return happen();
  simulation_.After(kQuickDisk, [this, life = life_, happen = std::move(happen)] {
    if (life == life_) WhenWell(happen);
  });
}

void SimDaemon::WhenMemoryAnswers(Happening happen) {
  if (!has_standbys_ || (is_well() && simulation_.now() >= memory_.away_until)) return happen();
  simulation_.After(kQuickDisk, [this, life = life_, happen = std::move(happen)] {
    if (life == life_) WhenMemoryAnswers(happen);
  });
}

void SimDaemon::Cut(bool is_cut) {
  simulation_.Note("daemon: ", is_cut ? "is cut off" : "is on the network again");
  is_cut_ = is_cut;
}

void SimDaemon::Up(const std::shared_ptr<Stream>& stream, Happening happen) {
  stream->up_free = std::max(stream->up_free, simulation_.now() + simulation_.Upto(kMostDelay));
  const auto in_order = [stream, number = ++stream->said_up, happen = std::move(happen)] {
    Expect(number == ++stream->heard_up || stream->daemon_left,
           "this simulation lost the order of a stream's words");
    happen();
  };
  simulation_.At(stream->up_free,
                 [this, stream, life = life_, in_order] { ArriveUp(stream, life, in_order); });
}

void SimDaemon::ArriveUp(const std::shared_ptr<Stream>& stream, int life, const Happening& happen) {
  if (stream->is_broken) return;
  if (stream->is_cut() || !stream->held.empty()) {
    stream->held.push_back([this, stream, life, happen] { ArriveUp(stream, life, happen); });
  } else if (simulation_.now() < paused_until_ || !unread_.empty()) {
    unread_.push_back([this, stream, life, happen] { Read(stream, life, happen); });
  } else {
    Read(stream, life, happen);
  }
}

void SimDaemon::Read(const std::shared_ptr<Stream>& stream, int life, const Happening& happen) {
  if (stream->is_broken) return;
  if (has_standbys_ && is_machine_down_) {  // The word is lost, and nobody answers.
    stream->daemon_left = true;
    return;
  }
  if (life == life_ && leads() && MayLead()) return happen();
  Break(stream, /*is_half_open=*/true);  // That daemon is no more: the kernel answers.
}

void SimDaemon::Down(const std::shared_ptr<Stream>& stream, Happening happen) {
  stream->down_free = std::max(stream->down_free, simulation_.now() + simulation_.Upto(kMostDelay));
  simulation_.At(stream->down_free, [stream, happen = std::move(happen)] {
    if (stream->is_broken || stream->agent_left) return;
    if (stream->is_cut() || !stream->held.empty()) {
      stream->held.push_back([stream, happen] {
        if (!stream->is_broken && !stream->agent_left) happen();
      });
    } else {
      happen();
    }
  });
}

// Held words go first, in their order, before any later word.
void SimDaemon::Resume(const std::shared_ptr<Stream>& stream) {
  if (stream->is_cut()) return;  // At its other end.
  const auto go_on = [stream] {
    std::deque<Happening> held;
    held.swap(stream->held);
    for (const Happening& happen : held) happen();
  };
  // The Hello of a try that was given up has a connection of its own, and may be the last to
  // arrive.
  stream->agent_left ? simulation_.After(simulation_.Upto(absl::Seconds(1)), go_on) : go_on();
}

void SimDaemon::SayHello(const std::shared_ptr<Stream>& stream, const rendezvous::Hello& hello) {
  Up(stream, [this, stream, hello] {
    stream->id = MemberId(++memory_.last_stream);
    streams_[stream->id] = stream;
    simulation_.Note("daemon: stream ", stream->id.value(), " Hello of ", hello.host, "/",
                     hello.node_rank, " incarnation ", stream->incarnation.value(), " for ",
                     hello.job_id, ", last epoch ", hello.last_epoch.value());
    invariants_.OnJoin(stream->id, stream->incarnation, hello);
    Outbox outbox;
    absl::Status joined = table_->Join(Now(), stream->id, stream->incarnation, hello, &outbox);
    if (!joined.ok()) outbox.End(stream->id, std::move(joined));
    Settle(std::move(outbox));
  });
}

void SimDaemon::Say(const std::shared_ptr<Stream>& stream, Epoch epoch,
                    rendezvous::AgentEvent event) {
  Up(stream, [this, stream, epoch, event = std::move(event)] {
    if (stream->daemon_left) return;
    simulation_.Note("daemon: stream ", stream->id.value(), " says ", NameOf(event), " in epoch ",
                     epoch.value());
    Outbox outbox;
    table_->Receive(Now(), stream->id, stream->incarnation, epoch, event, &outbox);
    Settle(std::move(outbox));
  });
}

// The daemon need not attend to it any more.
void SimDaemon::Forget(const std::shared_ptr<Stream>& stream) {
  if (stream->daemon_left || stream->id == MemberId()) return;
  stream->daemon_left = true;
  streams_.erase(stream->id);
  held_.erase(stream->id);
  simulation_.Note("daemon: stream ", stream->id.value(), " is gone");
  Outbox outbox;
  table_->Disconnect(Now(), stream->id, &outbox);
  invariants_.OnStreamOver(stream->id);
  Settle(std::move(outbox));
}

void SimDaemon::HangUp(const std::shared_ptr<Stream>& stream) {
  stream->agent_left = true;
  Up(stream, [this, stream] { Forget(stream); });
}

void SimDaemon::Break(const std::shared_ptr<Stream>& stream, bool is_half_open) {
  if (stream->is_broken) return;
  stream->is_broken = true;
  stream->held.clear();
  const absl::Duration seen = simulation_.Upto(kMostDelay);
  if (!stream->agent_left) {
    simulation_.After(seen, [stream] {
      if (!stream->agent_left) stream->on_end(absl::UnavailableError("connection reset"));
    });
  }
  if (is_half_open) return;
  // The agent's end sees it first: agent/core/machine.h assumes so where the daemon dies next.
  simulation_.After(seen + simulation_.Upto(kMostDelay), [this, stream, life = life_] {
    WhenWell([this, stream, life] {
      if (life == life_ && leads() && MayLead()) Forget(stream);
    });
  });
}

std::set<Incarnation> SimDaemon::Faithful() const {
  std::set<Incarnation> faithful;
  for (const auto& [id, stream] : streams_) {
    if (!stream->is_broken && !stream->agent_left && stream->is_faithful()) {
      faithful.insert(stream->incarnation);
    }
  }
  return faithful;
}

void SimDaemon::Kill(bool whole_machine) {
  simulation_.Note("daemon: killed", whole_machine ? " with its machine" : "");
  is_up_ = false;
  is_machine_down_ = whole_machine;
  paused_until_ = simulation_.now();
  if (leads_) LoseAll(/*ends_streams=*/!has_standbys_ || !whole_machine);
  ReadOn();  // By the kernel alone.
}

void SimDaemon::LoseAll(bool ends_streams) {
  leads_ = !has_standbys_;
  ++life_;
  invariants_.OnDaemonKilled(*table_, Faithful());
  if (memory_.journal != nullptr) memory_.journal->Crash();
  table_ = std::make_unique<rendezvous::JobTable>();
  tick_planned_ = write_planned_ = MonotonicTime::InfiniteFuture();
  written_change_ = 0;
  held_.clear();
  std::map<MemberId, std::shared_ptr<Stream>> streams;
  streams.swap(streams_);
  for (const auto& entry : streams) {
    const std::shared_ptr<Stream>& stream = entry.second;
    stream->daemon_left = true;
    if (!ends_streams) continue;
    // The agent hears of it when it is on the network again.
    stream->held.clear();
    Down(stream, [stream] { stream->on_end(absl::UnavailableError("the daemon is gone")); });
  }
}

void SimDaemon::HandOver() {
  const auto tell = [this](const std::vector<MemberId>& ids, Epoch epoch,
                           const std::string& state) {
    for (const MemberId id : ids) {
      if (simulation_.Chance(0.9)) {
        Leave({id, rendezvous::DaemonEvent{epoch, rendezvous::HandOver{state}}});
      }
    }
  };
  for (const rendezvous::JobTable::Succession& succession : table_->HandOver(Now())) {
    const Epoch epoch = succession.job.record.epoch;
    tell(succession.successors, epoch, rendezvous::EncodeHandOver(succession.job, WorldTime()));
    tell(succession.others, epoch, "");
  }
}

void SimDaemon::Start(const std::string& handed_over, absl::Duration opens_after) {
  simulation_.Note("daemon: started", handed_over.empty() ? "" : " with what was handed over");
  is_up_ = true;
  is_machine_down_ = false;
  if (!leads_) return;
  is_open_ = opens_after == absl::ZeroDuration();
  reachable_since_ = simulation_.now() + opens_after;
  clock_ahead_ = simulation_.Upto(absl::Hours(1));
  const bool is_trusted = memory_.journal != nullptr && memory_.journal->is_current();
  if (memory_.journal != nullptr) {
    table_->StartRecording();
    table_->set_survives_restart(true);
    for (const rendezvous::JobRecord& job : memory_.journal->Open()) table_->Restore(Now(), job);
    wrote_at_ = simulation_.now();
  }
  if (!handed_over.empty()) {
    const auto job = rendezvous::DecodeHandOver(handed_over, WorldTime());
    Expect(job.ok(), "what was handed over makes no sense");
    table_->Restore(Now(), job->record);
  }
  if (is_open_) table_->RenewAway(Now());
  invariants_.OnDaemonStarted(simulation_.now(), Now(), *table_, is_trusted);
  Settle(Outbox());
  if (is_open_) return;
  simulation_.After(opens_after, [this, life = life_] {
    if (life == life_ && is_up_) BeginServing();
  });
}

void SimDaemon::BeginServing() {
  if (simulation_.now() < paused_until_) {
    return simulation_.At(paused_until_, [this, life = life_] {
      if (life == life_ && is_up_) BeginServing();
    });
  }
  simulation_.Note("daemon: takes connections");
  is_open_ = true;
  reachable_since_ = simulation_.now();
  table_->RenewAway(Now());
  Settle(Outbox());
}

void SimDaemon::FillDisk(bool is_full) {
  simulation_.Note("daemon: its disk is ", is_full ? "full" : "free again");
  memory_.journal->set_is_full(is_full);
}

void SimDaemon::Pause(absl::Duration duration) {
  simulation_.Note("daemon: paused for ", absl::FormatDuration(duration));
  invariants_.OnDaemonPaused();
  // A pause within a longer one changes nothing.
  paused_until_ = reachable_since_ = std::max(paused_until_, simulation_.now() + duration);
  // The daemon may see that time has passed before it reads what has come, or after.
  const absl::Duration late = simulation_.Upto(absl::Milliseconds(simulation_.Chance(0.5) ? 1 : 0));
  simulation_.At(paused_until_ + late, [this] { ReadOn(); });
}

void SimDaemon::ReadOn() {
  if (simulation_.now() < paused_until_) return;  // Another pause has begun.
  std::deque<Happening> unread;
  unread.swap(unread_);
  for (const Happening& happen : unread) happen();
}

void SimDaemon::PlanTick() {
  const MonotonicTime due = std::max(table_->wake_at() - clock_ahead_, paused_until_);
  if (due >= tick_planned_ || due == MonotonicTime::InfiniteFuture()) return;
  tick_planned_ = due;
  simulation_.At(due, [this, life = life_, due] {
    if (life != life_ || !is_up_ || due != tick_planned_) return;
    tick_planned_ = MonotonicTime::InfiniteFuture();
    if (simulation_.now() < paused_until_) return PlanTick();
    if (MayLead()) Settle(Outbox());
  });
}

// Sends the daemon's messages, and does the work that is due.
void SimDaemon::Settle(Outbox outbox) {
  for (int ticks = 0; table_->wake_at() <= Now(); ++ticks) {
    Expect(ticks < 4, "the daemon ticks without end");
    table_->Tick(Now(), &outbox);
  }
  for (const Outbox::LogLine& line : outbox.log) simulation_.Note("daemon: ", line.text);
  for (Outbox::Item& item : outbox.items) {
    invariants_.OnItem(item);
    if (item.after_change <= written_change_) {
      Leave(item);
    } else if (streams_.count(item.to) > 0) {
      held_[item.to].push_back(std::move(item));
    }
  }
  invariants_.OnDaemonIdle(simulation_.now(), Now(), *table_);
  PlanTick();
  PlanWrite();
}

void SimDaemon::Leave(const Outbox::Item& item) {
  const auto found = streams_.find(item.to);
  if (found == streams_.end()) return;
  if (has_standbys_ && simulation_.now() >= tenure_until_) return;  // It says nothing any more.
  const std::shared_ptr<Stream> stream = found->second;
  if (const auto* status = std::get_if<absl::Status>(&item.what)) {
    simulation_.Note("daemon: ends stream ", item.to.value(), ": ", status->ToString());
    stream->daemon_left = true;
    streams_.erase(found);
    Down(stream, [stream, status = *status] { stream->on_end(status); });
  } else {
    rendezvous::DaemonEvent event = std::get<rendezvous::DaemonEvent>(item.what);
    if (auto* welcome = std::get_if<rendezvous::Welcome>(&event.body)) welcome->term = term_;
    simulation_.Note("daemon: to stream ", item.to.value(), " ", TextOf(event));
    invariants_.OnTold(simulation_.now(), item.to, event);
    Down(stream, [stream, event] { stream->on_event(event); });
  }
}

void SimDaemon::PlanWrite() {
  if (memory_.journal == nullptr || memory_.journal->is_writing()) return;
  MonotonicTime due = MonotonicTime::InfiniteFuture();
  if (table_->last_change() != written_change_) {
    due = simulation_.now();
  } else if (!memory_.journal->is_current() || table_->has_changes()) {
    due = wrote_at_ + (memory_.journal->is_current() ? kLazily : kRetry);
  }
  if (due >= write_planned_) return;
  write_planned_ = due;
  simulation_.At(due, [this, life = life_, due] {
    if (life == life_ && due == write_planned_) WhenMemoryAnswers([this] { BeginWrite(); });
  });
}

void SimDaemon::BeginWrite() {
  write_planned_ = MonotonicTime::InfiniteFuture();
  invariants_.OnWriteBegun();
  memory_.journal->BeginWrite(table_->TakeChanges(Now()));
  const absl::Duration takes = simulation_.Upto(simulation_.Chance(0.05) ? kSlowDisk : kQuickDisk);
  simulation_.After(takes, [this, life = life_, change = table_->last_change()] {
    if (life == life_) WhenMemoryAnswers([this, change] { EndWrite(change); });
  });
}

void SimDaemon::EndWrite(int64_t change) {
  if (!MayLead()) return;
  memory_.journal->EndWrite();
  if (memory_.journal->is_current()) invariants_.OnWritten();
  wrote_at_ = simulation_.now();
  written_change_ = change;
  table_->set_survives_restart(memory_.journal->is_current());
  auto held = std::move(held_);
  held_.clear();
  for (auto& [id, items] : held) {
    while (!items.empty() && items.front().after_change <= written_change_) {
      Leave(items.front());
      items.pop_front();
    }
    if (!items.empty() && streams_.count(id) > 0) held_[id] = std::move(items);
  }
  PlanWrite();
}

}  // namespace convene::sim
