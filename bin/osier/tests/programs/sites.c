/*
 * Allocates at call sites of several kinds, and says of each block in which memory it lies: that of a file, which is the
 * window, or private memory. With an argument it loads that library, and calls what is in it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))

static void expect(int is_so, const char *what) {
    if (is_so) return;
    fprintf(stderr, "sites: it is not so that %s\n", what);
    _exit(1);
}

/* What is mapped at an address, by the kernel's list. */
static const char *memory_of(const void *at) {
    static char name[256];
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    expect(maps != NULL, "the list can be read");
    name[0] = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char path[256] = "";
        sscanf(line, "%lx-%lx %*s %*s %*s %*s %255[^\n]", &start, &end, path);
        if ((uintptr_t)at >= start && (uintptr_t)at < end) strcpy(name, path);
    }
    fclose(maps);
    return strstr(name, "osier") ? "window" : "memory";
}

static void say(const char *who, const void *at) {
    printf("%s %s\n", who, memory_of(at));
}

static void fill(unsigned char *at, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++) at[i] = (unsigned char)(seed + i * 7 + (i >> 9));
}

static int is_filled(const unsigned char *at, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != (unsigned char)(seed + i * 7 + (i >> 9))) return 0;
    return 1;
}

/* A wrapper, as programs have them: it is who calls malloc. Its frame has a size that is known at run time alone. */
APART void *wrapped(size_t bytes) {
    volatile char room[1 + bytes % 100];
    room[0] = 1;
    void *at = malloc(bytes);
    return room[0] ? at : NULL;
}

static APART void *hidden(size_t bytes) {
    unsigned char *at = wrapped(bytes);
    fill(at, bytes, 1);
    return at;
}

static APART void *direct(size_t bytes) {
    unsigned char *at = malloc(bytes);
    fill(at, bytes, 2);
    return at;
}

APART void *zeroed(size_t bytes) {
    unsigned char *at = calloc(bytes / 8, 8);
    expect(at != NULL && at[0] == 0 && at[bytes - 1] == 0, "calloc is zero");
    fill(at, bytes, 3);
    return at;
}

APART void *aligned(size_t bytes) {
    void *at = NULL;
    expect(posix_memalign(&at, 256, bytes) == 0 && (uintptr_t)at % 256 == 0, "posix_memalign aligns");
    fill(at, bytes, 4);
    return at;
}

APART void *mapped(size_t bytes) {
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(at != MAP_FAILED && at[0] == 0 && at[bytes - 1] == 0, "mmap works");
    fill(at, bytes, 5);
    return at;
}

APART void *to_memory(void *at, size_t bytes) {
    void *moved = realloc(at, bytes);
    expect(moved != NULL, "realloc works");
    return moved;
}

APART void *to_window(void *at, size_t bytes) {
    void *moved = reallocarray(at, bytes / 4, 4);
    expect(moved != NULL, "reallocarray works");
    return moved;
}

APART void *to_wherever(void *at, size_t bytes) {
    void *moved = realloc(at, bytes);
    expect(moved != NULL, "realloc works");
    return moved;
}

static APART void resizes(size_t bytes) {
    unsigned char *at = direct(bytes);
    at = to_memory(at, 2 * bytes);
    expect(is_filled(at, bytes, 2), "a block that leaves the window keeps its bytes");
    say("to_memory", at);
    fill(at, 2 * bytes, 6);
    at = to_wherever(at, 3 * bytes);
    expect(is_filled(at, 2 * bytes, 6), "a block that stays keeps its bytes");
    say("stays_in_memory", at);
    at = to_window(at, bytes);
    expect(is_filled(at, bytes, 6), "a block that goes to the window keeps its bytes");
    say("to_window", at);
    at = to_wherever(at, 4 * bytes);
    expect(is_filled(at, bytes, 6), "a block that stays keeps its bytes");
    say("stays_in_window", at);
    at = to_memory(at, 16);
    expect(is_filled(at, 16, 6), "a block that becomes smaller keeps its bytes");
    free(at);
}

static APART void child(unsigned char **blocks, size_t bytes) {
    fflush(stdout);
    pid_t pid = fork();
    expect(pid >= 0, "fork works");
    if (pid == 0) {
        for (unsigned i = 0; i < 5; i++) {
            expect(is_filled(blocks[i], bytes, i + 1), "a child has the bytes");
            if (i < 4) blocks[i] = to_memory(blocks[i], bytes + 1);
            expect(is_filled(blocks[i], bytes, i + 1), "a child moves blocks");
            if (i < 4) free(blocks[i]);
        }
        free(direct(bytes));
        free(hidden(bytes));
        _exit(0);
    }
    int status;
    expect(waitpid(pid, &status, 0) == pid && status == 0, "the child is well");
}

static APART void library(const char *path, size_t bytes) {
    for (int round = 0; round < 3; round++) {
        void *handle = dlopen(path, RTLD_NOW);
        expect(handle != NULL, "the library is there");
        void *(*allocate)(size_t) = (void *(*)(size_t))dlsym(handle, "allocate");
        expect(allocate != NULL, "it has its function");
        unsigned char *at = allocate(bytes);
        fill(at, bytes, 7);
        say("library", at);
        expect(is_filled(at, bytes, 7), "its block keeps its bytes");
        free(at);
        expect(dlclose(handle) == 0, "it can be closed");
    }
}

int main(int count, char **arguments) {
    size_t bytes = 256 << 10;
    unsigned char *blocks[] = {hidden(bytes), direct(bytes), zeroed(bytes), aligned(bytes), mapped(bytes)};
    const char *names[] = {"hidden", "direct", "zeroed", "aligned", "mapped"};
    for (int i = 0; i < 5; i++) say(names[i], blocks[i]);
    void *small = direct(100);
    say("small", small);
    free(small);
    void *plain = wrapped(bytes);
    say("wrapped", plain);
    free(plain);
    resizes(bytes);
    if (count > 1) library(arguments[1], bytes);
    child(blocks, bytes);
    for (unsigned i = 0; i < 5; i++) expect(is_filled(blocks[i], bytes, i + 1), "each block keeps its bytes");
    for (int i = 0; i < 4; i++) free(blocks[i]);
    expect(munmap(blocks[4], bytes) == 0, "what is mapped can be unmapped");
    puts("well");
    return 0;
}
