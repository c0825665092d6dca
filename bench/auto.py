#!/usr/bin/env python3
"""auto.py [ID...]: `nrs.policy = auto` against every fixed candidate on all simulated scenarios of scheduled bulk traffic, point by point.

Scenarios are those of sim/scenarios that have a scheduler and tell a bandwidth, but the ones whose clock or memory is measured. Time is virtual: the machine does not matter.
Prints one row of JSON for each point: bandwidth under each policy and auto's share of the best fixed one. Exit code 1 when a share is below --least.
"""
import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path

sys.dont_write_bytecode = True
from realrun.cluster import origin  # noqa: E402

HERE = Path(__file__).resolve().parent
POLICIES = ("fifo", "obrr", "obrr+", "auto")
METRIC = "bandwidth_gb_per_s"
# What they measure is the simulator itself.
LEFT_OUT = {"R26", "R26m"}


def scenarios(wanted):
    found = {}
    for path in sorted((HERE / "../sim/scenarios").glob("*/*.toml")):
        s = tomllib.loads(path.read_text())
        runs = s.get("world", "light") == "light" and "params" in s and not s.get("test")
        if runs and s["id"] not in LEFT_OUT:
            found[s["id"]] = path
    unknown = [w for w in wanted if w not in found]
    if unknown:
        sys.exit(f"auto.py: '{unknown[0]}' is no scenario of scheduled bulk traffic; there are: {', '.join(found)}")
    return {k: v for k, v in found.items() if not wanted or k in wanted}


def bandwidths(stria, path, policy, seed, sets):
    """Bandwidth at each point, by what the point varies beside the policy; None where the scenario refuses the settings."""
    words = [stria, "sim", "run", path, "--json", "--seed", str(seed), "--set", f"nrs.policy={policy}", *[w for s in sets for w in ("--set", s)]]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        return None, " ".join(done.stderr.split("\nstack backtrace")[0].split())
    found = json.loads(done.stdout)
    points = found.get("points", [{**found, "at": {}}])
    own = lambda at: json.dumps({k: v for k, v in at.items() if k != "nrs.policy"}, sort_keys=True)
    return {own(p["at"]): p["metrics"][METRIC]["value"] for p in points if METRIC in p["metrics"]}, ""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("id", nargs="*")
    p.add_argument("--stria", default=HERE / "../target/release/stria", type=Path)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every scenario and policy")
    p.add_argument("--least", type=float, default=0.95, metavar="SHARE", help="of the best fixed policy that auto has to reach")
    a = p.parse_args()
    worst, head = None, {**origin(a.stria, "bench/auto.py"), "benchmark": "nrs.auto"}
    for name, path in scenarios(a.id).items():
        by_policy = {}
        for policy in POLICIES:
            by_policy[policy], why = bandwidths(a.stria, path, policy, a.seed, a.set)
            if by_policy[policy] is None:
                print(f"auto.py: {name} under {policy}: {why}", file=sys.stderr)
        if any(not by_policy[policy] for policy in POLICIES):
            continue
        for at in by_policy["auto"]:
            rates = {policy: round(by_policy[policy][at], 4) for policy in POLICIES if by_policy[policy].get(at)}
            best = max(v for k, v in rates.items() if k != "auto")
            share = round(rates["auto"] / best, 4)
            print(json.dumps({**head, "scenario": name, "at": json.loads(at), **rates, "auto_over_best": share}), flush=True)
            worst = min(worst or (share, name, at), (share, name, at))
    if worst is None:
        sys.exit("auto.py: nothing was measured")
    print(f"auto.py: the least share is {worst[0]}, in {worst[1]} {worst[2]}; {a.least} is wanted", file=sys.stderr)
    sys.exit(0 if worst[0] >= a.least else 1)


if __name__ == "__main__":
    main()
