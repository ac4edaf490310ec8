#!/usr/bin/env bash
# Makes an image in which systemd runs, for the test of the Debian package: scripts/systemd-image.sh DOCKER
#
# It is this machine's own distribution, since the package under test is linked to its C library. Prints the image's name. Takes a
# minute the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

docker=$1
. /etc/os-release
image=weir-test-systemd:$VERSION_CODENAME
if ! "$docker" image inspect "$image" > /dev/null 2>&1; then
    as_root=()
    if [ "$(id -u)" != 0 ]; then
        as_root=(sudo)
    fi
    command -v debootstrap > /dev/null || scripts/apt-install.sh debootstrap >&2
    folder=$(mktemp -d)
    trap '"${as_root[@]}" rm -rf "$folder"' EXIT
    "${as_root[@]}" env PATH="$PATH:/usr/sbin:/sbin" debootstrap --variant=minbase --include=systemd "$VERSION_CODENAME" "$folder/root" >&2
    "${as_root[@]}" tar -C "$folder/root" -c . | "$docker" import --change 'ENV container=docker' - "$image" > /dev/null
fi
echo "$image"
