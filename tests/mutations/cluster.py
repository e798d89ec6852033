"""Bugs planted in `convene bench` and in the doctor's look at several nodes."""

from planting import Mutation

BENCH = 'worker_runtime/bench'
DOCTOR = 'launcher/doctor'
BENCH_TEST = f'//{BENCH}:bench_test'
NODES_TEST = f'//{DOCTOR}:nodes_test'
COMPARE = f'{DOCTOR}/compare.cc'
SEVERAL = '//tests/e2e:doctor_test'
MACHINE = 'agent/machine'
DUMPS = 'launcher/incidents/torch_dumps.cc'
REPORTED = '//tests/e2e:incidents_test'

MUTATIONS = [
    Mutation('the check of a bench takes shards in any order', f'{BENCH}/expected.cc', 'Given(static_cast<int>(index / shard), index);', 'Given(0, index);',
             BENCH_TEST),
    Mutation('the check of a reduce_scatter looks at the first shard', f'{BENCH}/expected.cc', '{rank * shard, (rank + 1) * shard}', '{0, shard}',
             BENCH_TEST),
    Mutation('a bench counts the wrong elements of one rank', f'{BENCH}/sweep.cc', 'MakeSpan(&all_wrong, 1), ReduceOp::kSum',
             'MakeSpan(&all_wrong, 1), ReduceOp::kMax', BENCH_TEST),
    Mutation('two pairs share a member', f'{BENCH}/sweep.cc', '(2 * round - own + 2 * turning) % turning', '(round - own + 2 * turning) % turning', BENCH_TEST),
    Mutation('one slow node of three is the usual speed', f'{BENCH}/report.cc', 'Quantile(all, 0.75)', 'Quantile(all, 0.5)', BENCH_TEST),
    Mutation('a slow node makes all of its links slow spots', f'{BENCH}/report.cc', 'std::min({spots.usual, medians[from], medians[to]})', 'spots.usual',
             BENCH_TEST),
    Mutation('a link between slow members is never named', f'{BENCH}/report.cc', 'std::min({spots.usual, medians[from], medians[to]})',
             'std::min({spots.usual, medians[from], medians[to]}) * (medians[from] < kSlowShare * spots.usual ? 0 : 1)', BENCH_TEST),
    Mutation('all members are slow where the links differ by place', f'{BENCH}/report.cc', 'if (spots.is_uneven) spots.members.clear();', '', BENCH_TEST),
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
    Mutation('a name that leads to another machine is good', COMPARE, 'std::none_of(named.begin(), named.end(), is_own)',
             '!std::none_of(named.begin(), named.end(), is_own)', NODES_TEST),
    Mutation("a name that leads to 127.0.1.1 is its node's", COMPARE, 'return !IsLoopback(address) && std::find', 'return std::find', NODES_TEST),
    Mutation('an older build that tells no addresses is misled', COMPARE,
             'if (tells_addresses && !named.empty()', 'if ((tells_addresses || true) && !named.empty()', NODES_TEST),
    Mutation("an address with its own node's name has another's", COMPARE,
             'names.contains(name) && name != FirstLabel(target.host())', 'names.contains(name)', NODES_TEST),
    Mutation('a node that does not answer has no name, too', COMPARE, 'peer.address_name().empty() && peer.connect_error().empty()',
             'peer.address_name().empty()', NODES_TEST),
    Mutation('one machine that is several nodes has a name for each', COMPARE, 'if (IsLoopback(target.address())) continue;', '', NODES_TEST),
    Mutation("the first name of an address is its number", f'{DOCTOR}/peer_probe.cc', 'words.size() < 2 ? "" : words[1]', 'words.size() < 2 ? "" : words[0]',
             NODES_TEST),
    Mutation('links that differ by place are told as good', COMPARE, 'if (spots.is_uneven) {', 'if (false) {', NODES_TEST),
    Mutation('a wrong sum of the collective check is told as good', COMPARE, 'wrong += row.wrong.value_or(0);', 'wrong += 0;', NODES_TEST),
    Mutation('the collective check tells the algorithm bandwidth', COMPARE, 'worker::BusBandwidth(row, result.ranks) / 1e9', 'row.algorithm_bandwidth() / 1e9',
             NODES_TEST),
    Mutation("a shared folder's file is any file", f'{DOCTOR}/nodes.cc', '         begin == mark;', '         begin != mark;', SEVERAL),
    Mutation('huge pages are counted, not measured', f'{MACHINE}/read_facts.cc',
             'MemoryField(meminfo, "HugePages_Free:") * MemoryField(meminfo, "Hugepagesize:");',
             'MemoryField(meminfo, "HugePages_Free:");', f'//{MACHINE}:read_facts_test //{MACHINE}:diagnose_test'),
    Mutation('a small reserve of huge pages is a finding', f'{MACHINE}/diagnose.cc', 'facts.free_huge_bytes > facts.memory_bytes / kLargeReserveShare',
             'facts.free_huge_bytes >= facts.memory_bytes / kLargeReserveShare', f'//{MACHINE}:read_facts_test //{MACHINE}:diagnose_test'),
    Mutation('dumps may run code', DUMPS, 'class Plain(pickle.Unpickler):',
             'class Plain(pickle.Unpickler):\n    pass\nclass Unused(pickle.Unpickler):', REPORTED),
    Mutation('modules beside the dumps are run', DUMPS, '{} -I -X utf8 -c ', '{} -X utf8 -c ', REPORTED),
    Mutation('a dump that cannot be read is no failure', DUMPS, 'sys.exit(is_broken or not dumps)', 'sys.exit(0)', REPORTED),
    Mutation('ranks without a dump are not told', DUMPS, 'lost = members[name] - dumps', 'lost = set()', REPORTED),
    Mutation('all collectives of all dumps are kept', DUMPS, 'entries[-max(1, ROOM // len(files) // len(own)):]', 'entries[:]', REPORTED),
    Mutation('collectives that were left out are not told', DUMPS, 'if name in older:', 'if name in lost:', REPORTED),
    Mutation("a failed torchfrtrace tells its whole traceback's first line", DUMPS, ': words->lines.back()));', ': words->lines.front()));', REPORTED),
    Mutation('lines of torchfrtrace are told as often as it says them', DUMPS, '|| !seen.emplace(line).second) continue;', ') continue;', REPORTED),
    Mutation('a program behind the look is judged as a worker in session', f'{DOCTOR}/doctor_command.cc', 'session->Leave();', '', SEVERAL),
    Mutation('beside strangers leftovers are known by their environment alone', 'agent/custody/custody.cc',
             'workers_.count(entry.session) > 0 ||', '', '//tests/e2e:processes_test'),
    Mutation('sessions stay in a folder that is gone', 'agent/node.cc', 'sessions_ != nullptr && !sessions_->IsInPlace()', 'false',
             '//tests/e2e:surroundings_test'),
    Mutation("a node's GPUs are NVIDIA's alone", 'launcher/machine.cc', 'CountUsable(CountAmd(root),',
             'CountUsable(0 * CountAmd(root),', '//launcher:place_test'),
    Mutation('a switch of `convene launch` is on by 1 alone', 'launcher/launch/plan.cc', 'ParseValue(value, &is_on).ok() && is_on', 'value == "1" && !is_on',
             '//launcher/launch:plan_test'),
]
