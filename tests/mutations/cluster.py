"""Bugs planted in `convene bench` and in the doctor's look at several nodes."""

from planting import Mutation

BENCH = 'worker_runtime/bench'
DOCTOR = 'launcher/doctor'
BENCH_TEST = f'//{BENCH}:bench_test'
NODES_TEST = f'//{DOCTOR}:nodes_test'

MUTATIONS = [
    Mutation('the check of a bench takes shards in any order', f'{BENCH}/expected.cc', 'Given(static_cast<int>(index / shard), index);', 'Given(0, index);',
             BENCH_TEST),
    Mutation('the check of a reduce_scatter looks at the first shard', f'{BENCH}/expected.cc', '{rank * shard, (rank + 1) * shard}', '{0, shard}',
             BENCH_TEST),
    Mutation('a bench counts the wrong elements of one rank', f'{BENCH}/sweep.cc', 'MakeSpan(&all_wrong, 1), ReduceOp::kSum',
             'MakeSpan(&all_wrong, 1), ReduceOp::kMax', BENCH_TEST),
    Mutation('two pairs share a member', f'{BENCH}/sweep.cc', '(2 * round - own + 2 * turning) % turning', '(round - own + 2 * turning) % turning', BENCH_TEST),
    Mutation('one slow node of three is the usual speed', f'{BENCH}/report.cc', 'Quantile(all, 0.75)', 'Quantile(all, 0.5)', BENCH_TEST),
    Mutation('a slow node makes all of its links slow spots', f'{BENCH}/report.cc', 'if (slow.contains(from) || slow.contains(to)) continue;', '', BENCH_TEST),
    Mutation('a name from outside may steer the terminal', 'tools/base/text.cc', 'if (is_second_set) shown.replace', 'if (false) shown.replace',
             '//tools/base:base_test'),
    Mutation("a host's name may steer the terminal of `convene status`", 'rendezvous/web/status_text.cc', 'return PrintableLines(text);', 'return text;',
             '//rendezvous/web:web_test'),
    Mutation('the times of a rank that tells none are nought', 'rendezvous/web/metrics.cc',
             'return rank.compute_ms == 0 && rank.wait_ms == 0 && rank.data_ms == 0;', 'return false && rank.compute_ms == 0;', '//rendezvous/web:web_test'),
    Mutation('a variable that only some nodes have is alike', f'{DOCTOR}/compare.cc', 'nodes_of[has ? trait->second : ""]', 'if (has) nodes_of[trait->second]',
             NODES_TEST),
    Mutation('a clock is judged by one look', f'{DOCTOR}/compare.cc', 'const double median = ahead[ahead.size() / 2];', 'const double median = ahead[0];',
             NODES_TEST),
    Mutation('a fast clock is called slow', f'{DOCTOR}/compare.cc', 'median > 0 ? "fast" : "slow"', 'median < 0 ? "fast" : "slow"', NODES_TEST),
    Mutation('an unfit node may start again', 'agent/core/exit_classifier.cc', 'kUnfitNode) && in_session', 'kUnfitNode) && false',
             '//agent/core:exit_classifier_test'),
]
