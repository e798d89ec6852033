// A directory's entries without malloc (opendir needs it): for a fork of a process with threads,
// and for signal handlers.
#pragma once

#include <dirent.h>

namespace convene {

// Calls visit(const dirent64&) for each entry, "." and ".." too, of the directory that `directory`
// is open on, from where it stands.
template <typename Visit>
void ForEachEntry(int directory, const Visit& visit) {
  alignas(dirent64) char buffer[4096];
  for (;;) {
    const auto bytes = getdents64(directory, buffer, sizeof(buffer));
    if (bytes <= 0) return;
    for (decltype(+bytes) at = 0; at < bytes;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(buffer + at);
      at += entry->d_reclen;
      visit(*entry);
    }
  }
}

}  // namespace convene
