# shellcheck shell=sh
# Puts this bundle's programs on the PATH, and CUDA's libraries where the loader finds them. To be read by a shell, not run:
#   . /path/to/convene/env.sh        (bash and zsh find the folder by themselves; in other shells set CONVENE_HOME first)
if [ -n "${BASH_SOURCE:-}" ]; then
  # shellcheck disable=SC3028,SC3054
  CONVENE_HOME=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
elif [ -n "${ZSH_VERSION:-}" ]; then
  # shellcheck disable=SC2296
  CONVENE_HOME=$(cd "$(dirname "${(%):-%x}")" && pwd)
fi
if [ ! -x "${CONVENE_HOME:-}/bin/convene" ]; then
  echo "env.sh: set CONVENE_HOME to the folder of this file first" >&2
else
  PATH=$CONVENE_HOME/bin:$PATH
  if command -v python3 >/dev/null; then
    LD_LIBRARY_PATH=$("$CONVENE_HOME/find_cuda" || true)
  else
    echo "env.sh: no python3 to look for CUDA's libraries with: where the loader does not find them, set LD_LIBRARY_PATH yourself" >&2
  fi
  export CONVENE_HOME PATH
  export LD_LIBRARY_PATH
  [ -n "${LD_LIBRARY_PATH:-}" ] || unset LD_LIBRARY_PATH
fi
