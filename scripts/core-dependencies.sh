#!/usr/bin/env bash
# Compares the list of the core's dependencies in ARCHITECTURE.md with what cargo resolves without default features.
# `--write` updates the list instead. A program that embeds weir compiles every crate in it.
set -euo pipefail
cd "$(dirname "$0")/.."

page=ARCHITECTURE.md
begin='<!-- core dependencies: begin -->'
end='<!-- core dependencies: end -->'

resolved() {
    echo '```text'
    cargo tree --locked --no-default-features --edges normal,build --prefix none --format '{p}' |
        awk '$1 !~ /^weir/ { print $1 }' | sort -u
    echo '```'
}

if [ "${1:-}" = --write ]; then
    list=$(resolved)
    awk -v begin="$begin" -v end="$end" -v list="$list" '
        $0 == begin { print; print list; skipped = 1 }
        $0 == end { skipped = 0 }
        !skipped { print }' "$page" > "$page.new"
    mv "$page.new" "$page"
    exit
fi

written() { awk -v begin="$begin" -v end="$end" '$0 == end { on = 0 } on { print } $0 == begin { on = 1 }' "$page"; }
if ! diff <(written) <(resolved); then
    echo "the core's dependencies differ from the list in $page (< listed, > resolved)." >&2
    echo "If the change is intended, run scripts/core-dependencies.sh --write." >&2
    exit 1
fi
