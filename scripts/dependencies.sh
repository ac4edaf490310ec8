#!/usr/bin/env bash
# Fails if a crate of weir needs more crates of others than it may: scripts/dependencies.sh CRATE MOST
set -euo pipefail
cd "$(dirname "$0")/.."

crate=$1 most=$2
others=$(cargo tree --locked -p "$crate" --edges normal,build --prefix none --format '{p}' | cut -d ' ' -f 1 | sort -u | grep -v '^weir-')
count=$(wc -l <<< "$others")
if ((count > most)); then
    echo "$crate compiles $count crates of others, and may compile $most:" $others >&2
    exit 1
fi
echo "$crate compiles $count crates of others"
