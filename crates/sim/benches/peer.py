"""How fast libCacheSim 0.3.5 reads a trace: peer.py TRACE oracle-general|msr RUNS

Prints the number of requests and the least CPU seconds of RUNS runs, each with a new reader. The loops are libCacheSim's own,
in C. For a CSV it is the one that counts requests, which reads each and does nothing with it. A binary trace is counted
by its size, so there it is the replay in a cache that everything fits into: one lookup more than reading.
"""

import sys
import time

import libcachesim as sim


def main():
    trace, kind, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    best, requests = float("inf"), 0
    for _ in range(runs):
        if kind == "msr":
            # The columns of MSR Cambridge, as libCacheSim's documentation reads them.
            params = sim.ReaderInitParam(has_header=False, has_header_set=True, delimiter=",", obj_id_is_num=True,
                                         obj_id_is_num_set=True)
            params.time_field, params.obj_id_field, params.obj_size_field = 1, 5, 6
            start = time.process_time()
            reader = sim.TraceReader(trace, sim.TraceType.CSV_TRACE, params)
            requests = reader.get_num_of_req()
        else:
            start = time.process_time()
            reader = sim.TraceReader(trace, sim.TraceType.ORACLE_GENERAL_TRACE, sim.ReaderInitParam(ignore_obj_size=True))
            cache = sim.FIFO(cache_size=2000, hashpower=12)
            requests = reader.get_num_of_req()
            cache.process_trace(reader)
            requests = max(requests, reader.n_read_req)
        best = min(best, time.process_time() - start)
    print(requests, best)


main()
