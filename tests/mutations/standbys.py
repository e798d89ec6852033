"""Bugs planted in the agents' search for the daemon that leads, of several."""

from planting import Mutation

LINK = 'agent/core/machine_link.cc'
DECIDED = '//agent/core:machine_standbys_test'
SEEN = '//tests/e2e:standbys_test'

FILE_JOURNAL = 'rendezvous/journal/file_journal.cc'
FILE_JOURNAL_TEST = '//rendezvous/journal:file_journal_test'

MUTATIONS = [
    Mutation('a simulated leader speaks until its lease ends by a slow clock', 'tests/sim/sim_daemon.cc',
             'constexpr absl::Duration kTenureMargin = absl::Seconds(1);', 'constexpr absl::Duration kTenureMargin = absl::Seconds(0);',
             '//tests/sim:rendezvous_sim_test'),
    Mutation('a leader that says nothing is not left', LINK, 's_.silent_at = HasStandbys() &&', 's_.silent_at = false &&',
             f'{DECIDED} //tests/sim:rendezvous_sim_test'),
    Mutation('a leader of an older term is taken for the leader', 'agent/core/machine.cc', 'welcome->term < s_.term', 'false', DECIDED),
    Mutation('each try is at the same endpoint', LINK, '  s_.at = (s_.at + 1) % count;\n', '', DECIDED),
    Mutation('refused by the endpoints that it knows, a node keeps its workers', LINK, '.has_value() && !HasStandbys() && s_.term == 0;',
             '.has_value() && s_.term == 0;', DECIDED),
    Mutation('the first endpoint is dialled for each of them', 'agent/rendezvous_link.cc', '  place_ = place;\n', '  (void)place;\n', SEEN),
    Mutation('of several endpoints one is asked', 'rendezvous/client/ask_in_turn.cc', 'if (count == 1) return ask(endpoint, timeout);',
             'if (count > 0) return ask(endpoint.Each(0).front(), timeout);', '//rendezvous/client:client_test'),
    Mutation('one endpoint that refuses ends the search', LINK, 'if (AllRefuse()) return EndSearch', 'if (Refuses()) return EndSearch', DECIDED),
    Mutation('a node that the leader refuses waits its whole time', LINK, 'std::min(s_.link_deadline, now_ + kTakeover)', 's_.link_deadline', DECIDED),
    Mutation('a refusal ends a node that has joined', LINK, 'if (!s_.ever_linked && Refuses())', 'if (Refuses())', '//agent/core:machine_test'),
    Mutation('one endpoint that refuses ends the question', 'rendezvous/client/ask_in_turn.cc', '!absl::IsUnavailable(asked) && !is_refusal',
             '!absl::IsUnavailable(asked)', '//rendezvous/client:client_test'),
    Mutation('a proxy with nobody behind it is another program', 'rendezvous/client/agent_stream.cc',
             'const bool is_mute = !stream->HasHeard() && !is_listened_to_here;', 'const bool is_mute = false;', '//rendezvous/client:client_test'),
    Mutation('a mute program of this machine is a proxy', 'rendezvous/client/agent_stream.cc', 'HasHeard() && !is_listened_to_here;', 'HasHeard();',
             '//rendezvous/client:client_test'),
    Mutation('a daemon that lost its lock decides on', FILE_JOURNAL, 'if (last == term_ && place.ok())',
             'if (last >= term_ && place.ok())', FILE_JOURNAL_TEST),
    Mutation('a term of the same number in another folder counts', FILE_JOURNAL, 'if (last == term_ && place.ok())', 'if (last == term_)', FILE_JOURNAL_TEST),
    Mutation("a journal is put in the place of another folder's", FILE_JOURNAL, '} else if (status = CheckTerm(); status.ok()) {', '} else {',
             FILE_JOURNAL_TEST),
    Mutation('files of earlier terms stay', FILE_JOURNAL, 'if (!term.has_value() || *term >= term_) continue;', 'if (!term.has_value() || *term > 0) continue;',
             FILE_JOURNAL_TEST),
    Mutation('the file of a later term is removed', FILE_JOURNAL, 'if (!term.has_value() || *term >= term_) continue;',
             'if (!term.has_value() || *term == term_) continue;', FILE_JOURNAL_TEST),
    Mutation('two daemons of a shared folder have one term', FILE_JOURNAL, 'term_ = last + 1;', 'term_ = std::max<int64_t>(last, 1);', FILE_JOURNAL_TEST),
    Mutation('a term that left no file loses the journal', FILE_JOURNAL, 'newest = std::max(newest, *term)', 'newest = term_ - 1', FILE_JOURNAL_TEST),
    Mutation('an empty folder in the place of one that is not mounted is led', FILE_JOURNAL, 'if (number == options_.directory_number)',
             'if (number != 0)', FILE_JOURNAL_TEST),
    Mutation('a disk without room for a second file takes no record', FILE_JOURNAL, 'may_extend ? Extend(bytes) : fresh.status();', 'fresh.status();',
             FILE_JOURNAL_TEST),
    Mutation('an outage of the folder ends a daemon that stands by', 'rendezvous/server/serve.cc', 'if (!is_led && (is_wrong ||',
             'if (!is_led && (!is_first || is_wrong ||', SEEN),
    Mutation('a daemon whose folder is full does not begin', 'rendezvous/server/serve.cc', '&& !absl::IsResourceExhausted(memory.status())', '', SEEN),
    Mutation('a leader that decides nothing does not look whether it leads', 'rendezvous/attend/daemon_record.cc', 'tenure_ != nullptr && MaySpeak()',
             'false && MaySpeak()', f'//rendezvous/attend:daemon_tenure_test {SEEN}'),
    Mutation('a leader that cannot read its folder leads on', FILE_JOURNAL, 'if (now - *blind_since_ < kMostBlind) return status;', 'return status;',
             FILE_JOURNAL_TEST),
    Mutation('two errors with good looks between them end a tenure', FILE_JOURNAL, '    blind_since_.reset();\n', '', FILE_JOURNAL_TEST),
    Mutation('a daemon alone takes a folder of several', FILE_JOURNAL, 'if (last == 0) return path();', 'if (last >= 0) return path();', FILE_JOURNAL_TEST),
    Mutation('a refusal moves the fence of a node that knows one daemon of several', LINK, '!HasStandbys() && s_.term == 0;', '!HasStandbys();', DECIDED),
    Mutation('an agent takes the port of a daemon that waits', 'rendezvous/server/serve.cc', 'LeaveMark(options.port, options.state_dir);',
             'LeaveMark(0, options.state_dir);', SEEN),
    Mutation('a program that is no etcd ends the search', 'rendezvous/etcd/client.cc', '(is_stranger && strangers.size() < members_.size())', 'false',
             '//rendezvous/etcd:client_test'),
]
