#!/usr/bin/env bash
# Pushes the image and the chart that `make package` made: scripts/publish.sh HELM VERSION IMAGE CHARTS ARTIFACTS TO
#
# IMAGE is the image's name without a tag, CHARTS the repository of charts without oci://. Writes to the file TO what was pushed: lines
# name=value. PLAIN_HTTP=1 pushes to a registry without TLS, as in a test. Needs skopeo, and that you are logged in.
set -euo pipefail
cd "$(dirname "$0")/.."

helm=$1 version=$2 image=$3 charts=$4 artifacts=$5 to=$6
skopeo=() push=()
if [ "${PLAIN_HTTP:-0}" = 1 ]; then
    skopeo=(--dest-tls-verify=false) push=(--plain-http)
fi
mkdir -p "$(dirname "$to")"

# the digest that the chart already names
digest=$(tar -xOf "$artifacts/weir-$version-image.tar" index.json | grep -oE '"digest":"sha256:[0-9a-f]{64}"' | cut -d '"' -f 4)
# read whole: a pipe that grep leaves early makes tar fail, and with it the pipeline
values=$(tar -xOf "$artifacts/weir-$version-chart.tgz" weir/values.yaml)
if ! grep -q "digest: $digest" <<< "$values"; then
    echo "the chart does not name the image $digest: make package makes both" >&2
    exit 1
fi
skopeo copy --all --preserve-digests "${skopeo[@]}" \
    "oci-archive:$artifacts/weir-$version-image.tar:$version" "docker://$image:$version" >&2
pushed=$("$helm" push "${push[@]}" "$artifacts/weir-$version-chart.tgz" "oci://$charts" 2>&1)
echo "$pushed" >&2
chart=$(sed -n 's/^Digest: //p' <<< "$pushed")
{
    echo "image=$image@$digest"
    echo "image-name=$image"
    echo "image-digest=$digest"
    echo "chart=$charts/weir@$chart"
} > "$to"
cat "$to"
