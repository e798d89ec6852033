"""Bugs planted in the daemon's judgements: stragglers and the cause of a failed epoch."""

from planting import Mutation

QUORUM = 'rendezvous/quorum'
JUDGE = f'{QUORUM}/straggler_judge.cc'
INCIDENT = f'{QUORUM}/incident.cc'
CHRONICLE = f'{QUORUM}/chronicle.cc'
NEWS = f'{QUORUM}/job_news.cc'
REPORTS = 'agent/core/rank_reports.cc'
KERNEL = 'agent/core/kernel_lines.cc'
JUDGED = f'//{QUORUM}:straggler_judge_test'
TOLD = f'//{QUORUM}:job_news_test'
BLAMED = f'//{QUORUM}:incident_test'

MUTATIONS = [
    Mutation('a port that opens late leaves the leases unjudged', 'rendezvous/attend/job_table.cc',
             'entry.job.RenewAway(now);\n    Settle(entry, &nothing, 0);\n', 'entry.job.RenewAway(now);\n    (void)nothing;\n',
             '//rendezvous/attend:job_table_test'),
    Mutation('a refused Hello is a word of the run', 'rendezvous/quorum/job.cc',
             '  CONVENE_RETURN_IF_ERROR(CheckAgreement(policy_, hello));\n  Hear(now, outbox);\n',
             '  Hear(now, outbox);\n  CONVENE_RETURN_IF_ERROR(CheckAgreement(policy_, hello));\n', '//rendezvous/attend:job_table_test'),
    Mutation('a run whose nodes are all dead keeps its name', 'rendezvous/attend/job_table.cc', 'job.state().IsDeserted(now) &&',
             'job.state().nodes().empty() &&', '//rendezvous/attend:job_table_test'),
    Mutation('events have the times of the clock at the start', 'rendezvous/attend/daemon.cc',
             'if (absl::AbsDuration(offset - wall_offset_) <= kClockIsSet) return;',
             'if (wall_offset_ != absl::ZeroDuration()) return;', '//rendezvous/attend:daemon_tenure_test'),
    Mutation('a pause of one step counts as much as any other', JUDGE, '(values.size() - 1) / 3', '(values.size() - 1) * 2 / 3', JUDGED),
    Mutation('the first step over the limit is an alarm', JUDGE, 'kPersistsSteps = 8;', 'kPersistsSteps = 0;', JUDGED),
    Mutation('the first steps of an epoch count', JUDGE, 'kWarmUpSteps = 10;', 'kWarmUpSteps = 0;', JUDGED),
    Mutation('a straggler stays one for ever', JUDGE, 'if (is_under) suspicion.is_found = false;',
             'if (is_under && step < 0) suspicion.is_found = false;', JUDGED),
    Mutation('a lonely rank is compared without the growth of the others', JUDGE, '(*rank.first).*of * growth.compute', '(*rank.first).*of', JUDGED),
    Mutation('the wait of the median rank is taken for the network', JUDGE,
             'least_now.wait - least_first.wait * std::max(1.0, growth.compute)', 'growth.wait', JUDGED),
    Mutation('a node is slow when one of its ranks is', JUDGE, 'counts.first < counts.second', 'counts.first < 1', JUDGED),
    Mutation('a node of one slow rank is slow as a whole', JUDGE, 'counts.second < 2 || counts.first < counts.second', 'counts.first < counts.second', JUDGED),
    Mutation('a lonely rank that nobody waits for is slow', JUDGE, '.ms = is_waited_for ? ms : 0,', '.ms = is_waited_for ? ms : ms,', JUDGED),
    Mutation('the link is slow where a rank is', JUDGE, '.ms = is_anyone_slow ? 0 : more,', '.ms = is_anyone_slow ? more : more,', JUDGED),
    Mutation('slow saves are not told', JUDGE, 'rank.loads.is_found ? rank.loads : rank.saving', 'rank.loads', JUDGED),
    Mutation("the wait for samples is told as a slow rank", JUDGE, 'add(StragglerKind::kDisk, number', 'add(StragglerKind::kRank, number', JUDGED),
    Mutation('a report that is heard twice counts twice', JUDGE, 'report.steps > 0 && report.step > rank.step', 'report.steps > 0', JUDGED),
    Mutation('ranks that tell no times are judged', JUDGE, 'if (!is_new || !tells_times ||', 'if (!is_new || (!tells_times && false) ||', JUDGED),
    Mutation('a rank is slow from the first percent on', JUDGE, 'kSlower = 0.15;', 'kSlower = 0.01;', JUDGED),
    Mutation('ranks of all stages are compared', JUDGE, 'rank.place = report.place;', 'rank.place = 0 * report.place;', JUDGED),
    Mutation('a straggler is excluded, whatever the policy', NEWS, 'if (policy_.excludes_stragglers && straggler', 'if (straggler', TOLD),
    Mutation('an echo takes the place of the cause', CHRONICLE, 'is_cause ? failures.begin() : failures.end()',
             'is_cause ? failures.end() : failures.begin()', TOLD),
    Mutation('failures of all hosts are counted together', INCIDENT, 'a.host == b.host && ', '', TOLD),
    Mutation('a broken connection is the cause, though a peer crashed', INCIDENT, 'of_other.word == "network" ||', 'of_other.word != "network" ||', BLAMED),
    Mutation('the echo of a lost node is judged in its place', INCIDENT, 'return is_it ? &first : nullptr;', 'return is_it || true ? &first : nullptr;', TOLD),
    Mutation('hangs at two steps are two failures', INCIDENT, 'std::min(text.find(" for "), text.find(" ("))', 'text.size()', TOLD),
    Mutation("the driver's cleanup hides the card's error", INCIDENT, '(IsXidOfProgram(*xid) && !IsXidOfProgram(line))', 'false', BLAMED),
    Mutation('every SIGKILL is a person', INCIDENT, 'absl::StrContains(failure.why, "The kernel counts")', 'failure.why.empty()', BLAMED),
    Mutation('another process whose number begins alike is taken for this one', KERNEL,
             "text[end] < '0' || text[end] > '9'", 'true', '//agent/core:kernel_lines_test'),
    Mutation("the driver's cleanup pushes out the error before it", KERNEL, 'IsCleanup(*line) ?', 'IsCleanup(*line) && false ?',
             '//agent/core:kernel_lines_test'),
    Mutation('means are over all steps since the start', REPORTS, 'const int64_t steps = now.step - since.step;',
             'const int64_t steps = now.step;', '//agent/core:rank_reports_test'),
]
