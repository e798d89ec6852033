// Tells a text from tokens and other bytes that were given as one by mistake.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/prepare/sources.h"

namespace convene::worker {

// Whether no text begins so, in whatever encoding of single bytes: more than one in sixteen is a
// control character that texts do not have, or one has the value 0 and the bytes are no UTF-8.
// `separator`: of documents; where it has a byte of value 0, these are none.
bool BeginsAsNoText(absl::string_view head, absl::string_view separator);

// InvalidArgument: the file's content, unpacked, begins as no text does; says which format of
// tokens it has, or what is missing, and what to do. Else as ByteStream::Open and Read.
absl::Status CheckText(const SourceFile& source, absl::string_view separator);

}  // namespace convene::worker
