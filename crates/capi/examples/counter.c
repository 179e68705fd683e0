/*
 * Counts in a word of each page of a window that is larger than the device's cache, with each command of the interface.
 *
 *   cc -I crates/capi/include crates/capi/examples/counter.c -L target/debug -losier_window -o counter
 *   LD_LIBRARY_PATH=target/debug ./counter SOCKET
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "osier_window.h"

static void check(int code, const char *what) {
    if (code < 0) {
        fprintf(stderr, "counter: %s failed: %s\n", what, osier_window_error());
        exit(1);
    }
}

static void expect(int is_so, const char *what) {
    if (!is_so) {
        fprintf(stderr, "counter: it is not so that %s\n", what);
        exit(1);
    }
}

static uint64_t *word_of(const osier_window *window, uint64_t page) {
    return (uint64_t *)((char *)osier_window_base(window) + page * OSIER_WINDOW_PAGE_BYTES);
}

int main(int count, char **arguments) {
    osier_window_report report;
    osier_window_stats stats;
    osier_window_timing timing;

    if (count != 2) {
        fprintf(stderr, "usage: counter SOCKET\n");
        return 2;
    }
    expect(osier_window_open("/nonexistent/socket", 0, OSIER_WINDOW_IN_THREAD) == NULL, "nobody serves there");
    expect(osier_window_error()[0] != 0, "a failure is said in words");
    expect(osier_window_open_sharded(arguments[1], 0, OSIER_WINDOW_IN_THREAD, 17) == NULL, "16 parts are the most");
    osier_window *window = osier_window_open_sharded(arguments[1], 0, OSIER_WINDOW_IN_THREAD, 3);
    check(window == NULL ? OSIER_WINDOW_EOPEN : 0, "opening the window in parts");
    osier_window_close(window);
    window = osier_window_open(arguments[1], 0, OSIER_WINDOW_IN_THREAD);
    check(window == NULL ? OSIER_WINDOW_EOPEN : 0, "opening the window");
    uint64_t pages = osier_window_bytes(window) / OSIER_WINDOW_PAGE_BYTES;

    check(osier_window_pin(window, 0, 8, &report), "pin");
    expect(report.done == 8 && report.refused == 0, "eight pages are pinned");
    check(osier_window_prefetch(window, 0, 16, &report), "prefetch");
    expect(report.done == 8 && report.idle == 8, "what is pinned is there");
    for (int round = 0; round < 3; round++) {
        for (uint64_t page = 0; page < pages; page++) {
            *word_of(window, page) += page;
        }
    }
    check(osier_window_evict(window, 0, 8, &report), "evict");
    expect(report.refused == 8, "what is pinned does not leave");
    check(osier_window_unpin(window, 0, 8, NULL), "unpin");
    check(osier_window_evict(window, 0, 8, &report), "evict");
    expect(report.done == 8, "what is not pinned leaves");
    expect(osier_window_pin(window, 0, pages, &report) == OSIER_WINDOW_EREFUSED, "not all pages can be pinned");
    check(osier_window_set_policy(window, "sieve"), "set_policy");
    expect(osier_window_set_policy(window, "nonsense") == OSIER_WINDOW_EINVAL, "there is no such policy");
    for (uint64_t page = 0; page < pages; page++) {
        expect(*word_of(window, page) == 3 * page, "each page has its count");
    }
    osier_window_get_stats(window, &stats);
    osier_window_get_timing(window, &timing);
    expect(stats.frames < pages && stats.left_dirty > 0 && stats.misses >= pages, "the window is larger than the cache");
    expect(timing.faults >= pages && timing.latency_p50_ns > 0, "faults are timed");
    printf("%" PRIu64 " misses, %" PRIu64 " pages programmed, a fault took %" PRIu64 " ns (p50)\n", stats.misses,
           stats.flash_written, timing.latency_p50_ns);
    expect(osier_window_is_live(window), "the device serves");
    osier_window_close(window);
    return 0;
}
