#!/usr/bin/env python3
"""real.py SET [PART...]: the papers' claims on real processes, with emulated devices and networks.

Sets: 002 (R42-R50: networks stripes processes blocks clients fio), 000 (R32-R41: a and b with p, like a0.9; reuse), 003 (R51-R57: null slow strides), model (the same workloads in
the simulator, R1-R26); R58 is bench/advice.sh. Every set starts a cluster of its own below --dir, removes it at its end, and prints one row of JSON for each
metric, samples included; --out adds the rows to a results file. At the end `stria sim judge` holds them against sim/claims.toml: exit code 1 when one misses.
`stria report` shows and judges the rows of bench/results.
"""
import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
from realrun import caches000, config002, model, readahead003  # noqa: E402
from realrun.cluster import Failed, origin, say  # noqa: E402
from realrun.rows import Rows  # noqa: E402

SETS = {"000": caches000, "002": config002, "003": readahead003, "model": model}
HERE = Path(__file__).resolve().parent


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("set", choices=sorted(SETS))
    p.add_argument("part", nargs="*", help="parts of the set; default: all")
    p.add_argument("--stria", default=HERE / "../target/release/stria", type=Path, help="the program")
    p.add_argument("--dir", type=Path, help="a directory that does not exist, for the cluster; default: below /dev/shm")
    p.add_argument("--repetitions", type=int, default=5, metavar="N", help="samples of each metric, at least 1; intervals need 2")
    p.add_argument("--scale", type=float, default=1.0, metavar="X", help="sizes times this, above 0 and at most 4; below 1 for a smoke test only")
    p.add_argument("--preload", type=Path, metavar="LIB", help="set 000: programs have this library (libstria_posix.so), and the native path by it")
    p.add_argument("--out", type=Path, metavar="FILE", help="add the rows to this file, too")
    a = p.parse_args()
    unknown = [part for part in a.part if part not in SETS[a.set].PARTS]
    if unknown:
        p.error(f"'{unknown[0]}' is no part of {a.set}; there are: {', '.join(SETS[a.set].PARTS)}")
    if a.repetitions < 1:
        p.error(f"--repetitions {a.repetitions}: at least 1")
    if not 0 < a.scale <= 4:
        p.error(f"--scale {a.scale}: above 0 and at most 4")
    if not os.access(a.stria, os.X_OK):
        p.error(f"--stria {a.stria}: no program is there; build it with 'cargo build --release -p stria'")
    if a.preload and not a.preload.is_file():
        p.error(f"--preload {a.preload}: no library is there; build it with 'cargo build --release -p stria-preload'")
    if a.dir and a.dir.exists():
        p.error(f"--dir {a.dir}: it exists, and is removed at the end: name one that does not")
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK):
        p.error("mounts need root and /dev/fuse")
    return a


def main():
    a = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    command = " ".join(["bench/real.py", a.set, *a.part] + ([f"--scale {a.scale:g}"] if a.scale != 1 else [])
                       + (["--preload LIB"] if a.preload else []))
    stria = str(a.stria.resolve())
    preload = str(a.preload.resolve()) if a.preload else None
    rows = Rows(stria, origin(stria, command), a.repetitions, a.scale, say=say, preload=preload)
    base = a.dir or Path(tempfile.mkdtemp(prefix="stria-real-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)) / "d"
    try:
        SETS[a.set].run(rows, base.resolve(), a.part)
    except Failed as why:
        sys.exit(f"real.py: {why}")
    finally:
        if not a.dir:
            shutil.rmtree(base.parent, ignore_errors=True)
    text = "".join(line + "\n" for line in rows.lines())
    sys.stdout.write(text)
    if a.out:
        with open(a.out, "a") as f:
            f.write(text)
    sys.exit(judged(stria, text))


def judged(stria, text):
    """Shows what the claims say of the rows; 1 when one misses."""
    with tempfile.NamedTemporaryFile("w", suffix=".ndjson") as f:
        f.write(text)
        f.flush()
        done = subprocess.run([stria, "sim", "judge", f.name], stdout=sys.stderr, cwd=HERE, check=False)
    return done.returncode


if __name__ == "__main__":
    main()
