#!/usr/bin/env bash
# Renders examples/kubernetes/weir.yaml from the chart: scripts/render-examples.sh HELM [FILE]
set -euo pipefail
cd "$(dirname "$0")/.."

helm=$1 file=${2:-examples/kubernetes/weir.yaml}
{
    echo "# Rendered from charts/weir with values.yaml beside this file, by \`make examples\`."
    # without what says that Helm manages the objects
    "$helm" template weir charts/weir --namespace weir --no-hooks --values examples/kubernetes/values.yaml |
        grep -vE '^ *(helm.sh/chart|app.kubernetes.io/managed-by): |^# Source: '
} > "$file"
