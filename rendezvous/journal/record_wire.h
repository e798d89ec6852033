// Converts between rendezvous/quorum/job_record.h and proto/journal.proto.
#pragma once

#include "absl/status/statusor.h"
#include "proto/journal.pb.h"
#include "rendezvous/quorum/job_record.h"

namespace convene::rendezvous {

v1::JobRecord ToWire(const JobRecord& record);
// DataLoss, naming the job and the field, when no daemon can have written the record.
absl::StatusOr<JobRecord> FromWire(const v1::JobRecord& wire);

}  // namespace convene::rendezvous
