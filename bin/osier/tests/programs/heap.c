/*
 * Uses everything that a heap offers, with as much memory as its argument says in MiB, and checks every byte. It knows
 * nothing of windows: what it expects is what the manual pages promise.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define THREADS 3

static void expect(int is_so, const char *what) {
    if (!is_so) {
        fprintf(stderr, "heap: it is not so that %s\n", what);
        _exit(1);
    }
}

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void fill(unsigned char *at, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes; i++) at[i] = (unsigned char)(seed + i * 31 + (i >> 8));
}

static int is_filled(const unsigned char *at, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != (unsigned char)(seed + i * 31 + (i >> 8))) return 0;
    return 1;
}

static int is_zero(const unsigned char *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (at[i]) return 0;
    return 1;
}

struct block {
    unsigned char *at;
    size_t bytes;
    uint64_t seed;
};

/* Allocates, resizes and frees at random; every block is checked when it is touched again. */
static void *churn(void *argument) {
    size_t room = *(size_t *)argument, used = 0;
    enum { BLOCKS = 4096 };
    struct block *blocks = calloc(BLOCKS, sizeof *blocks);
    uint64_t state = (uint64_t)pthread_self() ^ 12345;
    for (int step = 0; step < 60000; step++) {
        struct block *block = &blocks[next(&state) % BLOCKS];
        uint64_t draw = next(&state) % 100;
        size_t bytes = draw < 80 ? next(&state) % 2048 : draw < 98 ? next(&state) % 65536 : next(&state) % (2 << 20);
        if (block->at) {
            expect(is_filled(block->at, block->bytes, block->seed), "a block keeps its bytes");
            if (draw % 3 == 0 && used - block->bytes + bytes < room && bytes > 0) {
                size_t kept = bytes < block->bytes ? bytes : block->bytes;
                unsigned char *at = realloc(block->at, bytes);
                expect(at != NULL && is_filled(at, kept, block->seed), "realloc keeps the bytes");
                used += bytes - block->bytes;
                block->at = at, block->bytes = bytes;
                fill(at, bytes, block->seed);
            } else {
                used -= block->bytes;
                free(block->at);
                block->at = NULL;
            }
            continue;
        }
        if (used + bytes > room) continue;
        uint64_t kind = next(&state) % 4;
        size_t alignment = (size_t)16 << next(&state) % 9;
        if (kind == 0) {
            block->at = calloc(bytes / 8 + 1, 8);
            expect(block->at && is_zero(block->at, bytes), "calloc is zero");
        } else if (kind == 1) {
            expect(posix_memalign((void **)&block->at, alignment, bytes) == 0, "posix_memalign works");
            expect((uintptr_t)block->at % alignment == 0, "posix_memalign aligns");
        } else {
            block->at = kind == 2 ? malloc(bytes) : reallocarray(NULL, bytes / 2 + 1, 2);
            expect(block->at != NULL, "malloc works");
        }
        expect(malloc_usable_size(block->at) >= bytes, "a block is as large as was asked");
        block->bytes = bytes, block->seed = next(&state);
        used += bytes;
        fill(block->at, bytes, block->seed);
    }
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].at) {
            expect(is_filled(blocks[i].at, blocks[i].bytes, blocks[i].seed), "a block keeps its bytes to the end");
            free(blocks[i].at);
        }
    free(blocks);
    return NULL;
}

static void *map(size_t bytes) {
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(at != MAP_FAILED, "mmap works");
    return at;
}

