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
`helm install` to the first rejected request.

```sh
helm install weir charts/weir --namespace edge --create-namespace --values my-values.yaml
```

```yaml
# my-values.yaml
image: { registry: registry.example.com }
replicas: 2
redis: { url: "redis:6379" }
rules: { existingConfigMap: my-rules }
```

Running pods apply changed rules; other values replace the pods one by one. More than one pod needs a shared store.

`scripts/chart-readme.py` makes this file from `values.yaml`.

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
