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

HANG = 'agent/core/hang_detector.cc'
HUNG = '//agent/core:hang_detector_test'
RECORDER, RECORDED = 'worker_runtime/comm/flight_recorder.cc', '//worker_runtime/comm:flight_recorder_test'

MUTATIONS = [
    Mutation('a name may steer a terminal', f'{QUORUM}/decide.cc', 'if (shown == name) continue;', 'if (shown == name || true) continue;',
             '//rendezvous/attend:job_table_test'),
    Mutation('a line may steer the terminal of convene logs', 'launcher/terminal_text.cc', '} else if (IsColor(line.substr(0, sequence))) {',
             '} else if (IsColor(line.substr(0, sequence)) || sequence > 0) {', '//launcher:place_test'),
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
    Mutation('hangs at two steps are two failures', INCIDENT, 'std::min(why.find(" for "), why.find(" ("))', 'why.size()', TOLD),
    Mutation("the driver's cleanup hides the card's error", INCIDENT, '(IsXidOfProgram(*xid) && !IsXidOfProgram(line))', 'false', BLAMED),
    Mutation('every SIGKILL is a person', INCIDENT, 'absl::StrContains(failure.why, kByKernel)', 'failure.why.empty()', BLAMED),
    Mutation('a corrected error drains the node', f'{QUORUM}/kernel_words.cc', '"uncorrected", "fatal",', '"corrected", "fatal",', BLAMED),
    Mutation("a disk's error is the cause of every traceback", INCIDENT, 'line == nullptr || HasTraceback(failure)', 'line == nullptr', BLAMED),
    Mutation('everyday lines before a traceback judge', INCIDENT, '|| is_about_nccl ? 0 : traceback', '|| is_about_nccl ? 0 : 0', BLAMED),
    Mutation('a traceback that is longer than what is kept is a guess', INCIDENT, 'line == nullptr && HasTraceback(failure)', 'false', BLAMED),
    Mutation('failures are judged by what the report keeps of them', CHRONICLE, 'insert(is_cause ?',
             'reserve(8);\n  ShortenFailure(&failure);\n  failures.insert(is_cause ?', TOLD),
    Mutation('of a stack the outermost frames are kept', INCIDENT, 'stack < lines.size() && lines.size() > kMostLines', 'stack > lines.size()', BLAMED),
    Mutation('a program that cannot be started was killed', INCIDENT, '" left: Stopped by "', '" left: "', BLAMED),
    Mutation('two errors of Python are one', INCIDENT, '          ErrorOf(*broke)};', '          ErrorOf(*broke).substr(0, 0)};', TOLD),
    Mutation('another process whose number begins alike is taken for this one', KERNEL,
             "text[end] < '0' || text[end] > '9'", 'true', '//agent/core:kernel_lines_test'),
    Mutation("the driver's cleanup pushes out the error before it", KERNEL, 'IsBeside(*line) ?', 'IsBeside(*line) && false ?',
             '//agent/core:kernel_lines_test'),
    Mutation('workers that the end of the grace killed have ended in order', 'agent/core/machine_stop.cc',
             's_.ending_signal != 0 && s_.verdict->exit_code != 0', 's_.verdict->exit_code == 0', '//agent/core:machine_end_test'),
    Mutation('a rank that ended with 0 is named in no hang', 'agent/core/hang_detector.cc', '  ended_[local_rank] = {step, now};', '  (void)step, (void)now;',
             '//agent/core:hang_detector_test'),
    Mutation('a stopped process is no more to blame than its peers', HANG, '  if (!is_one_stopped) verdict.local_ranks = laggards;',
             '  verdict.local_ranks = laggards;', HUNG),
    Mutation('a process is stopped for ever without a report', HANG, 'now - *worker.stopped_since > StoppedLimit();', 'false;', HUNG),
    Mutation('a process that goes on counts as stopped', HANG, '  if (!reading.is_stopped) worker.stopped_since.reset();\n', '', HUNG),
    Mutation('a worker that waits for another rank is to blame as well', HANG, 'return std::make_tuple(worker.last.awaited_rank >= 0, ',
             'return std::make_tuple(false, ', HUNG),
    Mutation('a node reports its own waiting rank before the other node can', HANG,
             'return worker.last.awaited_rank >= 0 &&', 'return false &&', HUNG),
    Mutation('of two waits the one that ended is told', RECORDER, '    waiting_.erase(found);\n    Tell();', '    waiting_.erase(found);', RECORDED),
    Mutation("a save's wait hides the wait that hangs", RECORDER, 'is_beside_training\n                           ? waiting_.end()',
             'true\n                           ? waiting_.end()', RECORDED),
    Mutation('a worker that comes second among the waiting has gone on', 'agent/hang/hang_watch.cc',
             '!absl::c_linear_search(verdict_->local_ranks, suspect)', 'verdict_->local_ranks.front() != suspect', '//agent/hang:hang_test'),
    Mutation('a wait that leads to another node by a rank of this one is the code\'s fault', HANG, 'passed <= workers_.size()', 'passed <= 0', HUNG),
    Mutation('what a stopped process waited for is a fact', 'agent/core/rank_reports.cc', ' || reading.is_stopped ?', ' ?',
             '//agent/core:rank_reports_test'),
    Mutation('a wait is read while it is written', 'agent/hang/progress_page.cc', 'sequence % 2 == 0 && sequence', 'sequence', '//agent/hang:hang_test'),
    Mutation("a person's SIGSTOP is the code's fault", INCIDENT, 'if (absl::StrContains(failure.why, kStoppedBySignal))', 'if (false)', BLAMED),
    Mutation("a shell's 137 is told without the kernel's count", 'agent/core/exit_classifier.cc', 'is_known ? absl::StrCat(", ", why_killed) : ""', '""',
             '//agent/core:exit_classifier_test'),
    Mutation('means are over all steps since the start', REPORTS, 'const int64_t steps = now.step - since.step;',
             'const int64_t steps = now.step;', '//agent/core:rank_reports_test'),
]
