#!/usr/bin/env python3
"""Validates a CycloneDX file against the schema of its version, and its content against Cargo.lock: scripts/check-sbom.py FILE

Needs cyclonedx-python-lib, the reference implementation in Python, which has the schemas.
"""

import json
import pathlib
import re
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator


def main(file):
    text = pathlib.Path(file).read_text(encoding="utf-8")
    bom = json.loads(text)
    try:
        version = SchemaVersion.from_version(str(bom.get("specVersion")))
    except ValueError:
        sys.exit(f"{file}: no known version of CycloneDX: {bom.get('specVersion')}")
    error = JsonStrictValidator(version).validate_str(text)
    if error is not None:
        sys.exit(f"{file}: not valid CycloneDX {bom['specVersion']}: {error}")
    locked = pathlib.Path("Cargo.lock").read_text(encoding="utf-8")
    locked = set(re.findall(r'^name = "(.+)"\nversion = "(.+)"$', locked, re.MULTILINE))
    listed = {(component["name"], component["version"]) for component in bom.get("components", [])}
    if unknown := listed - locked:
        sys.exit(f"{file}: not in Cargo.lock: {sorted(unknown)}")
    # what the program links whatever its settings are
    if missing := {"h2", "hyper", "ring", "tokio"} - {name for name, _ in listed}:
        sys.exit(f"{file}: missing: {sorted(missing)}")
    print(f"{file}: valid CycloneDX {bom['specVersion']}, {len(listed)} components")


main(*sys.argv[1:])
