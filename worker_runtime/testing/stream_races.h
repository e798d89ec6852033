// PURE. Finds races between the streams of a device in a record of its calls: all ops that touch
// the same memory must be ordered by events. For tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "worker_runtime/testing/page_watch.h"

namespace convene::worker::testing {

enum class StreamNumber { kCompute, kCommunication, kLayerCommunication, kHost };

// One call, in the order of the calls.
struct StreamCall {
  enum class Kind {
    kOp,          // in `stream`: touched `touches`
    kRecord,      // `event` becomes what `stream` holds
    kOrder,       // what comes in `stream` waits for `event`
    kWait,        // the host waits for `event`
    kSynchronize  // the host waits for everything
  };
  Kind kind = Kind::kOp;
  StreamNumber stream = StreamNumber::kCompute;
  std::string op;
  std::vector<PageTouch> touches;
  size_t collective_bytes = 0;  // of a collective's output
  int event = -1;
};

// "AdamW in compute and all_gather in communication", each pair once. Two ops of different streams
// race when they touch a page, one of them writes it, and the later one, by vector clocks, need not
// wait for the earlier one: on a GPU they could run in either order, or at once. `lost`: the number
// of a call that is left out; -1: none.
std::vector<std::string> FindRaces(const std::vector<StreamCall>& calls, int lost = -1);

// Of the ops called `ops`, those of `one` stream that may run at the same time as one of the
// `other`: "all_reduce in compute and all_reduce in layer communication", each pair once. `lost`:
// as above.
std::vector<std::string> FindAtOnce(const std::set<std::string>& ops, StreamNumber one,
                                    StreamNumber other, const std::vector<StreamCall>& calls,
                                    int lost = -1);

// Ops of compute that need not wait for all that `other` holds when they are queued: the two may
// run at once.
int64_t CountOpsBeside(StreamNumber other, const std::vector<StreamCall>& calls);

// How long compute() works from call number `first` on, and how long it waits meanwhile: for other
// streams, and for its own collectives, which count as waiting. A stream does one op after the
// other, each as soon as the events before it have passed; ops take what `duration` says, and
// queueing them takes no time.
struct StreamTime {
  double work = 0;
  double waiting = 0;
};
StreamTime TimeOfCompute(const std::vector<StreamCall>& calls, int first,
                         absl::FunctionRef<double(const StreamCall&)> duration);

// Calls, by number from `first` on, that order streams: kOrder; with the host's stream, which only
// the host's waits order with others, kWait for its events, and the last kWait before its ops; and
// kRecord of events that one of them waits for before they are recorded anew.
std::vector<int> OrderingCalls(const std::vector<StreamCall>& calls, int first);

}  // namespace convene::worker::testing
