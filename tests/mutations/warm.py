"""Bugs planted in warm workers (agent/warm)."""

from planting import Mutation

WARM = 'agent/warm'
PYTHON = f'{WARM}/warm.py'
PLAN = f'{WARM}/warm_plan.cc'
POOL = f'{WARM}/warm_pool.cc'
PLAN_HEADER = f'{WARM}/warm_plan.h'
RECORD = f'{WARM}/warm_record.cc'
START = 'agent/node_start.cc'
PLANNED = f'//{WARM}:warm_test'
SEEN = '//tests/e2e:warm_test'
SPARE = 'worker_runtime/session/warm_spare.cc'
SPARED = '//worker_runtime/session:warm_spare_test'
TRAINED = '//tests/e2e:warm_trainer_test'
SETUP = 'worker_runtime/trainer/setup.cc'

MUTATIONS = [
    Mutation('a spare runs with a script that has changed', PYTHON, 'if stamp(path) != known:', 'if False:', SEEN),
    Mutation('spares have a module as it was before its second record', PYTHON, '            self.check_files()  # This', '            # This', SEEN),
    Mutation('a zip of modules may change', PYTHON, 'return stamp(os.path.dirname(path))', 'return None', SEEN),
    Mutation('a replaced interpreter goes on as the old one', PYTHON, 'program = sys.executable if', "program = '/proc/self/exe' if", SEEN),
    Mutation('no start waits for its spares', START, 'warm_pool_ != nullptr && warm_pool_->HoldsStart()', 'false', SEEN),
    Mutation('a start waits for ever', PLAN_HEADER, 'return now < start_by_ && ready', 'return now < start_by_ + absl::Hours(9) && ready', PLANNED),
    Mutation('a start waits for spares that cannot come', PLAN_HEADER, 'phase_ != Phase::kUnknown && phase_ != Phase::kOff;', 'true;', PLANNED),
    Mutation('a start that waits cannot be stopped', 'agent/core/machine_stop.cc', 'if (!s_.has_workers) return LeaveAndFinish();\n  BeginStop(',
             'if (s_.is_checking_health) return;\n  if (!s_.has_workers) return LeaveAndFinish();\n  BeginStop(', SEEN),
    Mutation('a record of other variables is used', POOL, 'if (!changed.empty()) {', 'if (false) {', SEEN),
    Mutation('what imports set counts as a change', PYTHON, 'self.base = own_environment()', 'self.base = dict(os.environ)', SEEN),
    Mutation('a torn record is used', RECORD, 'if (parts[0].substr(kVersion.size()) != HashOf(body)) {', 'if (HashOf(body).empty()) {', PLANNED),
    Mutation('a record that others may write is used', RECORD, '& (S_IWGRP | S_IWOTH)) == 0', '& S_ISUID) == 0', PLANNED),
    Mutation('records are kept without a bound', RECORD, 'i < files.size(); ++i) unlink', 'i < files.size() && false; ++i) unlink', PLANNED),
    Mutation('a record has secrets', RECORD,
             'marks[name] = HashOf(entry.substr(equals + 1));', 'marks[name] = std::string(entry.substr(equals + 1));', PLANNED),
    Mutation('a record has secrets that the script sets', PYTHON, 'os.fsdecode(key): mark(os.environ.get(os.fsdecode(key))) for',
             'os.fsdecode(key): os.environ.get(os.fsdecode(key)) for', SEEN),
    Mutation('an old record with secrets stays', RECORD, 'unlink(path.c_str());  // Version 1', '// Version 1', PLANNED),
    Mutation('later runs wait for spares that a wrapper spoils', POOL, 'if (words[0] == "unlike" && starts_ == 1 &&', 'if (false &&', SEEN),
    Mutation('later runs wait as long as one that waited in vain', POOL, 'if (ready == 0) DropRecord();', '', SEEN),
    Mutation('a folder that takes no record is not told', POOL, 'usable = record_file_->MakeFolder(); !usable.ok()', 'usable; !usable.ok()', SEEN),
    Mutation('the end waits for a write that hangs', RECORD, 'if (left <= absl::ZeroDuration()) break;', '', PLANNED),
    Mutation('what no parent can import is not kept', POOL, 'plan_.LeaveOut(words[1]);\n      Keep();', 'plan_.LeaveOut(words[1]);', SEEN),
    Mutation('a record stays of which no parent lives', POOL, 'if (record_file_ != nullptr) record_file_->Drop();', '', SEEN),
    Mutation('a spare has no rank', PYTHON, '**told, **self.changed}', '**self.changed}', SEEN),
    Mutation('a spare forgets what imports set', PYTHON, '**told, **self.changed}', '**told}', SEEN),
    Mutation('a spare swallows what imports print', PYTHON, 'self.output.repeat()', 'pass', SEEN),
    Mutation('a thread of an import is lost', PYTHON, "return 'its import starts a thread'", 'return None', SEEN),
    Mutation('a descriptor of an import is shared', PYTHON, 'if opened:', 'if False:', SEEN),
    Mutation('an import may ask for a rank', PYTHON, 'if asked:', 'if False:', SEEN),
    Mutation('what Python imports at its start is not looked at', PYTHON, 'self.trace() if not self.files else None', 'None', SEEN),
    Mutation('a failed sitecustomize ends the parent', PYTHON, 'except Exception as error:  # pylint: disable=broad-except\n        return error',
             'except ImportError as error:\n        return error', SEEN),
    Mutation('memory of an import is shared', PYTHON, 'if memory - before[1]:', 'if False:', SEEN),
    Mutation('a module comes from another file than in the script', PYTHON, 'or self.stranger(paths)', '', SEEN),
    Mutation('a seed that an import gives is lost', PYTHON, "if self.drawn is not None:", 'if False:', SEEN),
    Mutation('a time limit of an import ends spares', PYTHON, 'socket.settimeout(None)\n                if self.fork', 'if self.fork', SEEN),
    Mutation('the recorder takes its hook away while an optimizer steps', PYTHON, '        optimizer.register_optimizer_step_post_hook(after_step)',
             '        handle = optimizer.register_optimizer_step_post_hook(lambda *_: (after_step(), self.steps == 2 and handle.remove()))', SEEN),
    Mutation('the streams of a spare can seek', POOL, 'request.stdout_fd = request.stderr_fd = output_.get();',
             'request.stdout_fd = request.stderr_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);', SEEN),
    Mutation("an import takes the workers' stdin", PYTHON, 'os.lseek(0, 0, os.SEEK_CUR) > 0', 'False', SEEN),
    Mutation("the script's setting comes after its imports", PYTHON, 'if own:', 'if 0:', SEEN),
    Mutation('a recording worker hands its PYTHONPATH on', PYTHON, "os.environ['PYTHONPATH'] = path[1:]", "os.environ['PYTHONPATH'] = path", SEEN),
    Mutation('a spare leads no session', PYTHON, 'os.setsid()', 'pass', SEEN),
    Mutation('two workers get one spare', POOL, 'if (spare.is_used || !spare.is_ready || spare.slot != local_rank) {',
             'if (!spare.is_ready || spare.slot != local_rank) {', SEEN),
    Mutation('spares are leftovers of an epoch', POOL, 'return !spare->is_used && spare->pid == session;',
             'return false && spare->pid == session;', SEEN),
    Mutation("a spare's last words are not heard", POOL, 'if (spare.is_used && words.size() == 2 &&', 'if (false && words.size() == 2 &&', SEEN),
    Mutation('a spare that has ended is used', POOL, '!environment.ok() || HasEnded(spare.pidfd)) return false;', '!environment.ok()) return false;', SEEN),
    Mutation("the parent's last words are not heard", POOL, 'OnParentWord();  // Its last words.', '', SEEN),
    Mutation('the parent of spares has a rank', PLAN, 'return places.count(', 'return false && places.count(', PLANNED),
    Mutation('the current directory comes into the path', PLAN, 'own == ":" ? "" : own', 'own', PLANNED),
    Mutation('an option of Python is not seen', PLAN, "letter == 'E' || letter == 'I' ||", "letter == 'I' ||", PLANNED),
    Mutation('spares are forked while workers begin', PLAN, 'failures_ = 0;\n  fork_at_ = now + kRefillDelay;', 'failures_ = 0;\n  fork_at_ = now;', PLANNED),
    Mutation('parents are started for ever', PLAN, 'phase_ = failures_ > kMostFailures', 'phase_ = false && failures_ > kMostFailures', PLANNED),
    Mutation('a module that is left out counts as a failure', PLAN, 'if (!has_learned_) ++failures_;', '++failures_;', PLANNED),
    Mutation('modules are left out without an end', PLAN, ' && left_out_.size() <= kMostLeftOut;', ';', PLANNED),
    Mutation('a module that keeps all variables has no rank', PYTHON, 'if type(os.environ).is_kept():', 'if False:', SEEN),
    Mutation('a parent that takes too long stays', PLAN, 'if (phase_ == Phase::kWarming && now >= warm_by_) {',
             'if (phase_ == Phase::kOff && now >= warm_by_) {', PLANNED),
    Mutation('an older record makes spares', PLAN, 'if (phase_ != Phase::kWarming || must_import_) return;', 'if (phase_ != Phase::kWarming) return;', PLANNED),
    Mutation('what was left out stays so after a change', PLAN, 'left_out_.clear();', '', PLANNED),
    Mutation('the trainer gets the path of warm.py', PLAN, 'if (IsTrainer(program)) {', 'if (program.empty()) {', PLANNED),
    Mutation('a spare is for the rank with the terminal', PLAN, 'rank >= *cold ? rank + 1 : rank', 'false ? rank + 1 : rank', PLANNED),
    Mutation('spares that die are forked without a pause', PLAN, 'fork_at_ = now + kRefillDelay * (failures_ + 1);\n', '', PLANNED),
    Mutation('a parent that becomes warm ends a pause', PLAN, 'fork_at_ = std::max(fork_at_, now);', 'fork_at_ = now;', PLANNED),
    Mutation('spares that die are forked for ever', PLAN, 'if (++failures_ > kMostFailures) phase_', 'if (false) phase_', PLANNED),
    Mutation('a spare is told no place', PLAN, 'name == contract::kLocalRank ||', '', PLANNED),
    Mutation('a spare of the trainer keeps its old variables', SPARE, 'SetEnvironment(why.empty() ? wanted : Parse(told));',
             'for (const auto& [name, value] : wanted) setenv(name.c_str(), value.c_str(), 0);', SPARED),
    Mutation('a spare runs a program that has changed', SPARE, '!stamp.has_value() || StampOf(path) != stamp', '!stamp.has_value()', SPARED),
    Mutation('a variable that is gone is not missed', SPARE, 'for (const Variables* variables : {&wanted, &environment_}) {',
             'for (const Variables* variables : {&environment_}) {', SPARED),
    Mutation('a spare goes on with a device that has failed', SPARE, 'return program_.still_works() ? "" :', 'return true ? "" :', SPARED),
    Mutation("a spare takes another local rank's device along", SPARE, 'if (in(wanted, name) != value) return', 'if (false) return', SPARED),
    Mutation('a spare of the trainer leads no session', SPARE, 'setsid();', '', SPARED),
    Mutation('a descriptor of the hand-over leaks', SPARE, 'message.fds.emplace_back(fd);', 'message.fds.emplace_back(dup(fd));', SPARED),
    Mutation('a killed agent leaves the spares of the trainer', SPARE, 'prctl(PR_SET_PDEATHSIG, SIGKILL);', '', TRAINED),
    Mutation("a rank opens another GPU than its spare's", SETUP, 'if (early.device != nullptr && early.number == *gpu) {',
             'if (early.device != nullptr) {', '//worker_runtime/trainer:setup_test'),
    Mutation('a parent without its script is started', POOL, '; !IsFile(script)) {', '; script.empty()) {', SEEN),
]
