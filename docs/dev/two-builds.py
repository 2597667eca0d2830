#!/usr/bin/env python3
"""Compares the latency of calls on names in two pools, for differences of one percent on a machine that others use, too.

two-builds.py BEFORE AFTER [ROUNDS [CALLS]]: directories in two mounted pools, which this makes and removes files in.

In a round each call is made CALLS times in one pool and then in the other; the order of the pools changes with each round.
Printed: the medians of the rounds' median latencies in microseconds, and the median of the rounds' ratios, before to after,
with its 95 % interval by the bootstrap. Above 1 the second pool is faster."""

import os
import random
import statistics
import sys
import time


def create(n):
    os.close(os.open(f"f{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


CALLS = {
    "create": create,
    "open": lambda n: os.close(os.open(f"f{n}", os.O_RDONLY)),
    "rename": lambda n: os.rename(f"f{n}", f"g{n}"),
    "unlink": lambda n: os.unlink(f"g{n}"),
    "mkdir": lambda n: os.mkdir(f"d{n}"),
    "rmdir": lambda n: os.rmdir(f"d{n}"),
}


def median_latency(call, count):
    taken = []
    for n in range(count):
        began = time.perf_counter_ns()
        call(n)
        taken.append(time.perf_counter_ns() - began)
    return statistics.median(taken) / 1000


def interval(ratios):
    medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[-51]


def main(before, after, rounds="61", count="300"):
    latencies = {name: [] for name in CALLS}
    for turn in range(int(rounds)):
        pools = [before, after] if turn % 2 else [after, before]
        for name, call in CALLS.items():
            taken = {}
            for pool in pools:
                os.chdir(pool)
                taken[pool] = median_latency(call, int(count))
            latencies[name].append((taken[before], taken[after]))
    for name, pairs in latencies.items():
        ratios = [one / other for one, other in pairs]
        one, other = (statistics.median(column) for column in zip(*pairs))
        low, high = interval(ratios)
        print(f"{name:7} {one:7.1f} {other:7.1f}  {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]")


main(*sys.argv[1:])
