/*
 * The memory window of an Osier device, for programs in C. Link with -losier_window.
 *
 * A window is ordinary memory while its page is in the device's cache; any other access waits for as long as the device
 * says. Functions that can fail return a negative OSIER_WINDOW_E... or a null pointer; osier_window_error() says why, in
 * words, for the calling thread's latest failure. All functions may be called from any thread. What modes need of the
 * system is in docs/window.md.
 */
#ifndef OSIER_WINDOW_H
#define OSIER_WINDOW_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OSIER_WINDOW_PAGE_BYTES 4096

/* Who resolves faults: the thread that faulted (no permission needed; system calls with buffers in the window fail with
 * EFAULT where a page is not mapped), a thread that spins, a thread that sleeps. */
#define OSIER_WINDOW_IN_THREAD 0
#define OSIER_WINDOW_SPINNING 1
#define OSIER_WINDOW_SLEEPING 2

/* An argument is none that there can be. */
#define OSIER_WINDOW_EINVAL (-1)
/* Nobody serves there, or what the system refused. */
#define OSIER_WINDOW_EOPEN (-2)
/* The device did not do a command. */
#define OSIER_WINDOW_EREFUSED (-3)
/* The device has died. */
#define OSIER_WINDOW_EDEAD (-4)

typedef struct osier_window osier_window;

/* What a command did, in pages. */
typedef struct osier_window_report {
    uint64_t done;    /* it was done to these */
    uint64_t idle;    /* these were as they should be */
    uint64_t refused; /* these were refused */
} osier_window_report;

/* Figures of the device, about a millisecond old. Pages, unless said otherwise. */
typedef struct osier_window_stats {
    uint64_t faults;             /* faults of all programs */
    uint64_t misses;             /* of these, those that read the flash */
    uint64_t left;               /* pages that left the cache */
    uint64_t left_dirty;         /* of these, those that were programmed */
    uint64_t resident;           /* pages in the cache */
    uint64_t frames;             /* frames of the cache */
    uint64_t lost;               /* faults that found a page which the flash has lost */
    uint64_t flash_written;      /* pages that the host side programmed */
    uint64_t flash_moved;        /* pages that collection moved */
    uint64_t superblocks_erased; /* superblocks that were erased */
    uint64_t blocked;            /* faults that waited for a frame */
    uint64_t dropped;            /* dirty pages that worn-out flash refused */
    uint64_t samples_used;       /* of pages that were drawn for a sample, those that were used within a period */
    uint64_t samples;            /* all that were drawn, used or not */
} osier_window_stats;

/* How well the times were kept, in nanoseconds: of a fault, and from when its page was due to when it was mapped. */
typedef struct osier_window_timing {
    uint64_t faults;
    uint64_t latency_p50_ns;
    uint64_t latency_p99_ns;
    uint64_t latency_max_ns;
    uint64_t lateness_p50_ns;
    uint64_t lateness_p99_ns;
    uint64_t lateness_max_ns;
} osier_window_timing;

/* Attaches to the device that serves at a socket and maps its first bytes, whole pages; 0 maps all. Null on failure. */
osier_window *osier_window_open(const char *socket, uint64_t bytes, int mode);

/* The same in parts, each with a userfaultfd of its own, and with a thread of its own where threads resolve faults; at most
 * 16. It is for machines with processors to spare. */
osier_window *osier_window_open_sharded(const char *socket, uint64_t bytes, int mode, unsigned shards);

/* Unmaps the window. Nobody may use it, or memory in it, any more. A null pointer is left alone. */
void osier_window_close(osier_window *window);

/* The first byte. When the device dies each access is a SIGBUS. */
void *osier_window_base(const osier_window *window);
uint64_t osier_window_bytes(const osier_window *window);

/* Whether the device serves: 1 or 0. */
int osier_window_is_live(const osier_window *window);

/* Commands on pages, which are numbered from the window's first. A report may be null. Prefetch and pin end when the
 * pages are there; a pin is all or nothing; evict ends when they have left. 0 on success. */
int osier_window_prefetch(osier_window *window, uint64_t first, uint64_t pages, osier_window_report *report);
int osier_window_pin(osier_window *window, uint64_t first, uint64_t pages, osier_window_report *report);
int osier_window_unpin(osier_window *window, uint64_t first, uint64_t pages, osier_window_report *report);
int osier_window_evict(osier_window *window, uint64_t first, uint64_t pages, osier_window_report *report);

/* Changes the device's eviction policy: a name, and parameters that are to have other values than the published ones, as
 * in "s3-fifo:small_permille=200". 0 on success. */
int osier_window_set_policy(osier_window *window, const char *policy);

void osier_window_get_stats(const osier_window *window, osier_window_stats *stats);
void osier_window_get_timing(const osier_window *window, osier_window_timing *timing);

/* Why the calling thread's latest call failed. Valid until its next failure. */
const char *osier_window_error(void);

#ifdef __cplusplus
}
#endif

#endif
