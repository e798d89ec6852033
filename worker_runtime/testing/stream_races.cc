#include "worker_runtime/testing/stream_races.h"

#include <algorithm>
#include <array>
#include <map>

#include "absl/strings/str_cat.h"

namespace convene::worker::testing {
namespace {

using Kind = StreamCall::Kind;

constexpr int kStreams = 4;
constexpr const char* kStreamNames[] = {"compute", "communication", "layer communication", "host"};

// How many ops of each stream are known to be done.
using VectorClock = std::array<int64_t, kStreams>;

void Join(VectorClock& clock, const VectorClock& known) {
  for (int i = 0; i < kStreams; ++i) clock[i] = std::max(clock[i], known[i]);
}

// The calls that each stream, and the host, know to be done.
class Clocks {
 public:
  void Take(const StreamCall& call) {
    VectorClock& clock = streams_[static_cast<int>(call.stream)];
    switch (call.kind) {
      case Kind::kOp:
        // The host queues the call after all that the host has waited for.
        Join(clock, host_);
        ++clock[static_cast<int>(call.stream)];
        break;
      case Kind::kRecord:
        events_[call.event] = clock;
        break;
      case Kind::kOrder:
        Join(clock, events_[call.event]);
        break;
      case Kind::kWait:
        Join(host_, events_[call.event]);
        break;
      case Kind::kSynchronize:
        for (int i = 0; i < kStreams; ++i) host_[i] = streams_[i][i];
        break;
    }
  }

  // Ops of stream `of` that `stream` knows of.
  int64_t Known(int stream, int of) const { return streams_[stream][of]; }

 private:
  std::array<VectorClock, kStreams> streams_ = {};
  VectorClock host_ = {};
  std::map<int, VectorClock> events_;
};

struct Access {
  int64_t time = 0;  // of the op in its stream, from 1; 0: none
  const std::string* op = nullptr;
};

// The last accesses of each stream; its earlier accesses are ordered before them.
struct Page {
  std::array<Access, kStreams> read, written;
};

}  // namespace

std::vector<std::string> FindRaces(const std::vector<StreamCall>& calls, int lost) {
  Clocks clocks;
  std::map<size_t, Page> pages;
  std::set<std::string> races;
  for (size_t i = 0; i < calls.size(); ++i) {
    const StreamCall& call = calls[i];
    if (static_cast<int>(i) == lost) continue;
    clocks.Take(call);
    if (call.kind != Kind::kOp) continue;
    const int stream = static_cast<int>(call.stream);
    const auto check = [&](const std::array<Access, kStreams>& earlier) {
      for (int other = 0; other < kStreams; ++other) {
        if (earlier[other].time <= clocks.Known(stream, other)) continue;
        races.insert(absl::StrCat(*earlier[other].op, " in ", kStreamNames[other], " and ", call.op,
                                  " in ", kStreamNames[stream]));
      }
    };
    for (const PageTouch& touch : call.touches) {
      Page& page = pages[touch.page];
      check(page.written);
      if (touch.is_written) check(page.read);
      (touch.is_written ? page.written : page.read)[stream] = {clocks.Known(stream, stream),
                                                               &call.op};
    }
  }
  return {races.begin(), races.end()};
}

std::vector<std::string> FindAtOnce(const std::set<std::string>& ops, StreamNumber one,
                                    StreamNumber other, const std::vector<StreamCall>& calls,
                                    int lost) {
  Clocks clocks;
  std::array<Access, kStreams> last;  // what is ordered behind it is ordered behind those before
  std::set<std::string> at_once;
  for (size_t i = 0; i < calls.size(); ++i) {
    const StreamCall& call = calls[i];
    if (static_cast<int>(i) == lost) continue;
    clocks.Take(call);
    if (call.kind != Kind::kOp || ops.count(call.op) == 0) continue;
    if (call.stream != one && call.stream != other) continue;
    const int stream = static_cast<int>(call.stream);
    const int beside = static_cast<int>(call.stream == one ? other : one);
    if (last[beside].time > clocks.Known(stream, beside)) {
      at_once.insert(absl::StrCat(*last[beside].op, " in ", kStreamNames[beside], " and ", call.op,
                                  " in ", kStreamNames[stream]));
    }
    last[stream] = {clocks.Known(stream, stream), &call.op};
  }
  return {at_once.begin(), at_once.end()};
}

int64_t CountOpsBeside(StreamNumber other, const std::vector<StreamCall>& calls) {
  constexpr int kCompute = static_cast<int>(StreamNumber::kCompute);
  const int beside = static_cast<int>(other);
  Clocks clocks;
  int64_t ops = 0;
  for (const StreamCall& call : calls) {
    clocks.Take(call);
    if (call.kind != Kind::kOp || call.stream != StreamNumber::kCompute) continue;
    ops += clocks.Known(kCompute, beside) < clocks.Known(beside, beside);
  }
  return ops;
}

StreamTime TimeOfCompute(const std::vector<StreamCall>& calls, int first,
                         absl::FunctionRef<double(const StreamCall&)> duration) {
  constexpr int kCompute = static_cast<int>(StreamNumber::kCompute);
  std::array<double, kStreams> end = {};  // of what each stream holds
  std::map<int, double> events;
  double host = 0;
  StreamTime time;
  for (size_t i = first; i < calls.size(); ++i) {
    const StreamCall& call = calls[i];
    const int stream = static_cast<int>(call.stream);
    switch (call.kind) {
      case Kind::kOp: {
        const double taken = duration(call);
        end[stream] = std::max(end[stream], host) + taken;
        if (stream == kCompute && call.collective_bytes == 0) time.work += taken;
        break;
      }
      case Kind::kRecord:
        events[call.event] = end[stream];
        break;
      case Kind::kOrder:
        end[stream] = std::max(end[stream], events[call.event]);
        break;
      case Kind::kWait:
        host = std::max(host, events[call.event]);
        break;
      case Kind::kSynchronize:
        host = *std::max_element(end.begin(), end.end());
        break;
    }
  }
  time.waiting = end[kCompute] - time.work;
  return time;
}

std::vector<int> OrderingCalls(const std::vector<StreamCall>& calls, int first) {
  std::set<int> ordering;
  std::map<int, int> recorded;  // by event: its last kRecord
  std::set<int> last_wait;      // the last kWait, and the kRecord before it
  for (int i = 0; i < static_cast<int>(calls.size()); ++i) {
    const StreamCall& call = calls[i];
    if (call.kind == Kind::kRecord) recorded[call.event] = i;
    if (call.kind == Kind::kOp && call.stream == StreamNumber::kHost) ordering.merge(last_wait);
    if (call.kind != Kind::kOrder && call.kind != Kind::kWait) continue;
    std::set<int> pair = {i};
    const auto found = recorded.find(call.event);
    if (found != recorded.end()) pair.insert(found->second);
    const bool is_of_host =
        found != recorded.end() && calls[found->second].stream == StreamNumber::kHost;
    if (call.kind == Kind::kOrder || is_of_host) {
      ordering.merge(pair);
    } else {
      last_wait = pair;
    }
  }
  return {ordering.lower_bound(first), ordering.end()};
}

}  // namespace convene::worker::testing
