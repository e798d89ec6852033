"""Bugs planted in the hand-over of a run to the next host of the rendezvous."""

from planting import Mutation

TABLE = 'rendezvous/attend/job_table.cc'
RECORD = 'rendezvous/attend/daemon_record.cc'
LINK = 'agent/core/machine_link.cc'
STATE = 'rendezvous/quorum/job_state.h'
TABLED = '//rendezvous/attend:job_table_test'
REMEMBERED = '//rendezvous/attend:daemon_memory_test'
RESUMED = '//rendezvous/quorum:job_resume_test'
PLACED = '//agent/core:machine_place_test'
SEEN = '//tests/e2e:hosting_test'

MUTATIONS = [
    Mutation('a node that ends takes a run over', STATE, ' && !node.is_leaving &&', ' &&', TABLED),
    Mutation('a node without a seat is told the secrets of the others', STATE, 'node.may_host && node.is_member()', 'node.may_host', TABLED),
    Mutation('an epoch is formed that no daemon goes on with', 'rendezvous/quorum/decide.cc', ' && state.loses_daemon()) {', ' && false) {', RESUMED),
    Mutation('a daemon that is handed over forms no epoch either', 'rendezvous/quorum/job_state.cc',
             'return ends_soon_ && absl::c_none_of(nodes_, [&]', 'return ends_soon_ || absl::c_none_of(nodes_, [&]', RESUMED),
    Mutation('a host counts on itself to go on', STATE, ' &&\n           node.incarnation != ending_host_;', ';', RESUMED),
    Mutation('a job that comes to a daemon that ends begins', TABLE, 'if (ends_with_.has_value()) entry.job.EndSoon(*ends_with_);', '', TABLED),
    Mutation('a node that waits for a lost rendezvous is silent', LINK,
             '  if (is_first && !s_.has_workers) s_.tell_wait_at = now_ + kQuietWait;\n', '', PLACED),
    Mutation('a run that nobody takes over is handed over', TABLE, ' || found->second.successors.empty()) continue;', ') continue;', TABLED),
    Mutation('only the next host hears that places are kept', RECORD, 'Queue({id, DaemonEvent{epoch, HandOver{}}}, aftermath);', '(void)id;', REMEMBERED),
    Mutation('the reports of a run end with its host', RECORD, '    table_.RestoreIncident(record.founder.job_id, incident);\n', '', REMEMBERED),
    Mutation('the times of reports move with each host', 'rendezvous/quorum/chronicle.cc', '.at = view.time,', '.at = view.time + wall_offset_,', REMEMBERED),
    Mutation('a node that succeeded asks for no place', LINK, 's_.holds_place || s_.phase == Phase::kSucceeded;', 's_.holds_place;',
             '//agent/core:machine_success_test //tests/sim:rendezvous_sim_test'),
    Mutation('a node that succeeded loses its place with its connection', 'rendezvous/quorum/job.cc', 'if (state_.KeepsPlace(id)) {', 'if (false) {',
             '//rendezvous/quorum:job_resume_test //tests/sim:rendezvous_sim_test'),
    Mutation('the next epoch waits for a node whose connection closed', 'rendezvous/quorum/job.cc', '        RemoveCutOff(now, outbox);\n', '',
             '//rendezvous/quorum:job_resume_test'),
    Mutation('what was handed over is good for ever', LINK,
             'now_ >= s_.heard_at + s_.lease) {\n    s_.handed_over.reset', 'false) {\n    s_.handed_over.reset', PLACED),
    Mutation('what was handed over is used again', LINK, '  s_.handed_over.reset();\n  const MonotonicTime', '  const MonotonicTime', PLACED),
    Mutation('an agent without the state takes the port', LINK, '= !s_.holds_place || !state.empty();', '= true;', PLACED),
    Mutation('refused connections keep a place that was handed over', LINK, 's_.holds_place && !s_.handed_over.has_value() &&', 's_.holds_place &&', PLACED),
    Mutation('a host tells the address by which it reaches itself', 'agent/node.cc', 'options_.store_host_may_change && !link_->is_hosting()',
             'options_.store_host_may_change', '//agent:agent_test'),
    Mutation('the next host begins without the run', 'agent/rendezvous_link.cc', 'options.handed_over = handed_over;', '(void)handed_over;', SEEN),
    Mutation('a run is taken over that another host may have gone on with', 'rendezvous/server/server.cc',
             'options.clock->Now() >= options.handed_over.good_until', 'false', '//rendezvous/server:server_test'),
]
