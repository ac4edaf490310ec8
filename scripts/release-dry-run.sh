#!/usr/bin/env bash
# Builds everything that a release has, from a clean clone of the last commit, and lists it with sizes.
#
# The clone is target/release-dry-run/weir. Only installed tools are taken from here. Nothing is pushed or signed.
set -euo pipefail
cd "$(dirname "$0")/.."

here=$PWD
clone=$here/target/release-dry-run/weir
if [ -n "$(git status --porcelain)" ]; then
    echo "uncommitted changes are not part of the release:" >&2
    git status --short >&2
fi
rm -rf "$clone"
git clone --quiet --no-local "$here" "$clone"
mkdir "$clone/target"
ln -s "$here/target/tools" "$here/target/venv" "$clone/target/"
cd "$clone"
unset CARGO_TARGET_DIR MAKEFLAGS MAKELEVEL

step() {
    echo "=== make $*"
    local start=$SECONDS
    make --no-print-directory "$@"
    echo "=== make $* took $((SECONDS - start)) s"
}

step release-check
step dist
step deb
step sbom
if scripts/docker-client.sh > /dev/null; then
    step package
else
    echo "skipped make package: it needs a Docker engine" >&2
fi
step checksums
make --no-print-directory release-notes > target/release-notes.md
echo
echo "release notes: $(wc -l < target/release-notes.md) lines"
echo "artifacts of $(git log -1 --format='%h, %s'), in ${clone#"$here"/}/target/artifacts:"
cd target/artifacts
find . -maxdepth 1 -type f -printf '%12s  %P\n' | LC_ALL=C sort -k 2
sha256sum --quiet --check SHA256SUMS
