#!/usr/bin/env bash
# Puts what archives and packages contain into a folder: scripts/stage.sh PROGRAM FOLDER
#
# The program without symbols, its man pages and its completions, which it prints itself.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$1 folder=$2
rm -rf "$folder"
mkdir -p "$folder/completions"
strip -o "$folder/weir" "$program"
"$program" man "$folder/man"
"$program" completions bash > "$folder/completions/weir.bash"
"$program" completions zsh > "$folder/completions/_weir"
"$program" completions fish > "$folder/completions/weir.fish"
# dated by the commit, so that the same commit makes the same bytes
date=$(date --utc --rfc-email --date "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || echo 0)}")
scripts/release.py debian-changelog "$date" > "$folder/changelog"