static void mappings(void) {
    size_t bytes = 2 << 20;
    for (int round = 0; round < 4; round++) {
        unsigned char *at = map(bytes);
        expect(is_zero(at, bytes), "a new mapping is zero, also where one was before");
        fill(at, bytes, round);
        expect(madvise(at + PAGE, 3 * PAGE, MADV_DONTNEED) == 0, "madvise works");
        expect(is_zero(at + PAGE, 3 * PAGE), "what is not needed is zero");
        expect(is_filled(at, PAGE, round), "what is needed is there");
        fill(at, bytes, round);
        unsigned char *grown = mremap(at, bytes, 3 * bytes, MREMAP_MAYMOVE);
        expect(grown != MAP_FAILED && is_filled(grown, bytes, round), "mremap keeps the bytes");
        expect(is_zero(grown + bytes, 2 * bytes), "what mremap adds is zero");
        expect(munmap(grown + bytes, bytes) == 0, "a part can be unmapped");
        expect(is_filled(grown, bytes, round) && is_zero(grown + 2 * bytes, bytes), "its neighbours are there");
        unsigned char *over =
            mmap(grown, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        expect(over == grown && is_zero(over, bytes), "a mapping over another is zero");
        expect(mprotect(grown, PAGE, PROT_NONE) == 0, "mprotect works");
        expect(munmap(grown, 3 * bytes) == 0, "all can be unmapped");
    }
}

/* Files by way of buffers in the heap, which the kernel reads and writes. */
static void system_calls(size_t bytes) {
    char name[] = "/tmp/osier-heap-XXXXXX";
    int fd = mkstemp(name);
    expect(fd >= 0 && unlink(name) == 0, "a file can be made");
    unsigned char *out = malloc(bytes), *in = malloc(bytes);
    fill(out, bytes, 99);
    expect(pwrite(fd, out, bytes, 0) == (ssize_t)bytes, "all is written");
    expect(pread(fd, in, bytes, 0) == (ssize_t)bytes, "all is read");
    expect(is_filled(in, bytes, 99), "what was written is read");
    free(out);
    free(in);
    close(fd);
}

static volatile int is_over;
static volatile uint64_t outside;

/* Counts in three places, two in the heap and one outside, of which none is ahead of the one before. */
static void *count(void *argument) {
    volatile uint64_t *words = argument;
    while (!is_over) {
        words[0]++;
        __sync_synchronize();
        words[PAGE]++;
        __sync_synchronize();
        outside++;
    }
    return NULL;
}

/* A child has the heap as it was at one instant, though other threads store to it, and what it changes is its own. */
static void forks(size_t bytes) {
    unsigned char *at = malloc(bytes);
    uint64_t *words = map(2 << 20);
    pthread_t counter;
    fill(at, bytes, 5);
    expect(pthread_create(&counter, NULL, count, words) == 0, "a thread can be made");
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        expect(child >= 0, "a child can be made");
        if (child == 0) {
            uint64_t first = words[0], second = words[PAGE];
            expect(first == second || first == second + 1, "the child sees one instant");
            expect(second == outside || second == outside + 1, "the heap is of the same instant as the rest");
            expect(is_filled(at, bytes, 5), "the child has what was there");
            fill(at, bytes, 6);
            pid_t grandchild = fork();
            expect(grandchild >= 0, "a grandchild can be made");
            if (grandchild == 0) {
                expect(is_filled(at, bytes, 6), "the grandchild has what the child had");
                free(at);
                _exit(0);
            }
            int status;
            expect(waitpid(grandchild, &status, 0) == grandchild && status == 0, "the grandchild is well");
            unsigned char *more = malloc(bytes);
            fill(more, bytes, 7);
            expect(words[0] == first && words[PAGE] == second, "the child's heap is its own");
            _exit(0);
        }
        fill(at, bytes / 2, 5);
        int status;
        expect(waitpid(child, &status, 0) == child && status == 0, "the child is well");
        expect(is_filled(at, bytes, 5), "the parent's heap is its own");
    }
    is_over = 1;
    pthread_join(counter, NULL);
    free(at);
    munmap(words, 2 << 20);
}

int main(int count, char **arguments) {
    size_t bytes = (size_t)atoi(count > 1 ? arguments[1] : "16") << 20, share = bytes / THREADS;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        expect(pthread_create(&threads[i], NULL, churn, &share) == 0, "a thread can be made");
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    mappings();
    system_calls(bytes / 4);
    forks(bytes / 4);
    errno = 0;
    expect(malloc((size_t)1 << 46) == NULL && errno == ENOMEM, "what is too large is refused");
    unsigned char *page = valloc(10);
    expect((uintptr_t)page % PAGE == 0 && malloc_usable_size(page) >= 10, "valloc aligns");
    free(page);
    unsigned char *huge = aligned_alloc(2 << 20, 2 << 20);
    expect(huge && (uintptr_t)huge % (2 << 20) == 0, "large alignments work");
    free(huge);
    puts("well");
    return 0;
}
