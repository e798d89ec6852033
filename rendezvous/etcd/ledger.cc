#include "rendezvous/etcd/ledger.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous::etcd {
namespace {

constexpr int32_t kFormat = 1;

absl::Status Damaged(const std::string& key, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(
      "the key ", key, " in etcd ", what,
      ". Restore etcd from a snapshot, give --journal another prefix, or delete the keys of this "
      "one "
      "(etcdctl del --prefix); running jobs then restart once, at a checkpoint where they can"));
}

}  // namespace

absl::StatusOr<std::string> Ledger::Join(const std::string& job_id, const Parts& parts,
                                         std::map<std::string, std::string>* values) const {
  std::string record;
  for (int64_t i = 0; i < parts.count(); ++i) {
    const auto part = values->find(PartKey(parts.lease(), parts.first() + i));
    if (part == values->end()) {
      return Damaged(place_.jobs() + job_id, absl::StrCat("misses its part ", i));
    }
    record += part->second;
    values->erase(part);
  }
  return record;
}

absl::StatusOr<std::vector<v1::JobRecord>> Ledger::Load(
    const std::vector<etcdserverpb::KeyValue>& kvs) {
  std::vector<v1::JobRecord> records;
  std::map<std::string, std::string> values;  // of parts
  for (const etcdserverpb::KeyValue& kv : kvs) {
    if (absl::StartsWith(kv.key(), place_.parts())) values[kv.key()] = kv.value();
  }
  for (const etcdserverpb::KeyValue& kv : kvs) {
    if (!absl::StartsWith(kv.key(), place_.jobs())) continue;
    const std::string job_id = kv.key().substr(place_.jobs().size());
    v1::StoredJob head;
    if (!head.ParseFromString(kv.value()) || head.format() < 1) {
      return Damaged(kv.key(), "holds no job of a daemon");
    }
    if (head.format() > kFormat) {
      return absl::FailedPreconditionError(
          absl::StrCat("the key ", kv.key(), " in etcd has format ", head.format(),
                       ", and this convened knows formats up to ", kFormat,
                       ": a newer one has written it. Start that one"));
    }
    if (head.has_parts()) {
      CONVENE_ASSIGN_OR_RETURN(const std::string record, Join(job_id, head.parts(), &values));
      if (!head.mutable_record()->ParseFromString(record)) {
        return Damaged(kv.key(), "has parts that are no record");
      }
      parts_[job_id] = head.parts();
    }
    if (head.record().founder().job_id() != job_id) {
      return Damaged(kv.key(), "holds another job's record");
    }
    records.push_back(std::move(*head.mutable_record()));
  }
  for (auto& [key, value] : values) strays_.push_back(key);
  return records;
}

etcdserverpb::TxnRequest Ledger::Fenced() const {
  etcdserverpb::TxnRequest request;
  etcdserverpb::Compare* leads = request.add_compare();
  leads->set_target(etcdserverpb::Compare::CREATE);
  leads->set_key(place_.leader());
  leads->set_create_revision(term_);
  etcdserverpb::Compare* follows = request.add_compare();
  follows->set_target(etcdserverpb::Compare::VALUE);
  follows->set_key(place_.counter());
  follows->set_value(CountText(lease_, count_));
  return request;
}

Ledger::Step Ledger::Begin() const {
  Step step;
  step.request = Fenced();
  etcdserverpb::PutRequest* counter = step.request.add_success()->mutable_request_put();
  counter->set_key(place_.counter());
  counter->set_value(CountText(lease_, count_ + 1));
  step.request.add_failure()->mutable_request_range()->set_key(place_.leader());
  step.request.add_failure()->mutable_request_range()->set_key(place_.counter());
  return step;
}

void Ledger::DropParts(const std::string& job_id, Step* step) const {
  const auto parts = parts_.find(job_id);
  if (parts == parts_.end()) return;
  const Parts& old = parts->second;
  auto* const request = step->request.add_success()->mutable_request_delete_range();
  request->set_key(PartKey(old.lease(), old.first()));
  request->set_range_end(PartKey(old.lease(), old.first() + old.count()));
}

