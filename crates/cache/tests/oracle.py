"""Replays a trace in libCacheSim 0.3.5: oracle.py TRACE RUNS POLICY:PAGES:HASHPOWER...

Prints a line for each case: its misses, and the least CPU seconds of RUNS runs. The replay is libCacheSim's own loop
in C; only making the cache is Python. HASHPOWER is the binary logarithm of the buckets of libCacheSim's hash table
to begin with; 24 is what it takes unless told otherwise.
"""

import sys
import time

import libcachesim


def main():
    trace, runs, cases = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    reader = libcachesim.TraceReader(
        trace,
        libcachesim.TraceType.ORACLE_GENERAL_TRACE,
        libcachesim.ReaderInitParam(ignore_obj_size=True),
    )
    requests = reader.get_num_of_req()
    for case in cases:
        policy, pages, hashpower = case.split(":")
        best = float("inf")
        for _ in range(runs):
            cache = getattr(libcachesim, policy)(cache_size=int(pages), hashpower=int(hashpower))
            start = time.process_time()
            ratio, _ = cache.process_trace(reader)
            best = min(best, time.process_time() - start)
        print(round(ratio * requests), best)


main()
