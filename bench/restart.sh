#!/usr/bin/env bash
# restart.sh [REPETITIONS]
#
# Kills (-9) the metadata server and an object storage server of a running cluster in turn, and measures how long the next operation of a live
# mount takes: a file made (metadata), 4 KiB written to every OST and synced (data). Prints one result line of JSON for each.
#   STRIA=FILE  the program (default target/release/stria)      DIR=PATH  where the cluster lives (default /dev/shm/stria-restart)
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
STRIA=${STRIA:-$here/../target/release/stria} DIR=${DIR:-/dev/shm/stria-restart} MNT=${MNT:-$DIR.mnt} reps=${1:-20}
trap '"$STRIA" umount "$MNT" >/dev/null 2>&1 || true; rm -rf "$DIR" "$MNT"' EXIT
mkdir -p "$MNT"
"$STRIA" up --dir "$DIR" --mount "$MNT" --osts 2 --processes --background >&2
"$STRIA" lfs setstripe -c 2 -S 64K "$MNT" 2>/dev/null || "$STRIA" setstripe -c 2 -S 64K "$MNT"

python3 - "$DIR" "$MNT" "$reps" "$(git -C "$here" rev-parse --short HEAD)" "$STRIA" <<'PY'
import json, os, signal, statistics, sys, time
dir, mnt, reps, commit, stria = sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:6]

def pid(name):
    return int(open(f"{dir}/run/{name}.pid").read())

def metadata(i):
    os.close(os.open(f"{mnt}/f{i}", os.O_CREAT | os.O_WRONLY))

data_file = os.open(f"{mnt}/data", os.O_CREAT | os.O_RDWR)
def data(i):
    os.pwrite(data_file, bytes([i % 256]) * 4096, 0)
    os.pwrite(data_file, bytes([i % 256]) * 4096, 65536)
    os.fsync(data_file)

def gone(p):
    try:
        os.kill(p, 0)
        return False
    except ProcessLookupError:
        return True

for name, operation in [("mdt0", metadata), ("ost0", data)]:
    times = []
    for i in range(reps):
        operation(1000 + i)
        # As long as a server lives that died of something new.
        time.sleep(2.5)
        old = pid(name)
        os.kill(old, signal.SIGKILL)
        since = time.monotonic()
        operation(i)
        times.append(time.monotonic() - since)
        while True:
            try:
                if pid(name) != old:
                    break
            except (FileNotFoundError, ValueError):
                pass
            time.sleep(0.01)
    times.sort()
    profile = "debug" if "/debug/" in stria else "release"
    print(json.dumps({"commit": commit, "command": f"bench/restart.sh {reps}", "machine": f"{os.cpu_count()} cores, shared, {profile} build, load {os.getloadavg()[0]:.0f}",
        "metric": f"restart.{name}_s", "n": reps, "median": round(statistics.median(times), 3), "min": round(times[0], 3), "max": round(times[-1], 3)}))
PY
