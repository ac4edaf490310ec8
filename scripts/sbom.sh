#!/usr/bin/env bash
# Writes the CycloneDX list of what the program contains, and validates it: scripts/sbom.sh CARGO_CYCLONEDX VENV FILE
#
# It lists the crates of the program for Linux: not those of tests, and not those of other platforms.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$1 venv=$2 file=$3
target=$(uname -m)-unknown-linux-gnu
# it writes beside each Cargo.toml of the workspace
name=.sbom-$$
trap 'rm -f "$name.json" {benches/support,crates/*}/"$name.json"' EXIT
"$program" cyclonedx --format json --spec-version 1.5 --target "$target" --override-filename "$name" --quiet
"$venv/bin/python3" scripts/check-sbom.py "$name.json"
mkdir -p "$(dirname "$file")"
mv "$name.json" "$file"
