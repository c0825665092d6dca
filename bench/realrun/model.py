"""The same workload on emulated OSTs of real processes and in the simulator (sim/scenarios/real/model.toml): how far apart they are.

Mounts write a file each, with one stripe, then read it cold: paper 001's common case, small. Both have the same model of a disk; the rest is real processes here and a
light world there.
"""
import json
import statistics
from pathlib import Path

from .cluster import Cluster, fill, forget

KIB, MIB = 1 << 10, 1 << 20
OSTS = 2
SCENARIO = Path(__file__).resolve().parents[2] / "sim/scenarios/real/model.toml"
DISKS = ["store.kind=emulated", "store.profile=paper001", "store.profile_keys=seek_ms=12 mb_per_s=40 request_us=100", "oss.cache_bytes=0"]
ON_MOUNT = Path(__file__).resolve().parent / "on_mount.sh"
# Policy, KiB of a transfer, dispatch window; each written and read.
POINTS = [(policy, kib, 4) for policy in ("fifo", "obrr") for kib in (64, 256, 1024)] + [("fifo", 64, 16), ("fifo", 1024, 16)]
CLIENTS = 4


def bytes_of(rows, kib):
    """Bytes of each file: small transfers are slow."""
    return rows.scaled(min(kib * 96 * KIB, 48 * MIB), MIB)


def simulated(rows, policy, kib, window, operation):
    """MB/s (10^6), the mean over the scenario's seeds."""
    keys = {"nrs.policy": policy, "transfer_size_bytes": f"{kib}K", "oss.dispatch_window": window, "operation": operation,
            "file_bytes": bytes_of(rows, kib), "clients": CLIENTS}
    sets = [w for k, v in keys.items() for w in ("--set", f"{k}={v}")]
    found = json.loads(rows.command("sim", "run", SCENARIO, "--json", *sets))
    # The simulator's unit is paper 001's: 1000 MiB/s.
    return found["metrics"]["bandwidth_gb_per_s"]["value"] * 1000 * MIB / 1e6


def measured(c, mounts, common, point, size, number):
    """MB/s (10^6) of writing, fsync included, and of cold reading."""
    policy, kib, window = point
    for at in mounts:
        c.set(at, f"osc.*.max_pages_per_rpc={kib // 4}")
    c.set(mounts[0], f"ost.OSS.ost_io.nrs_policies={policy}")
    c.set(mounts[0], f"ost.OSS.ost_io.dispatch_window={window}")
    d = mounts[0] / f"d{number}"
    d.mkdir()
    for i in range(len(mounts)):
        c.run("setstripe", "-c", 1, "-i", i % OSTS, "-S", 4 * MIB, d / f"f.{i:08}")
    words = ["-o", common / d.name / "f", "-b", size, "-t", MIB, "-F", "-E", *[w for m in mounts for w in ("--on", f"{ON_MOUNT} {m} {common}")]]
    wrote = c.bench(*words, "-w", "-e", "-k")[0]["mb_per_s"]
    for m in mounts:
        forget(*sorted((m / d.name).iterdir()))
    read = c.bench(*words, "-r", "-k")[0]["mb_per_s"]
    for f in d.iterdir():
        f.unlink()
    return {"write": wrote, "read": read}


def points(rows, place):
    """Every point on the same cluster, then the median of their errors, once in each repetition."""
    wanted = {(p, op): simulated(rows, *p, op) for p in POINTS for op in ("write", "read")}
    with Cluster(rows.stria, place, OSTS, DISKS) as c:
        mounts = [c.mount(f"client{i}") for i in range(CLIENTS)]
        common = c.place / "common"
        common.mkdir()
        for at in mounts:
            # Parameters of an OST are there once it is connected.
            fill(c.directory(at, at.name, -1, MIB) / "f", OSTS * MIB)
        for repetition in range(rows.repetitions):
            errors = []
            for i, point in enumerate(POINTS):
                policy, kib, window = point
                real = measured(c, mounts, common, point, bytes_of(rows, kib), f"{repetition}-{i}")
                for op in ("write", "read"):
                    there = wanted[point, op]
                    errors.append(abs(there / real[op] - 1) * 100)
                    name = f"error_percent_{op}_{policy}_{kib}k_window_{window}"
                    rows.add(f"R1-R26 {name}", errors[-1], "%", {"real": real[op], "simulated": there})
            rows.add("R1-R26 median_error_percent", statistics.median(errors), "%")


PARTS = {"points": points}


def run(rows, place, parts):
    """All points."""
    for name in parts or PARTS:
        rows.begin(name)
        PARTS[name](rows, place)
