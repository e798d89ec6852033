"""Bugs planted in the planner: its memory, its time, and the choice; and in its answer to an elastic restart."""

from planting import Mutation

PLANNER = 'worker_runtime/planner'
MEMORY = f'{PLANNER}/memory.cc'
TIME = f'{PLANNER}/step_time.cc'
COUNTS = f'{PLANNER}/counts.cc'
SEARCH = f'{PLANNER}/search.cc'
COLLECTIVES = f'{PLANNER}/collectives.cc'
YAML = f'{PLANNER}/train_yaml.cc'
CHOICE = f'//{PLANNER}:search_test'
HARDWARE = f'//{PLANNER}:hardware_test'
UTILIZATION = f'//{PLANNER}:utilization_test'
PUBLISHED = f'//{PLANNER}:published_test'
PLANNED = '//worker_runtime/trainer:planned_memory_test'
ELASTIC = 'worker_runtime/options/elastic_layout.cc'
DECIDED = '//worker_runtime/options:elastic_layout_test'
OPS = f'{PLANNER}/measured_ops.cc'
MEASURED = f'//{PLANNER}:measured_ops_test'
MEASURED_FILE = '//launcher/plan:measured_test'
LOADED = '//worker_runtime/options:planned_config_test'

MUTATIONS = [
    Mutation('a planned tied table counts twice on one rank', COUNTS,
             'if (sum.has_embedding && sum.has_head) sum.whole -= units.head.tied;', '', PLANNED),
    Mutation('a frozen matrix counts as one that learns', COUNTS, ' - 2 * unit.frozen;', ' - 0 * unit.frozen;', UTILIZATION),
    Mutation('planned gradients are as wide as the weights', MEMORY,
             '(cuts_gradients ? own : elements) * 4;', '(cuts_gradients ? own : elements) * element;', PLANNED),
    Mutation('every planned stage keeps as many micro batches as the first one', MEMORY,
             'chunks == 1 ? ranks - stage : ', 'chunks == 1 ? ranks : ', CHOICE),
    Mutation('the planned place for gathered units is one', MEMORY, '(slots.first + slots.second) * element', 'slots.first * element', PLANNED),
    Mutation('a plan forgets the 8-bit weights that are turned round', MEMORY, 'parts.parameters += 2 * blocks', 'parts.parameters += blocks', PLANNED),
    Mutation('a plan of one micro batch lends nothing', MEMORY, 'parts.activations -= take(kept);', 'parts.activations -= take(kept) * 0;', PLANNED),
    Mutation('the bubble of a plan has no chunks', TIME,
             '(stage.forward + stage.backward) / strategy.virtual_stages', '(stage.forward + stage.backward)', PUBLISHED),
    Mutation('stages send on the link between the first two of them', TIME,
             'GroupIn(cluster_, stride, layout.pp)', 'GroupIn(cluster_, stride, 2)', CHOICE),
    Mutation('the bubble of zb-h1 has the weight halves', TIME, 'one -= 2 * stage.weights;', 'one -= 0 * stage.weights;', CHOICE),
    Mutation('a plan with halves keeps as few micro batches as 1f1b', MEMORY, 'if (strategy.zero_bubble) return std::min(ranks, microbatches);', '', CHOICE),
    Mutation('a plan puts off no weight half', MEMORY, 'std::min<int64_t>(stage + 1, microbatches)', 'std::min<int64_t>(0, microbatches)', PLANNED),
    Mutation('recomputed factors of put off products take no room', MEMORY, 'if (is_recomputed) deferred += bytes;', '', PLANNED),
    Mutation('zb-h1 is planned with too few micro batches', SEARCH, 'MicroBatchesOf(job_, strategy).count < strategy.layout.pp',
             'MicroBatchesOf(job_, strategy).count < 1', CHOICE),
    Mutation('a planned collective between nodes is as fast on any number of ranks', COLLECTIVES,
             '/ (1 + group.ranks / kRanksOfHalfRate)', '', f'{CHOICE} {HARDWARE}'),
    Mutation("the hops of a planned ring take no time", COLLECTIVES, '(group.ranks - 1) * slowest.latency', '0 * slowest.latency', HARDWARE),
    Mutation('a planned all-reduce never goes by a tree', COLLECTIVES,
             'if (!group.crosses_domains() || cluster.gpu.is_cpu) return ring;', 'return ring;', CHOICE),
    Mutation("a planned all-reduce of Gloo's goes by a tree", COLLECTIVES, '|| cluster.gpu.is_cpu) return ring;', ') return ring;', CHOICE),
    Mutation('a plan has micro batches that the trainer refuses', SEARCH,
             'return MicroBatchesOf(job, strategy).size * length * hidden < kLargestProduct;', 'return hidden > 0;', LOADED),
    Mutation('copies that are asked for are left out where they are of no use', SEARCH, 'if (wishes_.dp_replicate.has_value()) return true;', '', CHOICE),
    Mutation('a lonely rank has the stage of ZeRO that the search likes', SEARCH,
             'if (layout.dp == 1 && wishes_.zero_stage.has_value()) return stage == *wishes_.zero_stage;', '', CHOICE),
    Mutation('copies that are asked for are not kept', SEARCH, 'if (!Allows(wishes_.dp_replicate, copies)) continue;', '', CHOICE),
    Mutation('gathers after the step are hidden', TIME, 'hides_fetch ? stage.forward : 0', 'hides_fetch ? stage.forward : stage.forward', CHOICE),
    Mutation('a plan may take all of the memory', SEARCH,
             'std::min(kUsableShare * has, kWithNccl * has - memory.nccl)', 'has - memory.nccl', CHOICE),
    Mutation("NCCL's buffers take no room", SEARCH, 'kWithNccl * has - memory.nccl', 'kWithNccl * has', CHOICE),
    Mutation('the search stops at the first recomputation, fit or not', SEARCH,
             'if (Consider(strategy) || wishes_.recompute.has_value()) return;', 'Consider(strategy);\n      return;', CHOICE),
    Mutation('ranks that share experts hold everything', SEARCH, 'if (layout.ep > 1) return Rung::kExperts;', '', CHOICE),
    Mutation('the ranking begins with the slowest layout', SEARCH, 'return Score(a) < Score(b);', 'return Score(a) > Score(b);', CHOICE),
    Mutation('best takes the slowest layout', ELASTIC, '{judge.Steps(layout), ', '{-judge.Steps(layout), ', DECIDED),
    Mutation('best times every layout on a CPU', ELASTIC, 'hardware == nullptr ? UsualCluster("cpu", 1) : hardware->cluster', 'UsualCluster("cpu", 1)',
             DECIDED),
    Mutation('best forgets that the planner has no time for some layouts', ELASTIC,
             'if (!Legal(job_, strategy, counts_)) return std::numeric_limits<double>::infinity();', '', DECIDED),
    Mutation('best has no time for 8-bit products on a CPU', ELASTIC, 'options.float8 && gpu.fp8 > 0,', 'options.float8,', DECIDED),
    Mutation('a measured product is as fast in any width', OPS, '{rate, rate / s.rows, rate / s.width}', '{rate, rate / s.rows, 0 / s.width}', MEASURED),
    Mutation('measured arithmetic of another type counts', OPS, 'if (ops.dtype != job.dtype) continue;', '', MEASURED),
    Mutation("the measured rate of a GPU takes its peak's place", OPS, 'if (gpu->is_cpu) {', 'if (true) {', MEASURED),
    Mutation('a measured attention is that of the farthest sequence', OPS,
             'return distance(a) < distance(b);', 'return distance(a) > distance(b);', MEASURED),
    Mutation('attention is as fast in heads of any width', OPS, 'efficiency->half_head = of_head * rate;', '', MEASURED),
    Mutation('ranks that timed a CPU are planned as GPUs', 'launcher/plan/measured.cc',
             'if (measured.is_cpu && !cluster->gpu.is_cpu) {', 'if (false) {', MEASURED_FILE),
    Mutation('ranks of a CPU have their usual network, whatever was given', 'launcher/plan/measured.cc',
             'if (!given.network) cluster->network', 'if (!given.network || measured.is_cpu) cluster->network', MEASURED_FILE),
    Mutation('a GPU that was given is thrown away for the ranks of a file', 'launcher/plan/measured.cc', 'if (given.gpu) {', 'if (false) {', MEASURED_FILE),
    Mutation('a plan takes arithmetic of any number of ranks', 'launcher/plan/measured.cc',
             'if (cluster->gpu.node != measured.ranks_of_node) {', 'if (false) {', MEASURED_FILE),
    Mutation('the memory of a machine counts whole for each rank on its CPU', 'launcher/plan/measured.cc',
             'measured.is_cpu ? measured.ranks_of_node : 1', '1', MEASURED_FILE),
    Mutation('each rank tells its own time of its arithmetic', 'worker_runtime/bench/compute.cc',
             'communicators_.host->AllReduce(absl::MakeSpan(&row.seconds, 1), ReduceOp::kMax, host)',
             'communicators_.host->Barrier(host)', '//worker_runtime/bench:bench_test'),
    Mutation('an emitted configuration has no copies', YAML, '"\\ndp_replicate_size: ", layout.dp_replicate,', '"\\ndp_replicate_size: 1",', LOADED),
    Mutation('an emitted configuration has no chunks', YAML, 'if (strategy.virtual_stages > 1) {', 'if (strategy.virtual_stages > 100) {', LOADED),
    Mutation('planned rounds of chunks have as many micro batches as there are stages', MEMORY,
             '(chunks - 1) * round + 2', '(chunks - 1) * ranks + 2', PLANNED),
    Mutation('chunks never wait for micro batches to come round', TIME,
             'ranks - 1 + (strategy.virtual_stages - 1) * waiting', 'ranks - 1 + 0 * waiting', CHOICE),
    Mutation('no group lies on both sides of a border of machines', COLLECTIVES, 'domain % (stride * ranks) != 0', 'domain < 0', HARDWARE),
    Mutation('a plan forgets the dense blocks beside those with experts', MEMORY,
             'std::max(of_dense.ffn_recomputed, of_experts.ffn_recomputed)', 'of_experts.ffn_recomputed', PLANNED),
    Mutation("a plan has no room for the biases of experts' rows", MEMORY,
             'std::max(s.hidden, s.expert_ffn) : s.expert_ffn', 's.expert_ffn : s.expert_ffn', PLANNED),
    Mutation('planned Muon keeps no second moment of tables and vectors', MEMORY,
             'if (job.whole_matrices) parts.optimizer += (elements - matrices)', 'if (job.whole_matrices) parts.optimizer += 0 * (elements - matrices)',
             PLANNED),
    Mutation('a cluster file may have domains of a part of a machine', 'launcher/plan/cluster_file.cc',
             'if (domain >= node) return absl::OkStatus();', 'return absl::OkStatus();', '//launcher/plan:cluster_file_test'),
    Mutation('degrees that are legal are told to stand in the way', SEARCH, 'if (searcher.Take(0).tried > 0) names', 'names', CHOICE),
]
