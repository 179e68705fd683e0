/* Write a storage actor for Osier in C. docs/abi.md is the contract, docs/how-to-actor.md the way through it.
 *
 * Build it with actors/c/build.sh SOURCE.c OUT.wasm, or by hand:
 *
 *     clang --target=wasm32-unknown-unknown -O3 -msimd128 -mbulk-memory -mmutable-globals -ffreestanding \
 *         -I actors/include -c -o NAME.o NAME.c
 *     wasm-ld --no-entry --stack-first -z stack-size=16384 --export=__stack_pointer -o NAME.wasm NAME.o
 *
 * There is no C library. With -mbulk-memory OSIER_COPY and OSIER_FILL are one instruction each.
 */
#ifndef OSIER_ACTOR_H
#define OSIER_ACTOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OSIER_ABI 1

/* Failure codes, section 2.3. */
enum osier_code {
    OSIER_MALFORMED = 1,
    OSIER_NO_ROOM = 2,
    OSIER_INTEGRITY = 3,
    OSIER_CONFIGURATION = 4,
    OSIER_OTHER = 5,
};

/* Levels of osier_log. */
enum osier_level {
    OSIER_ERROR = 0,
    OSIER_WARNING = 1,
    OSIER_INFORMATION = 2,
    OSIER_DEBUG = 3,
};

/* Fields of osier_unit_info, section 4.1. */
enum osier_field {
    OSIER_SLBA = 0,
    OSIER_BLOCKS = 1,
    OSIER_RAW_BYTES = 2,
    OSIER_VERSION = 3,
    OSIER_STREAM = 4,
    OSIER_SEQUENCE = 5,
    OSIER_UNIT = 6,
    OSIER_UNITS = 7,
    OSIER_DIRECTION = 8,
    OSIER_TAG = 9,
    OSIER_FIRST = 10,
    OSIER_LAST = 11,
    OSIER_SKIP_BLOCKS = 12,
    OSIER_WANTED_BLOCKS = 13,
};

#define OSIER_BLOCK_BYTES 4096
#define OSIER_STREAMS_MAX 16
#define OSIER_PARAM_BYTES_MAX 1024
#define OSIER_STATE_BYTES_MAX 256
#define OSIER_BLOB_BYTES 1024
#define OSIER_LOG_BYTES_MAX 256
#define OSIER_SEAL_BYTES 32

/* Results of osier_forward, osier_inverse and osier_resume, section 2.2. */
static inline int64_t osier_done(uint32_t length) { return (int64_t)length; }
static inline int64_t osier_yield(uint32_t consumed) { return -1 - ((int64_t)consumed << 8); }
static inline int64_t osier_fail(enum osier_code code) { return -2 - ((int64_t)code << 8); }

/* What an actor exports. Put OSIER_EXPORT(name) in front of its definition:
 *
 *     OSIER_EXPORT(osier_forward)
 *     int64_t osier_forward(const uint8_t *in, uint32_t in_len, uint8_t *out, uint32_t out_cap, uint32_t budget) { ... }
 *
 * Required are OSIER_ACTOR, once, and at least one of osier_forward and osier_inverse; osier_resume if the actor ever
 * yields; osier_init if it takes parameters. */
#define OSIER_EXPORT(name) __attribute__((export_name(#name)))
#define OSIER_ACTOR                                                                                                    \
    OSIER_EXPORT(osier_abi) int32_t osier_abi(void) { return OSIER_ABI; }

int32_t osier_abi(void);
int32_t osier_init(void);
int64_t osier_forward(const uint8_t *in, uint32_t in_len, uint8_t *out, uint32_t out_cap, uint32_t budget);
int64_t osier_inverse(const uint8_t *in, uint32_t in_len, uint8_t *out, uint32_t out_cap, uint32_t budget);
int64_t osier_resume(uint32_t budget);

/* What the host offers, section 4. */
#define OSIER_IMPORT(name) __attribute__((import_module("osier"), import_name(#name)))

OSIER_IMPORT(log) void osier_log(uint32_t level, const void *ptr, uint32_t len);
OSIER_IMPORT(unit_info) int64_t osier_unit_info(uint32_t field);
OSIER_IMPORT(param) int32_t osier_param(void *ptr, uint32_t cap);
OSIER_IMPORT(state_get) int32_t osier_state_get(void *ptr, uint32_t cap);
OSIER_IMPORT(state_put) int32_t osier_state_put(const void *ptr, uint32_t len);
OSIER_IMPORT(blob_get) int32_t osier_blob_get(uint32_t offset, void *ptr, uint32_t len);
OSIER_IMPORT(blob_put) int32_t osier_blob_put(uint32_t offset, const void *ptr, uint32_t len);
OSIER_IMPORT(record_next) int64_t osier_record_next(const void *ptr, uint32_t len, uint32_t from);
OSIER_IMPORT(crc32c) uint32_t osier_crc32c(uint32_t seed, const void *ptr, uint32_t len);
OSIER_IMPORT(aead_seal) int32_t osier_aead_seal(const void *in, uint32_t len, void *out, uint32_t cap);
OSIER_IMPORT(aead_open) int32_t osier_aead_open(const void *in, uint32_t len, void *out, uint32_t cap);
OSIER_IMPORT(lz4_compress) int32_t osier_lz4_compress(const void *in, uint32_t len, void *out, uint32_t cap);
OSIER_IMPORT(lz4_decompress) int32_t osier_lz4_decompress(const void *in, uint32_t len, void *out, uint32_t cap);

#define OSIER_COPY(to, from, len) __builtin_memcpy((to), (from), (len))
#define OSIER_FILL(to, byte, len) __builtin_memset((to), (byte), (len))

#ifdef __cplusplus
}
#endif

#endif
