// The page for people: index.html with style.css and the scripts in it, one text.
#pragma once

namespace convene::rendezvous {

extern const char kPageText[];
// Its Content-Security-Policy: only this style and these scripts, by their hashes, and requests to
// the daemon alone.
extern const char kPagePolicy[];

}  // namespace convene::rendezvous
