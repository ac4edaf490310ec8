#!/usr/bin/env bash
# Installs Debian packages without prompts: scripts/apt-install.sh PACKAGE...
set -euo pipefail

if ! command -v apt-get > /dev/null; then
    echo "cannot install $*: apt-get not found; install it manually and put it on the PATH" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" != 0 ]; then
    as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -q < /dev/null
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" < /dev/null
