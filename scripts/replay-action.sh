#!/usr/bin/env bash
# What action.yml does, with its inputs as variables: replays, and comments what differs. Exits as weir replay does.
set -euo pipefail

text=$(mktemp)
arguments=(replay)
read -ra words <<< "$RECORDING"
arguments+=("${words[@]}" --config "$CONFIG" --max-increase "${MAX_INCREASE:-100%}")
if [[ -n ${KEY_FILE:-} ]]; then arguments+=(--key-file "$KEY_FILE"); fi
if [[ -n ${MAP:-} ]]; then
    read -ra words <<< "$MAP"
    for word in "${words[@]}"; do arguments+=(--map "$word"); done
    arguments+=(--time "$TIME" --domain "$DOMAIN")
fi

# the old rules, as the base has them, if it has some
if [[ -n ${BASE:-} ]]; then
    old=.weir-replay-old
    rm -rf "$old"
    mkdir "$old"
    trap 'rm -rf "$old" "$text"' EXIT
    if git cat-file -e "$BASE:./$CONFIG" 2> /dev/null; then
        git archive "$BASE" -- "$CONFIG" | tar -x -C "$old"
        arguments+=(--old "$old/$CONFIG")
    else
        echo "::warning::$CONFIG is not in $BASE: the old decisions are those of the recording"
    fi
fi

weir=("${WEIR:-weir}")
if [[ $WEIR == docker://* ]]; then
    weir=(docker run --rm --network none --volume "$PWD:/work:ro" --workdir /work "${WEIR#docker://}")
fi

status=0
"${weir[@]}" "${arguments[@]}" > "$text" || status=$?
cat "$text"
if [[ $status == 1 ]]; then exit 1; fi

sentence=$(head -n 1 "$text")
echo "sentence=$sentence" >> "${GITHUB_OUTPUT:-/dev/null}"
body=$(mktemp)
{
    echo "<!-- weir replay -->"
    echo "**Rate limits:** $sentence"
    if [[ $status == 2 ]]; then echo; echo "This is more than \`$MAX_INCREASE\`."; fi
    echo
    echo "<details><summary>What differs</summary>"
    echo
    # names of others stay text
    sed -e 's/^/    /' <<< "$(tail -n +2 "$text")"
    echo
    echo "</details>"
} > "$body"
cat "$body" >> "${GITHUB_STEP_SUMMARY:-/dev/null}"
if [[ ${COMMENT:-} == true && -n ${PULL_REQUEST:-} ]]; then
    comments=repos/$GITHUB_REPOSITORY/issues
    ours='.[] | select(.body | startswith("<!-- weir replay -->")) | .id'
    if id=$(gh api --paginate --jq "$ours" "$comments/$PULL_REQUEST/comments" | tail -n 1) \
        && if [[ -n $id ]]; then
            gh api --silent --method PATCH --field "body=@$body" "$comments/comments/$id"
        else
            gh api --silent --field "body=@$body" "$comments/$PULL_REQUEST/comments"
        fi; then :; else
        echo "::warning::the result could not be commented: it needs the right pull-requests=write"
    fi
fi
exit "$status"
