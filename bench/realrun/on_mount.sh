#!/bin/sh
# on_mount.sh MOUNT COMMON COMMAND...: runs COMMAND where MOUNT is at COMMON, in a mount namespace of its own. Agents of `stria bench --on` see
# different mounts under one name with this.
set -e
[ $# -ge 3 ] || { sed -n '2,3p' "$0" >&2; exit 2; }
exec unshare --mount --propagation private sh -c 'mount --bind "$1" "$2" && shift 2 && exec "$@"' sh "$@"
