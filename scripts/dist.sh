#!/usr/bin/env bash
# Builds the program with the profile dist and packs it: scripts/dist.sh VERSION FOLDER TARGET...
#
# TARGET is a target of Rust, such as x86_64-unknown-linux-gnu, whose programs run on this machine.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$1 folder=$2
shift 2
cargo=${CARGO:-cargo}
mkdir -p "$folder"
# programs name their sources in panics: not by the paths of this machine
export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo --remap-path-prefix=$PWD=weir"

# memory that is free for a second goes back to the system
export JEMALLOC_SYS_WITH_MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,narenas:2

for target in "$@"; do
    case $target in
        aarch64-*)
            # the largest pages of such systems are of 64 KiB
            export JEMALLOC_SYS_WITH_LG_PAGE=16
            ;;
    esac
    case $target in
        *-musl)
            # for the C code of ring and jemalloc
            command -v musl-gcc > /dev/null || scripts/apt-install.sh musl-tools
            export "CC_${target//-/_}=musl-gcc"
            ;;
    esac
    "$cargo" build --locked --profile dist --bin weir --features jemalloc --target "$target"
    name=weir-$version-$target
    staged=target/staged-$target
    scripts/stage.sh "${CARGO_TARGET_DIR:-target}/$target/dist/weir" "$staged"
    cp LICENSE README.md CHANGELOG.md "$staged/"
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --mode=go-w --mtime="@${SOURCE_DATE_EPOCH:-0}" \
        --transform "s,^$staged,$name," "$staged" | gzip --best --no-name > "$folder/$name.tar.gz"
    ls -l "$folder/$name.tar.gz"
done
