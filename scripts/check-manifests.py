#!/usr/bin/env python3
"""Checks Kubernetes manifests against the strict schemas of several Kubernetes versions.

scripts/check-manifests.py SCHEMAS VERSION[,VERSION...] FILE...

SCHEMAS is a folder with a JSON Schema KIND.json for each kind that Kubernetes itself does not have. Prints every error, and the
number of objects. Needs kubernetes-validate, which has the schemas.
"""

import json
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml


def check(thing, version, schemas):
    """Returns the errors of an object as text."""
    try:
        own = schemas / f"{thing['kind']}.json"
        if own.exists():
            jsonschema.validate(thing, json.loads(own.read_text()))
        else:
            kubernetes_validate.validate(thing, version, strict=True)
    except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
        path = ".".join(str(part) for part in error.path)
        return [f"{path}: {error.message}"]
    except kubernetes_validate.SchemaNotFoundError as error:
        return [str(error)]
    return []


def main():
    schemas, versions, *files = sys.argv[1:]
    objects = errors = 0
    for file in files:
        for thing in filter(None, yaml.safe_load_all(pathlib.Path(file).read_text())):
            objects += 1
            for version in versions.split(","):
                for error in check(thing, version, pathlib.Path(schemas)):
                    errors += 1
                    print(f"{file}: {thing['kind']} {thing['metadata']['name']}: Kubernetes {version}: {error}")
    print(f"{objects} objects, {errors} errors")
    sys.exit(errors > 0 or objects == 0)


main()
