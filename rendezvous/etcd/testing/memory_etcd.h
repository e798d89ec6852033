// An etcd in memory, as far as a daemon uses it: keys, revisions, leases as numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/etcd/etcd.pb.h"
#include "tools/base/check.h"

namespace convene::rendezvous::etcd {

class MemoryEtcd {
 public:
  etcdserverpb::TxnResponse Txn(const etcdserverpb::TxnRequest& request) {
    bool holds = true;
    for (const etcdserverpb::Compare& compare : request.compare()) holds = holds && Holds(compare);
    etcdserverpb::TxnResponse response;
    response.set_succeeded(holds);
    const auto& operations = holds ? request.success() : request.failure();
    // etcd's limits.
    CONVENE_CHECK(operations.size() <= 128);
    CONVENE_CHECK(request.ByteSizeLong() < 1.5 * 1024 * 1024);
    const bool writes = std::any_of(operations.begin(), operations.end(),
                                    [](const auto& one) { return !one.has_request_range(); });
    if (writes) ++revision_;
    std::map<std::string, int> put;
    for (const etcdserverpb::RequestOp& operation : operations) {
      etcdserverpb::ResponseOp* done = response.add_responses();
      if (operation.has_request_put()) {
        CONVENE_CHECK(++put[operation.request_put().key()] == 1);  // "duplicate key given in txn"
        Put(operation.request_put());
      } else if (operation.has_request_delete_range()) {
        const auto [begin, end] = Keys(operation.request_delete_range());
        for (auto key = begin; key != end; ++key) CONVENE_CHECK(put.count(key->first) == 0);
        kvs_.erase(begin, end);
      } else {
        const auto [begin, end] = Keys(operation.request_range());
        for (auto key = begin; key != end; ++key) {
          *done->mutable_response_range()->add_kvs() = key->second;
        }
      }
    }
    response.mutable_header()->set_revision(revision_);
    return response;
  }

  // The lease is over.
  void Expire(int64_t lease) {
    ++revision_;
    std::erase_if(kvs_, [&](const auto& one) { return one.second.lease() == lease; });
  }

  std::vector<etcdserverpb::KeyValue> All() const {
    std::vector<etcdserverpb::KeyValue> all;
    for (const auto& [key, kv] : kvs_) all.push_back(kv);
    return all;
  }

 private:
  using Keyed = std::map<std::string, etcdserverpb::KeyValue>;

  bool Holds(const etcdserverpb::Compare& compare) const {
    const auto found = kvs_.find(compare.key());
    CONVENE_CHECK(compare.result() == etcdserverpb::Compare::EQUAL);
    if (compare.target() == etcdserverpb::Compare::CREATE) {
      return compare.create_revision() ==
             (found == kvs_.end() ? 0 : found->second.create_revision());
    }
    CONVENE_CHECK(compare.target() == etcdserverpb::Compare::VALUE);
    return found != kvs_.end() && found->second.value() == compare.value();
  }

  void Put(const etcdserverpb::PutRequest& put) {
    etcdserverpb::KeyValue& kv = kvs_[put.key()];
    if (kv.create_revision() == 0) kv.set_create_revision(revision_);
    kv.set_key(put.key());
    kv.set_value(put.value());
    kv.set_lease(put.lease());
    kv.set_mod_revision(revision_);
  }

  template <typename Request>
  std::pair<Keyed::iterator, Keyed::iterator> Keys(const Request& request) {
    const auto begin = kvs_.lower_bound(request.key());
    if (!request.range_end().empty())
      return std::pair(begin, kvs_.lower_bound(request.range_end()));
    const bool is_there = begin != kvs_.end() && begin->first == request.key();
    return std::pair(begin, is_there ? std::next(begin) : begin);
  }

  int64_t revision_ = 1;
  Keyed kvs_;
};

}  // namespace convene::rendezvous::etcd
