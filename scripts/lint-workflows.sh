#!/usr/bin/env bash
# Checks the workflows and the other files of .github: scripts/lint-workflows.sh VENV [FOLDER]
#
# All files against their schemas, and the workflows for what makes them unsafe: actions that are not pinned to a commit, text of others in
# scripts, more rights than a job needs. FOLDER has a .github and action.yml; the repository's root by default.
set -euo pipefail

python=$PWD/$1/bin/python3 zizmor=$PWD/$1/bin/zizmor
cd "${2:-$(dirname "$0")/..}"

status=0

check() {
    local schema=$1
    shift
    # as a module, since the scripts of a venv hold its original path
    "$python" -m check_jsonschema --builtin-schema "$schema" "$@" || status=1
}

check vendor.github-workflows .github/workflows/*.yml
check vendor.github-actions action.yml
check custom.github-workflows-require-timeout .github/workflows/*.yml
check vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
check vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
check vendor.renovate .github/renovate.json
"$zizmor" --offline --quiet --no-progress --persona auditor --config .github/zizmor.yml .github/workflows action.yml || status=1

# a workflow calls targets that exist
targets=$(sed -nE 's/^([a-z][a-z0-9 -]*):( .*)?$/\1/p' Makefile release.mk | tr ' ' '\n' | sort -u)
while IFS=: read -r file number line; do
    for target in $(sed -E 's/.*\bmake ((-[^ ]+ )*)//; s/[;&|#)<>"].*//' <<< "$line"); do
        case $target in
            *=* | -*) ;;
            *)
                if ! grep -qx -- "$target" <<< "$targets"; then
                    echo "$file:$number: there is no target '$target' in the Makefile" >&2
                    status=1
                fi
                ;;
        esac
    done
done < <(grep -nE '\bmake [a-zA-Z-]' .github/workflows/*.yml | grep -v '^[^:]*:[0-9]*: *#' || true)
exit $status
