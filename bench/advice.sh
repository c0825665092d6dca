#!/usr/bin/env bash
# advice.sh [READS]
#
# R58 on an emulated disk and an emulated SSD before it: random 4 KiB reads (O_DIRECT, each place once; 16 tasks, each in its own part of a shared file, as
# IOR -r -t 4k -z does) without advice, advised into the servers' memory, advised into the fast tier, and again after unadvised reads of more than either
# holds; prefetches against a sequential read of the same bytes; a file larger than memory, and one larger than memory and tier together; and a set that
# is read again and again without advice.
# Prints one result line of JSON for each.
#   STRIA=FILE  the program (default target/release/stria)      DIR=PATH  where the cluster lives (default /dev/shm/stria-advice)
#   PROFILE=NAME  the device of store.profile (default hdd)      KEYS=...  store.profile_keys (default: seek_ms=8.5 mb_per_s=180 request_us=100)
#   FAST=NAME  the device of store.fast.profile (default ssd)
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
STRIA=${STRIA:-$here/../target/release/stria} DIR=${DIR:-/dev/shm/stria-advice} MNT=${MNT:-$DIR.mnt} PROFILE=${PROFILE:-hdd} FAST=${FAST:-ssd} reads=${1:-600}
KEYS=${KEYS-seek_ms=8.5 mb_per_s=180 request_us=100}
trap '"$STRIA" umount "$MNT" >/dev/null 2>&1 || true; rm -rf "$DIR" "$DIR.fast" "$MNT"' EXIT
mkdir -p "$MNT" "$DIR.fast"
"$STRIA" up --dir "$DIR" --mount "$MNT" --osts 1 --background --set store.kind=emulated --set "store.profile=$PROFILE" --set "store.profile_keys=$KEYS" --set oss.cache_bytes=128M \
    --set "store.fast.dir=$DIR.fast" --set store.fast.size=640M --set "store.fast.profile=$FAST" >&2

python3 - "$MNT" "$reads" "$(git -C "$here" rev-parse --short HEAD)" "$STRIA" "$PROFILE${KEYS:+ $KEYS}+$FAST" <<'PY'
import json, mmap, os, random, subprocess, sys, time
mnt, reads, commit, stria, profile = sys.argv[1], int(sys.argv[2]), *sys.argv[3:6]
MIB, TASKS = 1 << 20, 16
rng = random.Random(58)
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
    """Reads of 4 KiB a second, by 16 tasks, each a process."""
    places = sorted(places)
    parts = [places[i * len(places) // TASKS:(i + 1) * len(places) // TASKS] for i in range(TASKS)]
    [rng.shuffle(p) for p in parts]
    begin, ends = os.pipe(), []
    for part in parts:
        done = os.pipe()
        ends.append(done[0])
        if os.fork() == 0:
            fd, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 4096)
            os.close(begin[1])
            os.read(begin[0], 1)
            good = all(os.preadv(fd, [buffer], place * 4096) == 4096 and buffer[7] == place // 256 % 251 for place in part)
            os.write(done[1], b"+" if good else b"-")
            os._exit(0)
        os.close(done[1])
    time.sleep(0.3)
    since = time.monotonic()
    os.close(begin[1])
    assert all(os.read(end, 1) == b"+" for end in ends)
    took = time.monotonic() - since
    [os.wait() for _ in parts]
    [os.close(fd) for fd in [begin[0], *ends]]
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
forget(other)
sequential(other)
after = random_reads(path, pages(size, 8 * reads))
tell("R58f high_after_unadvised_reads", resident_mib=int(rows(path)[0]["ram_resident"]) // MIB, ram_reads_per_s=after, over_none=after / none)
advise(path, "none")
forget(path)

# More than memory has room for, and not more than the tier has.
forget(other)
plain = random_reads(other, pages(256, reads))
forget(other)
seq = sequential(other)
forget(other)
prefetch = advise(other, "high")
placed = {k: int(rows(other)[0][k]) // MIB for k in ("ram_placed", "fast_placed", "fast_resident")}
tell("R58e prefetch_to_fast_over_sequential", value=prefetch / seq, prefetch_s=prefetch, sequential_s=seq, mib=256, **placed)
ssd = random_reads(other, pages(256, 8 * reads))
tell("R58b ssd_over_none", value=ssd / plain, ssd_reads_per_s=ssd, none_reads_per_s=plain)
tell("R58b ram_over_ssd", value=ram / ssd)
huge = make("huge", 768)
forget(huge)
sequential(huge)
sequential(huge)
after = random_reads(other, pages(256, 8 * reads))
tell("R58f fast_after_unadvised_reads", resident_mib=int(rows(other)[0]["fast_resident"]) // MIB, ssd_reads_per_s=after, over_none=after / plain)
advise(other, "none")

# More than both have room for.
forget(huge)
plain = random_reads(huge, pages(768, reads))
forget(huge)
advise(huge, "high")
larger = random_reads(huge, pages(768, reads))
row = rows(huge)[0]
tell("R58c larger_than_everything_over_none", value=larger / plain, ram_placed_mib=int(row["ram_placed"]) // MIB, fast_placed_mib=int(row["fast_placed"]) // MIB, of_mib=768)
advise(huge, "none")
forget(huge)

# Without advice: a set that is read again and again, with a scan between.
hot = pages(48, reads)
rates = []
for _ in range(4):
    rates.append(random_reads(path, hot))
    forget(path)
    time.sleep(0.2)
    sequential(other)
    forget(other)
tell("inferred_reads_per_s", value=rates[3] / rates[0], rounds=[round(r) for r in rates])
PY
