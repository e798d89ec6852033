#include "rendezvous/wire/status_json.h"

#include <google/protobuf/util/json_util.h>

#include "rendezvous/wire/wire.h"
#include "tools/base/check.h"

namespace convene::rendezvous {

std::string StatusJson(const std::vector<JobView>& views) {
  pb::StatusReply reply;
  for (const JobView& view : views) ToWire(view, reply.add_jobs());
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  // This fails only for messages with Any or a bad Timestamp in them.
  CONVENE_CHECK(google::protobuf::util::MessageToJsonString(reply, &json, options).ok());
  return json;
}

}  // namespace convene::rendezvous
