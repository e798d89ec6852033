"""Bugs planted in the kept choices of products (worker_runtime/tuning)."""

from planting import Mutation

TUNING = 'worker_runtime/tuning'
TABLE = f'{TUNING}/choice_table.cc'
FILE = f'{TUNING}/choice_file.cc'
JOB = f'{TUNING}/job_choices.cc'
PLANS = 'worker_runtime/ops/cuda/matmul/matmul_plans.cc'
DECODED = f'//{TUNING}:choice_table_test'
KEPT = f'//{TUNING}:choice_file_test'
SHARED = f'//{TUNING}:job_choices_test'
TIMED = '//worker_runtime/ops/cuda/matmul:matmul_emulated_test_forward'
TRAINED = '//tests/e2e:emulated_gpu_test'

MUTATIONS = [
    Mutation('a torn file of choices is believed', TABLE, 'if (end != EndLine(rest)) return', 'if (end.size() != EndLine(rest).size()) return', DECODED),
    Mutation('the choices of another GPU are believed', TABLE, 'if (!absl::ConsumePrefix(&rest, absl::StrCat(machine, "\\n"))) {',
             'if (rest.remove_prefix(rest.find(\'\\n\') + 1); false) {', DECODED),
    Mutation('a full table loses its newest choice', TABLE, 'return one.second.turn < other.second.turn;',
             'return one.second.turn > other.second.turn;', DECODED),
    Mutation('a file of choices that is refused stays', FILE, 'lock.ok() && RenameFile(path_, aside).ok()', 'lock.ok()', KEPT),
    Mutation('a reader waits at a pipe', FILE, 'O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY', 'O_RDONLY | O_NOFOLLOW | O_NOCTTY', KEPT),
    Mutation('a process writes over the choices of others', FILE, 'absl::StatusOr<ChoiceTable> all = Parse();',
             'absl::StatusOr<ChoiceTable> all = ChoiceTable(machine_);', KEPT),
    Mutation('each rank keeps to the algorithm that it timed', JOB, 'if (turn.ok() && *turn == 1) {', 'if (turn.ok()) {', SHARED),
    Mutation('the choices of the last node count', JOB, 'for (auto table = by_rank.rbegin(); table != by_rank.rend(); ++table)',
             'for (auto table = by_rank.begin(); table != by_rank.end(); ++table)', SHARED),
    Mutation('what another node has kept is not kept here', f'{TUNING}/job_choices.h', 'bool is_new_ ABSL_GUARDED_BY(mutex_) = true;',
             'bool is_new_ ABSL_GUARDED_BY(mutex_) = false;', SHARED),
    Mutation('a rank that has not timed yet does not ask', JOB, 'if (!known.has_value() && store_ != nullptr) {', 'if (false) {', SHARED),
    Mutation('a kept choice is timed again', PLANS, 'if (const auto known = IndexOf(choices->Find(product), candidates)) return *known;',
             'choices->Find(product);', TIMED),
    Mutation('a choice that the library does not know is the first candidate', PLANS,
             'if (NameOf(candidates[i]) == *name) return i;', 'return i;', f'{TIMED} {TRAINED}'),
    Mutation('the choices of a start are lost', 'worker_runtime/trainer/training_loop.cc', 'if (choices_ != nullptr) choices_->Keep();', '', TRAINED),
]
