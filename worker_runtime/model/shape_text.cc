#include "worker_runtime/model/shape_text.h"

#include <initializer_list>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace convene::worker {
namespace {

// Six digits where these are all of the number.
std::string Text(double number) {
  std::string text = absl::StrCat(number);
  double read = 0;
  if (absl::SimpleAtod(text, &read) && read == number) return text;
  return absl::StrFormat("%.17g", number);
}

std::string ScalingText(const RopeScaling& scaling) {
  if (scaling.factor == 1) return "";
  std::string text = absl::StrCat(
      " scaled ", Text(scaling.factor), " (", Text(scaling.low_frequency_factor), " to ",
      Text(scaling.high_frequency_factor), " of ", scaling.original_positions, ")");
  if (scaling.kind == RopeScalingKind::kLinear) absl::StrAppend(&text, " linear");
  if (scaling.kind == RopeScalingKind::kYarn) {
    absl::StrAppend(&text, " yarn ", Text(scaling.amplitude), " ", Text(scaling.mscale), " ",
                    Text(scaling.mscale_all_dim), scaling.truncates ? "" : " unrounded");
  }
  return text;
}

std::string ExpertsText(const ExpertConfig& experts) {
  if (experts.count == 0) return "";
  return absl::StrCat(" experts ", experts.chosen, "/", experts.count, "x", experts.ffn_size,
                      " shared ", experts.shared_ffn_size, " dense ", experts.first_dense_layers,
                      " groups ", experts.chosen_groups, "/", experts.groups, " scale ",
                      Text(experts.weight_scale));
}

std::string MultipliersText(const Multipliers& by) {
  if (by == Multipliers()) return "";
  return absl::StrCat(" multipliers ", Text(by.embedding), "/", Text(by.scores), "/",
                      Text(by.branches), "/", Text(by.logits));
}

std::string AdapterText(const AdapterConfig& adapter) {
  if (!adapter.is_on()) return "";
  return absl::StrCat(" adapters ", adapter.rank, " alpha ", Text(adapter.alpha),
                      adapter.dropout > 0 ? absl::StrCat(" dropout ", Text(adapter.dropout)) : "",
                      adapter.rank_stabilized ? " stabilized" : "", " of ",
                      adapter.targets.empty() ? "all" : absl::StrJoin(adapter.targets, ","));
}

// The fields of a text, from the front. A word that is not there leaves all behind it as it is: the
// text is then not the one that the fields make.
class Fields {
 public:
  explicit Fields(absl::string_view text) : rest_(text) {}

