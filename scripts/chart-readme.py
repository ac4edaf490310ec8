#!/usr/bin/env python3
"""Writes charts/weir/README.md, whose table of values is made from values.yaml and its comments.

With --check it writes nothing, and fails if the file is not up to date. Needs PyYAML.
"""

import json
import pathlib
import sys

import yaml

CHART = pathlib.Path(__file__).resolve().parent.parent / "charts" / "weir"
HEAD = """# weir

A Helm chart for weir, a rate limit service for Envoy. [docs/kubernetes.md](../../docs/kubernetes.md) leads from
`helm install` to the first rejected request, and to Istio and Envoy Gateway.

```sh
helm install weir charts/weir --namespace edge --create-namespace --values my-values.yaml
```

```yaml
# my-values.yaml
image: { registry: registry.example.com, repository: weir }
replicas: 2
redis: { url: "redis:6379" }
rules:
  files:
    shop.yaml:
      domain: shop
      descriptors:
        - key: tenant
          rate_limit: { unit: minute, requests_per_unit: 100 }
```

- The chart is in this repository, and not yet in one of charts. There is no published image: build it with `docker build --tag weir .`
- **Rules** are applied by running pods: a change of `rules.files`, or of the ConfigMap that `rules.existingConfigMap` names,
  causes no rollout. Before each install and upgrade a Job checks them, so that rules with errors reach no pod. With `rules.xds`
  they come from a control plane instead. In a file that is a tree, as above, quote domains, keys and values that YAML reads as
  numbers or booleans; the chart refuses them otherwise.
- **Settings** are variables of the pod: a change rolls the Deployment, one pod at a time. Secrets that the chart does not
  write are read when a pod starts (certificates of the gRPC port: when they change), so restart the pods after a change of theirs.
- **More than one pod** needs a shared store (`redis` or `memcached`). Without one the chart refuses to render, because each pod would
  count for itself.
- **Stopping**: a pod that must stop fails its health check at once and serves for `stop.delaySeconds` more, so that no
  request is lost. The grace period of the pod is computed from `stop`.
- The pod runs under Kubernetes' restricted pod security, as a user that is not root, and with a read-only file system.
- The chart is tested with Helm 4 and against the schemas of Kubernetes 1.30 and 1.37.

This file is made by `scripts/chart-readme.py` from `values.yaml`.

## Values

| value | default | meaning |
| --- | --- | --- |
"""


def comment_above(lines, line, column):
    """Returns the text of the comment lines directly above `line`, which are indented by `column`."""
    found = []
    while line > 0 and lines[line - 1].startswith(" " * column + "# "):
        line -= 1
        found.insert(0, lines[line][column + 2 :])
    return " ".join(found)


def rows(node, lines, path):
    """Yields (path, default, meaning) of each value below a mapping."""
    for key, value in node.value:
        name = f"{path}.{key.value}" if path else key.value
        meaning = comment_above(lines, key.start_mark.line, key.start_mark.column)
        # a mapping on lines of its own is a group; one in braces is a value
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from rows(value, lines, name)
        else:
            default = json.dumps(yaml.safe_load(yaml.serialize(value)), ensure_ascii=False)
            yield name, default, meaning


def readme():
    text = (CHART / "values.yaml").read_text()
    table = rows(yaml.compose(text), text.splitlines(), "")
    cells = ([f"`{name}`", f"`{default}`", meaning.replace("|", r"\|")] for name, default, meaning in table)
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in cells)


def main():
    path = CHART / "README.md"
    if "--check" not in sys.argv:
        path.write_text(readme())
    elif not path.exists() or path.read_text() != readme():
        sys.exit(f"{path} is not up to date: run scripts/chart-readme.py")


main()
