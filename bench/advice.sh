#!/usr/bin/env bash
# advice.sh [READS]
#
# R58 on an emulated disk: random 4 KiB reads (O_DIRECT, each place once, 4 threads) of a file without advice, advised into the servers' memory, and again after
# unadvised reads of more than that memory holds; the prefetch against a sequential read of the same bytes; and a file larger than the memory.
# Prints one result line of JSON for each.
#   STRIA=FILE  the program (default target/release/stria)      DIR=PATH  where the cluster lives (default /dev/shm/stria-advice)
#   PROFILE=NAME  the device of store.profile (default hdd: 8.5 ms a seek, 180 MB/s)
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
STRIA=${STRIA:-$here/../target/release/stria} DIR=${DIR:-/dev/shm/stria-advice} MNT=${MNT:-$DIR.mnt} PROFILE=${PROFILE:-hdd} reads=${1:-600}
trap '"$STRIA" umount "$MNT" >/dev/null 2>&1 || true; rm -rf "$DIR" "$MNT"' EXIT
mkdir -p "$MNT"
"$STRIA" up --dir "$DIR" --mount "$MNT" --osts 1 --background --set store.kind=emulated --set "store.profile=$PROFILE" --set oss.cache_bytes=128M >&2

python3 - "$MNT" "$reads" "$(git -C "$here" rev-parse --short HEAD)" "$STRIA" "$PROFILE" <<'PY'
import json, mmap, os, random, subprocess, sys, threading, time
mnt, reads, commit, stria, profile = sys.argv[1], int(sys.argv[2]), *sys.argv[3:6]
MIB = 1 << 20
kind = "debug" if "/debug/" in stria else "release"
machine = f"{os.cpu_count()} cores, {kind} build, load {os.getloadavg()[0]:.0f}"

def run(*words):
    return subprocess.run([stria, *words], check=True, capture_output=True, text=True).stdout

def tell(metric, **values):
    line = {"commit": commit, "command": f"bench/advice.sh {reads}", "machine": machine, "profile": profile, "metric": metric}
    print(json.dumps(line | {k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}), flush=True)

def make(name, mib):
    path = f"{mnt}/{name}"
    with open(path, "wb") as f:
        for i in range(mib):
            f.write(bytes([i % 251]) * MIB)
        os.fsync(f.fileno())
    return path

def forget(path):
    run("ladvise", "-a", "dontneed", path)

def random_reads(path, places):
    """Reads of 4 KiB a second."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    def work(mine):
        buffer = mmap.mmap(-1, 4096)
        for place in mine:
            assert os.preadv(fd, [buffer], place * 4096) == 4096
            assert buffer[7] == place // 256 % 251
    threads = [threading.Thread(target=work, args=(places[i::4],)) for i in range(4)]
    since = time.monotonic()
    [t.start() for t in threads]
    [t.join() for t in threads]
    took = time.monotonic() - since
    os.close(fd)
    return len(places) / took

def sequential(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 4 * MIB)
    since, at = time.monotonic(), 0
    while (n := os.preadv(fd, [buffer], at)) > 0:
        at += n
    took = time.monotonic() - since
    os.close(fd)
    return took

def rows(path):
    return [dict(w.split("=") for w in line.split()[2:]) for line in os.getxattr(path, "stria.advice").decode().splitlines()]

def advise(path, level):
    """Seconds until everything that has a place is there."""
    since = time.monotonic()
    run("fadvise", "-a", level, path)
    while level != "none" and any(int(r["fetched"]) < int(r["to_fetch"]) for r in rows(path)):
        time.sleep(0.005)
    return time.monotonic() - since

rng = random.Random(58)
size = 48
path = make("f", size)
pages = lambda mib, n: rng.sample(range(mib * 256), n)
forget(path)
none = random_reads(path, pages(size, reads))
tell("R58a none_reads_per_s", value=none)
forget(path)
seq = sequential(path)
forget(path)
prefetch = advise(path, "high")
assert int(rows(path)[0]["ram_resident"]) == size * MIB
tell("R58e prefetch_over_sequential", value=prefetch / seq, prefetch_s=prefetch, sequential_s=seq, mib=size)
ram = random_reads(path, pages(size, 8 * reads))
tell("R58b ram_over_none", value=ram / none, ram_reads_per_s=ram)
other = make("other", 256)
sequential(other)
after = random_reads(path, pages(size, 8 * reads))
tell("R58f high_after_unadvised_reads", resident_mib=int(rows(path)[0]["ram_resident"]) // MIB, ram_reads_per_s=after, over_none=after / none)
advise(path, "none")
forget(path)
forget(other)
plain = random_reads(other, pages(256, reads))
forget(other)
advise(other, "high")
larger = random_reads(other, pages(256, reads))
tell("R58c larger_than_memory_over_none", value=larger / plain, placed_mib=int(rows(other)[0]["ram_placed"]) // MIB, of_mib=256)
PY