  bool Word(absl::string_view word) {
    if (!absl::StartsWith(rest_, word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  absl::string_view Rest() { return std::exchange(rest_, ""); }
  void Number(int* number) {
    if (!absl::SimpleAtoi(Token(), number)) *number = 0;
  }
  void Number(double* number) {
    if (!absl::SimpleAtod(Token(), number)) *number = 0;
  }

 private:
  absl::string_view Token() {
    const absl::string_view token = rest_.substr(0, rest_.find_first_of(" /x)"));
    rest_.remove_prefix(token.size());
    return token;
  }

  absl::string_view rest_;
};

// Each word, and the number behind it.
struct Field {
  absl::string_view word;
  std::variant<int*, double*> number;
};

// Whether the first word is there; then all are read.
bool Read(std::initializer_list<Field> list, Fields* fields) {
  bool is_first = true;
  for (const Field& field : list) {
    if (!fields->Word(field.word) && is_first) return false;
    is_first = false;
    std::visit([&](auto* number) { fields->Number(number); }, field.number);
  }
  return true;
}

}  // namespace

std::string ShapeText(const ModelConfig& c) {
  // These texts are empty where a shape has none of it, as in checkpoints from before it existed.
  const std::string family = c.family == &LlamaFamily() ? "" : absl::StrCat(c.family->name, " ");
  const std::string positions = c.positions == 0 ? "" : absl::StrCat(" positions ", c.positions);
  const std::string window =
      c.sliding_window == 0 && c.window_rope_theta == 0 && c.query_scalar == 0
          ? ""
          : absl::StrCat(" window ", c.sliding_window, " theta ", Text(c.window_rope_theta),
                         " scalar ", Text(c.query_scalar));
  const std::string latents =
      c.rotary_size == 0 ? ""
                         : absl::StrCat(" rotary ", c.rotary_size, " latents ", c.query_rank, "/",
                                        c.key_rank, " values ", c.value_size);
  const std::string caps = c.score_cap == 0 && c.logit_cap == 0
                               ? ""
                               : absl::StrCat(" caps ", Text(c.score_cap), "/", Text(c.logit_cap));
  return absl::StrCat(family, "layers ", c.layers, " hidden ", c.hidden_size, " ffn ", c.ffn_size,
                      " heads ", c.heads, "/", c.kv_heads, "x", c.head_size, " vocabulary ",
                      c.vocabulary_size, " theta ", Text(c.rope_theta), ScalingText(c.rope_scaling),
                      positions, window, latents, caps, MultipliersText(c.multipliers),
                      ExpertsText(c.experts), " epsilon ", Text(c.norm_epsilon),
                      c.tied_embeddings ? " tied" : " untied", AdapterText(c.adapter));
}

std::string WeightsShapeText(ModelConfig config) {
  if (HasExperts(config, 0)) config.ffn_size = config.experts.ffn_size;
  return ShapeText(config);
}

absl::StatusOr<ModelConfig> ParseShapeText(absl::string_view text) {
  ModelConfig c;
  const absl::string_view first = text.substr(0, text.find(' '));
  Fields fields(text);
  if (const Family* family = FamilyNamed(first); family != nullptr) {
    c.family = family;
    fields.Word(absl::StrCat(first, " "));
  }
  Read({{"layers ", &c.layers}, {" hidden ", &c.hidden_size}, {" ffn ", &c.ffn_size}}, &fields);
  Read({{" heads ", &c.heads}, {"/", &c.kv_heads}, {"x", &c.head_size}}, &fields);
  Read({{" vocabulary ", &c.vocabulary_size}, {" theta ", &c.rope_theta}}, &fields);
  RopeScaling& scaling = c.rope_scaling;
  if (Read({{" scaled ", &scaling.factor},
            {" (", &scaling.low_frequency_factor},
            {" to ", &scaling.high_frequency_factor},
            {" of ", &scaling.original_positions}},
           &fields)) {
    fields.Word(")");
    if (fields.Word(" linear")) scaling.kind = RopeScalingKind::kLinear;
    if (Read({{" yarn ", &scaling.amplitude},
              {" ", &scaling.mscale},
              {" ", &scaling.mscale_all_dim}},
             &fields)) {
      scaling.kind = RopeScalingKind::kYarn;
      scaling.truncates = !fields.Word(" unrounded");
    }
  }
  Read({{" positions ", &c.positions}}, &fields);
  Read({{" window ", &c.sliding_window},
        {" theta ", &c.window_rope_theta},
        {" scalar ", &c.query_scalar}},
       &fields);
  Read({{" rotary ", &c.rotary_size},
        {" latents ", &c.query_rank},
        {"/", &c.key_rank},
        {" values ", &c.value_size}},
       &fields);
  Read({{" caps ", &c.score_cap}, {"/", &c.logit_cap}}, &fields);
  Multipliers& by = c.multipliers;
  Read(
      {{" multipliers ", &by.embedding}, {"/", &by.scores}, {"/", &by.branches}, {"/", &by.logits}},
      &fields);
  ExpertConfig& experts = c.experts;
  Read({{" experts ", &experts.chosen},
        {"/", &experts.count},
        {"x", &experts.ffn_size},
        {" shared ", &experts.shared_ffn_size},
        {" dense ", &experts.first_dense_layers},
        {" groups ", &experts.chosen_groups},
        {"/", &experts.groups},
        {" scale ", &experts.weight_scale}},
       &fields);
  Read({{" epsilon ", &c.norm_epsilon}}, &fields);
  c.tied_embeddings = fields.Word(" tied");
  fields.Word(" untied");
  AdapterConfig& adapter = c.adapter;
  if (Read({{" adapters ", &adapter.rank}, {" alpha ", &adapter.alpha}}, &fields)) {
    Read({{" dropout ", &adapter.dropout}}, &fields);
    adapter.rank_stabilized = fields.Word(" stabilized");
    fields.Word(" of ");
    const absl::string_view targets = fields.Rest();
    if (targets != "all") adapter.targets = absl::StrSplit(targets, ',');
  }
  if (ShapeText(c) == text) return c;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no shape of a model that this program knows"));
}

}  // namespace convene::worker
