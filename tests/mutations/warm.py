"""Bugs planted in warm workers (agent/warm)."""

from planting import Mutation

WARM = 'agent/warm'
PYTHON = f'{WARM}/warm.py'
PLAN = f'{WARM}/warm_plan.cc'
POOL = f'{WARM}/warm_pool.cc'
PLANNED = f'//{WARM}:warm_test'
SEEN = '//tests/e2e:warm_test'

MUTATIONS = [
    Mutation('a spare runs with a script that has changed', PYTHON, 'if path and stamp(path) != known:', 'if False:', SEEN),
    Mutation('a spare has no rank', PYTHON, '**told, **self.changed}', '**self.changed}', SEEN),
    Mutation('a spare forgets what imports set', PYTHON, '**told, **self.changed}', '**told}', SEEN),
    Mutation('a spare swallows what imports print', PYTHON, 'self.output.repeat()', 'pass', SEEN),
    Mutation('a thread of an import is lost', PYTHON, "return 'its import starts a thread'", 'return None', SEEN),
    Mutation('a descriptor of an import is shared', PYTHON, 'if opened:', 'if False:', SEEN),
    Mutation('an import may ask for a rank', PYTHON, 'if name in places:', 'if False:', SEEN),
    Mutation("the script's setting comes after its imports", PYTHON, 'if own:', 'if 0:', SEEN),
    Mutation('a recording worker hands its PYTHONPATH on', PYTHON, "os.environ['PYTHONPATH'] = path[1:]", "os.environ['PYTHONPATH'] = path", SEEN),
    Mutation('a spare leads no session', PYTHON, 'os.setsid()', 'pass', SEEN),
    Mutation('two workers get one spare', POOL, 'if (spare.is_used || !spare.is_ready) {', 'if (!spare.is_ready) {', SEEN),
    Mutation('spares are leftovers of an epoch', POOL, 'return !spare->is_used && spare->pid == session;',
             'return false && spare->pid == session;', SEEN),
    Mutation("a spare's last words are not heard", POOL, 'spare.is_used) return Changed(words[1]);', '!spare.is_used) return Changed(words[1]);', SEEN),
    Mutation('a spare that has ended is used', POOL, '!environment.ok() || HasEnded(spare.pidfd)) return false;', '!environment.ok()) return false;', SEEN),
    Mutation("the parent's last words are not heard", POOL, 'OnParentWord();  // Its last words.', '', SEEN),
    Mutation('the parent of spares has a rank', PLAN, 'return places.count(', 'return false && places.count(', PLANNED),
    Mutation('the current directory comes into the path', PLAN, 'own == ":" ? "" : own', 'own', PLANNED),
    Mutation('an option of Python is not seen', PLAN, "letter == 'E' || letter == 'I' ||", "letter == 'I' ||", PLANNED),
    Mutation('spares are forked while workers begin', PLAN, 'fork_at_ = now + kRefillDelay;', 'fork_at_ = now;', PLANNED),
    Mutation('parents are started for ever', PLAN, '++failures_ > kMostFailures', 'false && ++failures_ > kMostFailures', PLANNED),
    Mutation('a parent that takes too long stays', PLAN, 'if (phase_ == Phase::kWarming && now >= warm_by_) {',
             'if (phase_ == Phase::kOff && now >= warm_by_) {', PLANNED),
    Mutation('an older record makes spares', PLAN, 'if (phase_ != Phase::kWarming || must_import_) return;', 'if (phase_ != Phase::kWarming) return;', PLANNED),
    Mutation('what was left out stays so after a change', PLAN, 'left_out_.clear();', '', PLANNED),
]
