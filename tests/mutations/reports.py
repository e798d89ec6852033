"""Bugs planted in what a run tells about its ops: --comm-log, --trace, and the times of its progress page."""

from planting import Mutation

PROFILE = 'worker_runtime/profile'
LOG = f'{PROFILE}/comm_log.cc'
TRACE = f'{PROFILE}/trace.cc'
GATHER = f'{PROFILE}/trace_gather.cc'
REPORTS = 'worker_runtime/trainer/op_reports.cc'
CUDA = 'worker_runtime/device/cuda/cuda_profile.cc'
HOST = 'worker_runtime/device/host_profile.cc'
TABLE = f'{PROFILE}/comm_table.cc'
COMM_GATHER = f'{PROFILE}/comm_gather.cc'
LOGGED = f'//{PROFILE}:comm_log_test'
TRACED = f'//{PROFILE}:trace_test'
WAITS = f'{PROFILE}/wait_sample.cc'
WAITED = f'//{PROFILE}:wait_sample_test'
RUN = '//tests/e2e:trace_test'
PROFILED = '//worker_runtime/device:host_profile_test'
ON_A_GPU = '//tests/e2e:emulated_gpu_test'

MUTATIONS = [
    Mutation('a pass hides what it waits for', LOG, '} else if (!is_pass) {', '} else if (!is_pass || span.detail.chunk >= 0) {', LOGGED),
    Mutation('a collective is compared before the ops beside it are known', LOG,
             'if (!computing_.empty()) Settle(computing_.back().end);', 'Settle(MonotonicTime::InfiniteFuture());', LOGGED),
    Mutation('the ops of the last step are forgotten at once', LOG,
             'computing_.begin() + computing_before_);', 'computing_.end());', LOGGED),
    Mutation("a collective of the main stream hides another stream's", LOG,
             'Count(span, 0);\n', 'Count(span, 0);\n      computing_.push_back({span.begin, span.end});\n', LOGGED),
    Mutation('the slowest rank stands for all', TABLE, '(line.size() - 1) / 2', 'line.size() - 1', LOGGED),
    Mutation('lines of two operations are one', LOG, ' && std::strcmp(a.operation, b.operation) == 0', '', LOGGED),
    Mutation('a rank is named by its place in the order of times', TABLE, 'emplace_back(static_cast<int>(rank), &one)',
             'emplace_back(static_cast<int>(line->size()), &one)', LOGGED),
    Mutation('lines that a rank has not are its lines', COMM_GATHER, 'line.operation[0] == 0', 'line.axis[0] == 1', LOGGED),
    Mutation('only rank 0 counts its collectives', REPORTS.replace('.cc', '.h'), 'return options_.comm_log || (options_.profile && reporter_ != nullptr);',
             'return (options_.comm_log || options_.profile) && reporter_ != nullptr;', '//tests/e2e:trainer_output_test'),
    Mutation('an all-reduce counts as one half of itself', 'worker_runtime/comm/collective.h', 'return 2 * others;', 'return others;', LOGGED),
    Mutation("a rank's clock is moved the wrong way", TRACE, 'since_epoch() + offset_', 'since_epoch() - offset_', TRACED),
    Mutation('a slice of a trace has its own rounded length', TRACE, 'Nanoseconds(end) - from', 'absl::ToInt64Nanoseconds(end - begin)', TRACED),
    Mutation('a clock is compared by the longest round trip', TRACE, 'return a.received - a.sent < b.received - b.sent;',
             'return b.received - b.sent < a.received - a.sent;', TRACED),
    Mutation('the way to the other clock takes no time', TRACE, 'best.other - (best.sent + half)', 'best.other - best.sent', TRACED),
    Mutation('an op ends behind its pass', TRACE, 'is_within ? std::min(call.end, pass_end)', 'is_within ? call.end', TRACED),
    Mutation('no comma stands between two ranks', GATHER, 'write(kTraceBetween);', 'write("");', RUN),
    Mutation('the first piece of a rank comes again and again', GATHER, 'events.data() + done, piece', 'events.data(), piece', RUN + ' ' + TRACED),
    Mutation('a resumed run waits for a step that is done', REPORTS, 'std::max(wanted.first, first_step + 1)', 'wanted.first', RUN),
    Mutation('ops of other steps are in the trace', REPORTS, 'if (!Traces(step)) return;\n', '', RUN),
    Mutation('a long trace fills the memory and the disk', REPORTS, 'most - trace_calls_)', 'most)', RUN),
    Mutation('a file that nobody can write is found out at the end', REPORTS,
             'if (!traced_.has_value() || reporter_ == nullptr) return absl::OkStatus();\n  absl',
             'if (options_.steps > 0) return absl::OkStatus();\n  absl', RUN),
    Mutation('a pass counts as an op', HOST, 'pass_.end = clock_.Now();', 'pass_.end = clock_.Now();\n  ++TimeOf(pass_.op, times_).calls;', PROFILED),
    Mutation('calls without room are not told', HOST, '++kept_.left_out;', '', PROFILED),
    Mutation("a GPU's passes are not kept", CUDA, 'spans_.push_back(std::exchange(pass_, {}));',
             'pass_ = {};', ON_A_GPU),
    Mutation("a GPU's clock is not compared with the host's", CUDA, 'anchor_time_ = before + trip / 2;',
             'anchor_time_ = MonotonicTime();', ON_A_GPU),
    Mutation("an anchor that is replaced keeps the old one's time", CUDA, 'anchor_time_ = kept.end;', '', ON_A_GPU),
    Mutation("a GPU's arithmetic counts as its wait", WAITS, 'is_open_ = absl::StartsWith(op, kCommunicationPrefix);', 'is_open_ = op != nullptr;', WAITED),
    Mutation('ops behind a sampled step count as its own', WAITS, '(absl::Duration time) {\n  End();', '(absl::Duration time) {', WAITED),
    Mutation('the waits of all samples are those of the last', WAITS, 'seconds - std::exchange(seconds_, seconds)', 'seconds - seconds_', WAITED),
    Mutation('a validation that a stop cut short is never made up', 'worker_runtime/trainer/training_loop.cc',
             'return missing[1] > 0 ? Validate() : false;', 'return false;', '//tests/e2e:stop_signals_test', 'optimizer'),
    Mutation('a run that goes on tells a validation once more', 'worker_runtime/trainer/reporter.cc',
             'known.step == step && known.validation_set == validation_set;', 'known.step > step && known.validation_set == validation_set;',
             '//worker_runtime/trainer:reporter_test', 'optimizer'),
]
