// Converts between the values of rendezvous/quorum and the messages of proto/rendezvous.proto. Both
// ends of the wire use it.
#pragma once

#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/quorum/job_view.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

namespace pb = ::convene::rendezvous::v1;

struct AgentEnvelope {
  Incarnation incarnation;
  Epoch epoch;
  std::variant<Hello, AgentEvent> body;
};

pb::AgentMessage ToWire(const AgentEnvelope& envelope);
// Unimplemented for a message of a kind that this version does not know: the reader ignores it.
// InvalidArgument for a message without a body, or with a port that is none. Log lines beyond the
// contract are cut off.
absl::StatusOr<AgentEnvelope> FromWire(const pb::AgentMessage& message);

pb::DaemonMessage ToWire(Incarnation daemon, const DaemonEvent& event);
// Errors as above.
absl::StatusOr<DaemonEvent> FromWire(const pb::DaemonMessage& message);

// The parts of these messages that the journal keeps, too. A text beyond the contract is cut off.
void ToWire(const Hello& hello, pb::Hello* wire);
Hello FromWire(const pb::Hello& wire);
void ToWire(const WorkerFailure& failure, pb::WorkerFailure* wire);
WorkerFailure FromWire(const pb::WorkerFailure& wire);
void ToWire(const Assignment& assignment, pb::Assignment* wire);
Assignment FromWire(const pb::Assignment& wire);
void ToWire(const Stop& stop, pb::Stop* wire);
Stop FromWire(const pb::Stop& wire);
pb::Close::Outcome ToWire(Outcome outcome);
// An outcome of a newer daemon is no success.
Outcome FromWire(pb::Close::Outcome outcome);

void ToWire(const JobView& view, pb::JobStatus* status);
JobView FromWire(const pb::JobStatus& status);

}  // namespace convene::rendezvous
