#!/usr/bin/env bash
# What libstria_posix.so does for an unmodified program: bench/pread.c on a mount (`stria up` with its defaults, one process), with the
# library and without, in turns. usage: bench/preload.sh [CALLS [ROUNDS]]; needs root, /dev/fuse, cc and a release build of `stria` and
# `stria-preload`. A line of bench/results/preload.ndjson each.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}/release
calls=${1:-100000} rounds=${2:-3}
dir=$(mktemp -d -p /dev/shm)
trap '"$target/stria" umount "$dir/mnt" >/dev/null 2>&1 || true; rm -rf "$dir"' EXIT
mkdir "$dir/mnt"
cc -O2 -o "$dir/pread" bench/pread.c
"$target/stria" up --background --dir "$dir/c" --mount "$dir/mnt" >/dev/null
for _ in $(seq "$rounds"); do
    for library in "" "$target/libstria_posix.so"; do
        figures=$(LD_PRELOAD=$library "$dir/pread" "$dir/mnt/f" "$calls")
        printf '{"commit": "%s", "machine": "%s cores, load %s", "command": "bench/preload.sh %s", "library": %s, %s}\n' \
            "$(git rev-parse --short HEAD)" "$(nproc)" "$(cut -d' ' -f1 /proc/loadavg)" "$calls" "$([ -n "$library" ] && echo true || echo false)" "$figures"
    done
done
