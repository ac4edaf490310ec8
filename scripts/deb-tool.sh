#!/usr/bin/env bash
# Unpacks Debian packages into a folder, without installing them: scripts/deb-tool.sh FOLDER PACKAGE...
# An installed prometheus would be started as a service, and installing needs root.
set -euo pipefail

folder=$1
shift
if ! command -v apt-get > /dev/null; then
    echo "cannot fetch $*: apt-get not found" >&2
    exit 1
fi
packages=$(mktemp -d)
trap 'rm -rf "$packages" "$folder.part"' EXIT
# apt's own user must be able to write there
chmod 777 "$packages"
fetch() { (cd "$packages" && apt-get download -q "$@"); }
if ! fetch "$@"; then
    if [ "$(id -u)" = 0 ]; then apt-get update -q; else sudo apt-get update -q; fi < /dev/null
    fetch "$@"
fi
mkdir -p "$folder.part"
for package in "$packages"/*.deb; do
    dpkg-deb -x "$package" "$folder.part"
done
rm -rf "$folder"
mv "$folder.part" "$folder"
