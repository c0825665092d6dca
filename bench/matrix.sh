#!/usr/bin/env bash
# matrix.sh BENCH LABEL [OPTIONS OF stria up ...]
#
# Runs a benchmark matrix (a script that is called as BENCH MOUNTPOINT OUTDIR and honours COLD_CMD, DAEMON_PAT, LABEL,
# QUICK, TESTS, REPS) on a cluster of its own, and prints one result line of JSON per metric. Before every cold run the
# whole cluster is stopped and started again on the same stores, so that no cache of a client or server is warm.
#   STRIA=FILE    the program (default target/release/stria)      DIR=PATH  where the cluster lives (default /dev/shm/stria-matrix)
#   OUT=PATH      the matrix's own output (default a temporary directory)
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,9p' "$0" >&2; exit 2; }
bench=$(readlink -f "$1") label=$2
shift 2
here=$(dirname "$(readlink -f "$0")")
export STRIA=${STRIA:-$here/../target/release/stria} DIR=${DIR:-/dev/shm/stria-matrix}
export MNT=$DIR.mnt UP_OPTIONS=$*
out=${OUT:-$(mktemp -d)}

cold=$(mktemp)
cat >"$cold" <<'COLD'
#!/usr/bin/env bash
# Stops the cluster if it runs and starts it again.
mkdir -p "$MNT"
if mountpoint -q "$MNT"; then
    "$STRIA" umount "$MNT" >&2
    while pgrep -f "stria up --dir $DIR " >/dev/null; do sleep 0.05; done
fi
# shellcheck disable=SC2086
"$STRIA" up --dir "$DIR" --mount "$MNT" --background $UP_OPTIONS >&2
COLD
chmod +x "$cold"
trap '"$STRIA" umount "$MNT" >&2 || true; rm -rf "$DIR" "$MNT" "$cold"' EXIT

rm -rf "$DIR"
"$cold"
COLD_CMD=$cold LABEL=$label DAEMON_PAT="${DAEMON_PAT:-stria (up|mds|oss|mount) }" "$bench" "$MNT" "$out" >&2

python3 - "$out/summary.json" "$label" "$(git -C "$here" rev-parse --short HEAD)" "$*" "${QUICK:-}" <<'PY'
import json, os, sys
summary, label, commit, options, quick = json.load(open(sys.argv[1])), *sys.argv[2:]
sizes = "QUICK=1 " if quick else ""
head = {"commit": commit, "command": f"{sizes}REPS={summary['config']['REPS']} bench/matrix.sh BENCH {label} {options}".strip(),
        "machine": f"{os.cpu_count()} cores, shared, kernel {summary['kernel']}", "n": summary["config"]["REPS"]}
for metric, value in summary["median"].items():
    print(json.dumps({**head, "metric": metric, "median": value}))
for metric, (total, app, daemon) in summary["cpu"].items():
    print(json.dumps({**head, "metric": f"cpu.{metric}", "median": total, "app": app, "daemon": daemon}))
print(json.dumps({**head, "metric": "rss_mib", "median": summary.get("rss_total")}))
PY
