/* Write an eviction policy for Osier's DRAM cache in C. docs/abi-cache-policy.md is the contract.
 *
 * Build it with actors/c/build.sh SOURCE.c OUT.wasm. There is no C library; memory beyond what is declared comes from
 * osier_policy_room, and is never given back.
 *
 * A policy defines the five functions `made`, `inserted`, `touched`, `removed` and `victim` as declared below, and puts
 * OSIER_POLICY once at its end.
 */
#ifndef OSIER_POLICY_H
#define OSIER_POLICY_H

#include <stdint.h>

#define OSIER_POLICY_ABI 1
#define OSIER_EVENTS_MAX 1024
#define OSIER_NO_FRAME (-1)

/* What the host offers, section 4. */
#define OSIER_IMPORT(name) __attribute__((import_module("osier"), import_name(#name)))
OSIER_IMPORT(log) void osier_log(const char *text, uint32_t bytes);
OSIER_IMPORT(parameter)
uint64_t osier_parameter(const char *name, uint32_t bytes, uint64_t value, uint64_t least, uint64_t most);
OSIER_IMPORT(is_dirty) uint32_t osier_is_dirty(uint32_t frame);

/* The frames: those of set `s` are `s * ways` to `s * ways + ways - 1`. */
struct osier_shape {
    uint32_t sets, ways, pages_per_set;
};

/* Section 3. */
enum osier_event_kind { OSIER_INSERTED = 0, OSIER_TOUCHED = 1, OSIER_REMOVED = 2 };
struct osier_event {
    uint32_t frame;
    uint8_t kind, recall;
    uint16_t zero;
    uint64_t page;
};
_Static_assert(sizeof(struct osier_event) == 16, "an event has 16 bytes");

/* What a policy defines. `made` answers 0, or another number to refuse; osier_log says why. */
static int made(struct osier_shape shape, uint64_t seed);
static void inserted(uint32_t set, uint32_t frame, uint64_t page, uint32_t recall);
static void touched(uint32_t set, uint32_t frame);
static void removed(uint32_t set, uint32_t frame);
static int32_t victim(uint32_t set, uint32_t recall);

/* Zeroed memory, for `made`. The host ends the run if there is no more. */
static inline void *osier_policy_room(uint32_t bytes) {
    static uintptr_t next, end;
    bytes = (bytes + 15) & ~(uint32_t)15;
    if (bytes > end - next) {
        uint32_t pages = (bytes + 65535) / 65536;
        uintptr_t place = (uintptr_t)__builtin_wasm_memory_size(0) * 65536;
        if (__builtin_wasm_memory_grow(0, pages) == (__SIZE_TYPE__)-1) __builtin_trap();
        next = place;
        end = place + (uintptr_t)pages * 65536;
    }
    void *room = (void *)next;
    next += bytes;
    return room;
}

#define OSIER_EXPORT(name) __attribute__((export_name(#name)))
#define OSIER_POLICY                                                                                                   \
    static struct osier_event osier_events[OSIER_EVENTS_MAX] __attribute__((aligned(8)));                              \
    static struct osier_shape osier_shape;                                                                             \
                                                                                                                       \
    OSIER_EXPORT(osier_policy_abi) int32_t osier_policy_abi(void) { return OSIER_POLICY_ABI; }                         \
                                                                                                                       \
    OSIER_EXPORT(osier_policy_new)                                                                                     \
    int32_t osier_policy_new(uint32_t sets, uint32_t ways, uint32_t pages_per_set, uint64_t seed) {                    \
        osier_shape = (struct osier_shape){sets, ways, pages_per_set};                                                 \
        return made(osier_shape, seed) ? -1 : (int32_t)(uintptr_t)osier_events;                                        \
    }                                                                                                                  \
                                                                                                                       \
    OSIER_EXPORT(osier_policy_events) void osier_policy_events(uint32_t count) {                                       \
        for (uint32_t i = 0; i < count; i++) {                                                                         \
            const struct osier_event *event = &osier_events[i];                                                        \
            uint32_t set = event->frame / osier_shape.ways;                                                            \
            if (event->kind == OSIER_INSERTED) inserted(set, event->frame, event->page, event->recall);                \
            else if (event->kind == OSIER_TOUCHED) touched(set, event->frame);                                         \
            else removed(set, event->frame);                                                                           \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    OSIER_EXPORT(osier_policy_victim)                                                                                  \
    int32_t osier_policy_victim(uint32_t count, uint32_t set, uint32_t recall) {                                       \
        osier_policy_events(count);                                                                                    \
        return victim(set, recall);                                                                                    \
    }

#endif
