"""accesses.py DIR FILES SEED SHARE ACCESSES HOT COARSE SIZE: fine accesses beside coarse ones, in a process of its own.

Reads FILES files DIR/0 and so on of SIZE bytes: with probability SHARE 64 KiB of the first HOT bytes of one, else COARSE bytes at any MiB. Prints a row of
JSON: MB/s (10^6 bytes) of all accesses, and the mean response of fine ones in ms. Its own process, for the native path is preloaded into whole programs.
"""
import json
import os
import random
import sys
import time

KIB, MIB = 1 << 10, 1 << 20
FINE = 64 * KIB


def mixed(d, count, seed, share, accesses, hot, coarse, size):
    """MB/s of all accesses, and the mean response of fine ones in ms."""
    draw = random.Random(seed)
    files = [os.open(os.path.join(d, str(i)), os.O_RDONLY) for i in range(count)]
    moved, fine, begin = 0, [], time.monotonic()
    for _ in range(accesses):
        f = draw.choice(files)
        if draw.random() < share:
            since = time.monotonic()
            got = whole(f, FINE, draw.randrange(hot // FINE) * FINE)
            fine.append(time.monotonic() - since)
        else:
            got = whole(f, coarse, draw.randrange((size - coarse) // MIB + 1) * MIB)
        moved += got
    took = time.monotonic() - begin
    for f in files:
        os.close(f)
    return moved / took / 1e6, 1000 * sum(fine) / max(len(fine), 1)


def whole(f, length, at):
    """Reads all of it: one call may bring less."""
    got = 0
    while got < length:
        n = len(os.pread(f, length - got, at + got))
        assert n > 0, f"the file ends at {at + got}"
        got += n
    return got


if __name__ == "__main__":
    d, share = sys.argv[1], float(sys.argv[4])
    count, seed, accesses, hot, coarse, size = (int(sys.argv[i]) for i in (2, 3, 5, 6, 7, 8))
    rate, response = mixed(d, count, seed, share, accesses, hot, coarse, size)
    json.dump({"mb_per_s": rate, "fine_ms": response}, sys.stdout)
