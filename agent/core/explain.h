// PURE. The last words to the person, one paragraph each.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/core/machine.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/strong_int.h"

namespace convene::agent {

// The command's result after the daemon's Close. `propagate`: a failed job ends with the first
// failed worker's own exit code, or 128 + the signal that killed it. `epoch`: the job's last one.
Result ResultOfClose(const rendezvous::Close& close, const std::string& job_id, bool propagate,
                     Epoch epoch);

// A result for another reason than `failure`, which this node saw before: the text tells both.
Result WithFailure(Result result, const std::optional<rendezvous::WorkerFailure>& failure);

// A result that is no success, with what stopped earlier epochs, by their numbers.
Result WithStops(Result result, const std::map<Epoch, std::string>& stops);

// A result that is no success, with the folder of this node's log files added to its text: the log
// line that first named the folder may be days old.
Result WithLogs(Result result, const std::string& folder);

// The daemon refused this node, or another process took the node's place.
Result ResultOfStream(const absl::Status& status, const std::string& endpoint);
// No stream to the daemon could be opened within `waited`. `loss`: how the stream ended that this
// node had before; nullopt: it had none.
Result ResultOfSilence(const absl::Status& last, const std::string& endpoint, absl::Duration waited,
                       const std::optional<std::string>& loss);

// `how`: the workers ended.
Result ResultOfSignal(int signal, absl::string_view how = "the workers were ended in order");
Result ResultOfSpawnFailure(const absl::Status& status);
Result ResultOfStoreFailure(const absl::Status& status);
// `status`: TimerFile::Create's.
Result ResultOfTimerFile(const absl::Status& status);
// `status`: HealthChecked's.
Result ResultOfHealthCheck(const std::string& host, const absl::Status& status);
// Workers that outlive SIGKILL.
Result ResultOfUndeadWorkers(const std::string& host, absl::Duration waited);

}  // namespace convene::agent
