"""Bugs planted in the daemons that share a journal in etcd."""

from planting import Mutation

LEDGER = 'rendezvous/etcd/ledger.cc'
LEDGED = '//rendezvous/etcd:ledger_test'
CANDIDATE = 'rendezvous/etcd/candidate.cc'
RUN = '//rendezvous/etcd:candidate_test'
SILENT = '//rendezvous/attend:daemon_tenure_test'

MUTATIONS = [
    Mutation('an etcd of version 2 is an address where nobody is', 'rendezvous/etcd/client.cc', '"Failed parsing HTTP/2"', '"no such words"',
             '//tests/e2e:etcd_test'),
    Mutation('a report whose number jumps leaves one more than fits', 'rendezvous/journal/incident_shelf.cc', 'others.size() >= Chronicle::kMostIncidents',
             'others.size() > Chronicle::kMostIncidents', '//rendezvous/etcd:etcd_incidents_test //rendezvous/journal:incident_files_test'),
    Mutation('a daemon whose lease is over writes on', LEDGER, '  leads->set_create_revision(term_);\n',
             '  request.mutable_compare()->RemoveLast();\n', LEDGED),
    Mutation('a late copy of a transaction is applied', LEDGER, '  follows->set_value(CountText(lease_, count_));\n',
             '  request.mutable_compare()->RemoveLast();\n', LEDGED),
    Mutation('a transaction whose answer was lost counts as another program\'s', LEDGER,
             'counter.kvs(0).value() != CountText(lease_, count_ + 1)', 'counter.kvs(0).value() != CountText(lease_, count_)', LEDGED),
    Mutation('a tenure ends with the lease, and no margin earlier', 'rendezvous/etcd/leadership.cc', ' - ttl / kMarginsPerTtl', '',
             '//rendezvous/etcd:leadership_test'),
    Mutation('a lease that an etcd without quorum kept is not given back', CANDIDATE, 'kvs(0).lease() == options_.earlier_lease', 'kvs(0).lease() < 0', RUN),
    Mutation('a renewal by a leader of etcd that is cut off counts', CANDIDATE,
             'proof.header().raft_term() != kept.header().raft_term()', 'proof.header().raft_term() == 0', RUN),
    Mutation('a leader that ends in order keeps its lease', CANDIDATE, 'leadership_.lease() == 0) return;', 'leadership_.lease() != 0) return;', RUN),
    Mutation('a daemon speaks after its tenure', 'rendezvous/attend/daemon.cc', '  if (!MaySpeak()) return;', '', SILENT),
    Mutation('a daemon tells old facts after its tenure', 'rendezvous/attend/daemon.cc', 'if (!MaySpeak()) {', 'if (false) {', SILENT),
    Mutation('a decision that is not stored leaves', 'rendezvous/attend/daemon_record.cc', 'if (fails_closed && !journal_->is_current()) {',
             'if (fails_closed && false) {', SILENT),
    Mutation('a report that waited for a decision is lost', 'rendezvous/attend/daemon_record.cc', '        if (shutdown_) return;\n        continue;',
             '        if (shutdown_) return;\n        reports_.clear();\n        continue;', SILENT),
    Mutation('reports that etcd does not forget at once stay for the next run of the name', 'rendezvous/attend/daemon_record.cc',
             'if (!status.ok()) return ComplainOfReports(status);', '', SILENT),
    Mutation('a leader\'s key without a lease is taken for an own one', CANDIDATE, 'options_.earlier_lease != 0 &&', 'true &&', RUN),
    Mutation('a report is written by a daemon that leads no more', LEDGER, '  leads->set_create_revision(term_);\n',
             '  leads->set_create_revision(term_);\n  if (cut_.has_value() || !step_.has_value()) request.mutable_compare()->DeleteSubrange(0, 1);\n', LEDGED),
]
