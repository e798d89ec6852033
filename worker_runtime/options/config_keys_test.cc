#include "worker_runtime/options/config_keys.h"

#include <map>
#include <set>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

TEST_CASE("the table has exactly one row for every key of the proto") {
  std::multiset<std::string> described;
  for (const ConfigKeyRow& row : ConfigKeyTable()) described.insert(row.key);
  std::multiset<std::string> existing;
  for (const ConfigKey& key : ConfigKeys()) existing.insert(key.field->name());
  CHECK(described == existing);
  CHECK(std::set<std::string>(existing.begin(), existing.end()).size() == existing.size());
}

TEST_CASE("the rows of a group stand together") {
  std::set<std::string> closed;
  std::string open;
  for (const ConfigKeyRow& row : ConfigKeyTable()) {
    if (row.group == open) continue;
    CHECK(closed.insert(row.group).second);
    open = row.group;
  }
}

TEST_CASE("defaults are set, and what is derived or the model's own stays unsaid") {
  const TrainConfig config = DefaultConfig();
  CHECK(config.steps() == 100);
  CHECK(config.learning_rate() == 1e-3);
  CHECK(config.resume() == "auto");
  CHECK_FALSE(config.has_min_learning_rate());
  CHECK_FALSE(config.has_dp_size());
  CHECK_FALSE(config.has_model_shape());
  CHECK(config.data().empty());
}

TEST_CASE("an overlay replaces what it says and keeps the rest") {
  TrainConfig config;
  config.set_steps(5);
  config.set_seed(7);
  config.add_data("a.txt");
  config.mutable_model_shape()->set_layers(4);
  TrainConfig winner;
  winner.set_steps(0);
  winner.add_data("b.txt");
  winner.mutable_model_shape()->set_heads(2);
  Overlay(winner, &config);
  CHECK(config.steps() == 0);
  CHECK(config.seed() == 7);
  REQUIRE(config.data_size() == 1);
  CHECK(config.data(0) == "b.txt");
  CHECK(config.model_shape().layers() == 4);
  CHECK(config.model_shape().heads() == 2);
}

TEST_CASE("a text of the wrong type is refused") {
  TrainConfig config;
  const auto set = [&config](const char* name, const char* text) {
    const ConfigKey* key = FindConfigKey(name);
    REQUIRE(key != nullptr);
    return SetFromText(MessageOf(*key, &config), key->field, text);
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  CHECK_STATUS(set("steps", "1.5"), kInvalid, "must be a whole number");
  CHECK_STATUS(set("steps", "99999999999999999999"), kInvalid, "must be a whole number");
  CHECK_STATUS(set("steps", ""), kInvalid, "must be a whole number");
  CHECK_STATUS(set("learning_rate", "fast"), kInvalid, "must be a number");
  CHECK_STATUS(set("learning_rate", "nan"), kInvalid, "must be a number");
  CHECK_STATUS(set("tied_embeddings", "maybe"), kInvalid, "must be true or false");
  CHECK_FALSE(config.has_steps());
}

}  // namespace
}  // namespace convene::worker
