// Converts between rendezvous/quorum/job_record.h and proto/journal.proto.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/journal.pb.h"
#include "rendezvous/quorum/job_record.h"

namespace convene::rendezvous {

// The wall clock tells how old a record is when a later daemon reads it.
v1::JobRecord ToWire(const JobRecord& record, absl::Time wall_now);
// DataLoss, naming the job and the field, when no daemon can have written the record.
absl::StatusOr<JobRecord> FromWire(const v1::JobRecord& wire, absl::Time wall_now);

// HandOver::state, as the bytes of a message of proto/journal.proto.
std::string EncodeHandOver(const HandedOverJob& job, absl::Time wall_now);
// DataLoss as above, or when the bytes are no such message.
absl::StatusOr<HandedOverJob> DecodeHandOver(const std::string& state, absl::Time wall_now);

}  // namespace convene::rendezvous
