#!/usr/bin/env bash
# Builds the image of a program that exists already, and saves it: scripts/image.sh PROGRAM NAME:TAG TO.tar
#
# The program must run on Debian 12. Where the base image of the Dockerfile is neither here nor in a registry in reach, a stand-in
# of this machine's own libraries is used, and the image is not for others; with RELEASE=1 that is an error.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$1 name=$2 to=$3
docker=$(scripts/docker-client.sh)
export DOCKER_BUILDKIT=1
binary=weir-test-binary:release-$$
trap '"$docker" image rm --force "$binary" > /dev/null 2>&1 || true' EXIT

# also makes the base image, if need be
base=$(scripts/test-images.sh "$docker" "$program" "release-$$")
if [ "$("$docker" image inspect --format '{{index .Config.Labels "weir-test"}}' "$base" 2> /dev/null)" = made-locally ]; then
    echo "the base image $base was made of this machine's libraries: $to is for tests only" >&2
    [ "${RELEASE:-0}" != 1 ] || exit 1
fi
"$docker" build --quiet --build-arg "BINARY=$binary" --build-arg "BASE=$base" --tag "$name" . > /dev/null
mkdir -p "$(dirname "$to")"
"$docker" save --output "$to" "$name"
