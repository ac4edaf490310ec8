#!/usr/bin/env bash
# Prepares images for the Dockerfile and its tests: scripts/test-images.sh DOCKER WEIR TAG [ENVOY]
#
# Builds weir-test-binary:TAG, which holds the program WEIR for the Dockerfile's argument BINARY. Then makes sure that the image of the
# Dockerfile's argument BASE exists, and with ENVOY those of compose.yaml. Prints BASE, without the digest if it is a stand-in. An image that is neither here nor in a registry in reach is made of this machine's own
# programs and libraries, which must be those of Debian 12.
set -euo pipefail

docker=$1 weir=$2 tag=$3 envoy=${4:-}
export DOCKER_BUILDKIT=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# copies programs and the libraries that they load, under the paths that they have here
with_libraries() {
    local root=$1 file
    shift
    for file in "$@" $(ldd "$@" 2> /dev/null | grep -oE '/[^ :]+\.so[^ :]*' | sort -u); do
        mkdir -p "$root$(dirname "$file")"
        cp -L "$file" "$root$file"
    done
}

has_here() { "$docker" image inspect "$1" > /dev/null 2>&1; }

has() {
    has_here "$1" || timeout 120 "$docker" pull --quiet "$1" > /dev/null 2>&1
}

# IMAGE, then further lines of its Dockerfile; the files are in $folder/root
build() {
    local image=$1
    shift
    mkdir -p "$folder/root/tmp" "$folder/root/etc"
    chmod 1777 "$folder/root/tmp"
    printf '%s\n' 'root:x:0:0::/root:/sbin/nologin' 'nobody:x:65534:65534::/:/sbin/nologin' 'nonroot:x:65532:65532::/:/sbin/nologin' > "$folder/root/etc/passwd"
    echo 'hosts: files dns' > "$folder/root/etc/nsswitch.conf"
    printf '%s\n' 'FROM scratch' 'COPY root /' "$@" > "$folder/Dockerfile"
    "$docker" build --quiet --label weir-test=made-locally --tag "$image" "$folder" > /dev/null
    rm -rf "$folder/root"
}

libraries=$(dirname "$(ldd "$weir" | grep -oE '/[^ ]+/libc\.so\.6')")

mkdir -p "$folder/root"
strip -o "$folder/root/weir" "$weir"
build "weir-test-binary:$tag"

base=$(sed -n 's/^ARG BASE=//p' Dockerfile)
if ! has "$base"; then
    base=${base%@*}
fi
if ! has_here "$base"; then
    mkdir -p "$folder/root/etc/ssl/certs"
    cp -L /etc/ssl/certs/ca-certificates.crt "$folder/root/etc/ssl/certs/" 2> /dev/null || true
    with_libraries "$folder/root" "$libraries"/lib{c,m,gcc_s,resolv,nss_dns,nss_files}.so.[0-9]
    build "$base" 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' 'USER 65532'
fi
echo "$base"
[ -n "$envoy" ] || exit 0
for image in $(sed -n 's/^ *image: \([^$]*\)$/\1/p' compose.yaml); do
    has "$image" && continue
    case $image in
        redis:*) program=$(command -v redis-server) name=redis-server ;;
        envoyproxy/envoy:*) program=$(readlink -f "$envoy") name=envoy ;;
        *) echo "no program for $image" >&2 && exit 1 ;;
    esac
    with_libraries "$folder/root" "$program" "$libraries"/libresolv.so.2
    mkdir -p "$folder/root/usr/local/bin"
    mv "$folder/root$program" "$folder/root/usr/local/bin/$name"
    build "$image" 'ENV PATH=/usr/local/bin'
done
