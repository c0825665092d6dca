#!/usr/bin/env python3
"""What encrypted connections cost: CPU seconds of all daemons for each GiB that one mount writes (1 MiB calls, fsync, over all OSTs) and another
one reads, with net.security none and tls by turns. Servers and mounts are processes of one host, over loopback, cpu.idle=deep.

usage: bench/encryption.py STRIA [PAIRS]     a line of JSON for each run
"""
import json
import os
import subprocess
import sys
import tempfile
import time

MIB, GIB = 1 << 20, 1 << 30


def pids(stria):
    return subprocess.run(["pgrep", "-f", stria], capture_output=True, text=True).stdout.split()


def cpu_s(processes):
    ticks = 0
    for pid in processes:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
                ticks += int(fields[11]) + int(fields[12])
        except FileNotFoundError:
            pass
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(processes, work):
    before, began = cpu_s(processes), time.time()
    work()
    return round(cpu_s(processes) - before, 2), round(time.time() - began, 2)


def write(path):
    piece = os.urandom(MIB)
    fd = os.open(path, os.O_WRONLY)
    for _ in range(GIB // MIB):
        os.write(fd, piece)
    os.fsync(fd)
    os.close(fd)


def read(path):
    fd = os.open(path, os.O_RDONLY)
    while os.read(fd, MIB):
        pass
    os.close(fd)


def run(stria, level):
    def do(*line):
        subprocess.run([stria, *line], check=True, stdout=subprocess.DEVNULL)

    with tempfile.TemporaryDirectory() as place:
        one, other, cluster = (f"{place}/{name}" for name in ("one", "other", "cluster"))
        os.mkdir(one)
        os.mkdir(other)
        keys = ["--set", f"net.security={level}", "--set", "cpu.idle=deep"]
        do("up", "--dir", cluster, "--mount", one, "--processes", "--background", *keys)
        try:
            do("mount", "--dir", cluster, "--background", other, *keys)
            do("setstripe", "-c", "-1", f"{one}/f")
            processes = pids(stria)
            wrote = measured(processes, lambda: write(f"{one}/f"))
            seen = measured(processes, lambda: read(f"{other}/f"))
            do("umount", other)
        finally:
            do("umount", one)
    return {"level": level, "write_cpu_s_per_gib": wrote[0], "read_cpu_s_per_gib": seen[0], "write_s": wrote[1], "read_s": seen[1]}


def main():
    stria, pairs = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4
    for pair in range(pairs):
        for level in ("none", "tls") if pair % 2 == 0 else ("tls", "none"):
            print(json.dumps(run(stria, level)), flush=True)


main()
