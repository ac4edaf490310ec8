#!/usr/bin/env bash
# Prints in one line what `make test` has not tested, and why: scripts/skipped-tests.sh FILE
#
# A test that is skipped adds a line to FILE: what it would have tested, a tab, and the reason. Cargo counts it as passed.
set -euo pipefail

if [[ ! -s $1 ]]; then
    echo "nothing was skipped"
    exit
fi
sort "$1" | uniq -c | sed -E 's/^ *//' | awk '{
    count = $1
    sub(/^[0-9]+ /, "")
    split($0, part, "\t")
    line = line (line == "" ? "" : "; ") part[1] " (" count (count == 1 ? " test" : " tests") "): " part[2]
} END { print "not tested: " line }'