void Ledger::PutHead(const std::string& job_id, const v1::StoredJob& head, Step* step) const {
  etcdserverpb::PutRequest* put = step->request.add_success()->mutable_request_put();
  put->set_key(place_.jobs() + job_id);
  put->set_value(head.SerializeAsString());
  DropParts(job_id, step);
  step->applied[job_id] = head.has_parts() ? std::optional(head.parts()) : std::nullopt;
}

// The next part of the record at hand, or its head after the last one.
void Ledger::PutPart(Step* step) {
  const size_t begin = static_cast<size_t>(cut_->parts.count()) * request_bytes_;
  if (begin < cut_->record.size()) {
    if (cut_->parts.count() == 0) cut_->parts.set_first(count_ + 1);
    etcdserverpb::PutRequest* put = step->request.add_success()->mutable_request_put();
    put->set_key(PartKey(lease_, cut_->parts.first() + cut_->parts.count()));
    put->set_value(cut_->record.substr(begin, request_bytes_));
    cut_->parts.set_count(cut_->parts.count() + 1);
    return;
  }
  v1::StoredJob head;
  head.set_format(kFormat);
  *head.mutable_parts() = cut_->parts;
  PutHead(cut_->job_id, head, step);
  cut_.reset();
}

const etcdserverpb::TxnRequest& Ledger::Next() {
  CONVENE_CHECK(!is_settled());
  if (step_.has_value()) return step_->request;
  step_ = Begin();
  size_t bytes = 0;
  while (!cut_.has_value() && !wanted_.empty() &&
         step_->request.success_size() < kRequestOperations) {
    auto& [job_id, record] = *wanted_.begin();
    if (!record.has_value()) {
      step_->request.add_success()->mutable_request_delete_range()->set_key(place_.jobs() + job_id);
      DropParts(job_id, &*step_);
      step_->applied[job_id] = std::nullopt;
    } else if (const size_t size = record->ByteSizeLong(); bytes + size <= request_bytes_) {
      bytes += size;
      v1::StoredJob head;
      head.set_format(kFormat);
      *head.mutable_record() = *std::move(record);
      PutHead(job_id, head, &*step_);
    } else if (bytes > 0) {
      break;  // it comes with the next transaction
    } else {
      cut_ = Cut{job_id, record->SerializeAsString(), {}};
      cut_->parts.set_lease(lease_);
    }
    wanted_.erase(wanted_.begin());
  }
  if (cut_.has_value()) PutPart(&*step_);
  while (!strays_.empty() && step_->request.success_size() < kRequestOperations) {
    step_->request.add_success()->mutable_request_delete_range()->set_key(strays_.back());
    strays_.pop_back();
  }
  return step_->request;
}

absl::Status Ledger::Answered(const etcdserverpb::TxnResponse& response) {
  CONVENE_CHECK(step_.has_value());
  if (!response.succeeded()) {
    if (response.responses_size() != 2) return absl::InternalError("etcd answers without a reason");
    const auto& leader = response.responses(0).response_range();
    const auto& counter = response.responses(1).response_range();
    if (leader.kvs_size() != 1 || leader.kvs(0).create_revision() != term_) {
      return absl::FailedPreconditionError(absl::StrCat(
          leader.kvs_size() == 1 ? absl::StrCat("another daemon leads: ", leader.kvs(0).value())
                                 : "this daemon's lease in etcd is over"));
    }
    if (counter.kvs_size() != 1 || counter.kvs(0).value() != CountText(lease_, count_ + 1)) {
      return absl::InternalError(absl::StrCat("the key ", place_.counter(),
                                              " in etcd is not as this daemon left it: no "
                                              "other program may write below ",
                                              place_.prefix));
    }
  }
  ++count_;
  for (const auto& [job_id, parts] : step_->applied) {
    parts_.erase(job_id);
    if (parts.has_value()) parts_[job_id] = *parts;
  }
  step_.reset();
  return absl::OkStatus();
}

}  // namespace convene::rendezvous::etcd
