#include "agent/core/leftovers.h"

#include <algorithm>

namespace convene::agent {

LeftoverDeed LeftoverPlan::Next(const LeftoverFacts& facts, MonotonicTime now) {
  if (!facts.any_left) {
    deadline_ = MonotonicTime::InfiniteFuture();
    return LeftoverDeed::kDone;
  }
  if (stage_ == Stage::kNone && facts.all_well) {
    stage_ = Stage::kFinishing;
    finish_by_ = now + options_.grace;
  }
  if (stage_ == Stage::kFinishing && facts.all_well) {
    const LeftoverDeed deed = Finishing(facts, now);
    if (deed != LeftoverDeed::kAsk) return deed;
  }
  if (stage_ == Stage::kNone || stage_ == Stage::kFinishing) {
    stage_ = Stage::kAsked;
    deadline_ = now + kAskedTime;
    return LeftoverDeed::kAsk;
  }
  if (stage_ == Stage::kAsked) {
    if (now < deadline_) return LeftoverDeed::kWait;
    stage_ = Stage::kKilled;
    deadline_ = now + kKillTime;
    return LeftoverDeed::kKill;
  }
  return now < deadline_ ? LeftoverDeed::kKillMore : LeftoverDeed::kGiveUp;
}

LeftoverDeed LeftoverPlan::Finishing(const LeftoverFacts& facts, MonotonicTime now) {
  if (options_.left_alone && (!facts.output_open || now >= finish_by_)) {
    return LeftoverDeed::kRelease;
  }
  if (now >= finish_by_) return LeftoverDeed::kAsk;
  const MonotonicTime announce_at = finish_by_ - options_.grace + kAnnounceAfter;
  if (!announced_ && now >= announce_at) {
    announced_ = true;
    deadline_ = finish_by_;
    return LeftoverDeed::kAnnounce;
  }
  deadline_ = announced_ ? finish_by_ : std::min(finish_by_, announce_at);
  return LeftoverDeed::kWait;
}

}  // namespace convene::agent
