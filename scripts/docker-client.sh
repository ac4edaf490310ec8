#!/usr/bin/env bash
# Prints the first docker client of the PATH that reaches an engine and builds with BuildKit: an old one does so itself, a later one
# with its plug-in buildx.
set -euo pipefail

for client in $(type -ap docker); do
    major=$("$client" --version 2> /dev/null | sed -n 's/^Docker version \([0-9]*\)\..*/\1/p')
    if { [ "${major:-0}" -ge 18 ] && [ "$major" -lt 23 ]; } || "$client" buildx version > /dev/null 2>&1; then
        if "$client" info > /dev/null 2>&1; then
            echo "$client"
            exit 0
        fi
    fi
done
echo "there is no Docker engine whose client builds with BuildKit" >&2
exit 1
