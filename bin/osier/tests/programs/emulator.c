// What a machine emulator does with a guest's memory, without a machine: maps the file that it is told of where it has
// reserved addresses, uses the memory itself and by system calls, and tries what would take the memory away.
//
// Says `well` at its end, or what is wrong. The memory is zero at its beginning, and is not left so.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, GUARD = 16 * PAGE };

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("wrong: %s (line %d, errno %d)\n", #what, __LINE__, errno);                                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

// The text behind `name=` in the argument that describes the window.
static const char *described(int count, char **arguments, const char *name)
{
    for (int index = 1; index < count; index++) {
        const char *found = strstr(arguments[index], name);
        if (strncmp(arguments[index], "memory-backend-file,", 20) == 0 && found)
            return found + strlen(name);
    }
    printf("wrong: no %s\n", name);
    exit(1);
}

static uint64_t word_of(uint64_t page)
{
    return (page + 1) * 0x9e3779b97f4a7c15;
}

int main(int count, char **arguments)
{
    char path[64] = "";
    sscanf(described(count, arguments, "mem-path="), "%63[^,]", path);
    size_t bytes = strtoul(described(count, arguments, "size="), NULL, 10), pages = bytes / PAGE;

    int file = open(path, O_RDWR | O_CLOEXEC);
    CHECK(file >= 0 && lseek(file, 0, SEEK_END) == (off_t)bytes);
    char *reserved = mmap(NULL, bytes + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(reserved != MAP_FAILED);
    // Part of it, or for loads alone, is not to be had.
    CHECK(mmap(NULL, bytes / 2, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED);
    CHECK(mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0) == MAP_FAILED);
    char *memory = mmap(reserved + GUARD, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    CHECK(memory == reserved + GUARD);
    CHECK(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED);
    // What else an emulator allocates is ordinary memory, and there is enough of it.
    for (int index = 0; index < 8; index++) {
        char *other = malloc(bytes);
        CHECK(other);
        memset(other, 1, bytes);
        free(other);
    }
    // Hints of every kind.
    madvise(memory, bytes, MADV_HUGEPAGE);
    madvise(memory, bytes, MADV_MERGEABLE);
    CHECK(madvise(memory, bytes, MADV_DONTFORK) == 0 && madvise(memory, bytes, MADV_DONTDUMP) == 0);

    static const char nothing[PAGE];
    for (size_t page = 0; page < pages; page++) {
        CHECK(memcmp(memory + page * PAGE, nothing, PAGE) == 0);
        memcpy(memory + page * PAGE, &(uint64_t){word_of(page)}, 8);
    }
    // What would take it away does not.
    CHECK(madvise(memory, bytes, MADV_REMOVE) != 0);
    CHECK(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) != 0);
    CHECK(mmap(memory, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED);
    CHECK(mremap(memory, bytes, 2 * bytes, MREMAP_MAYMOVE) == MAP_FAILED);
    CHECK(madvise(memory, bytes, MADV_DONTNEED) == 0);
    for (size_t page = 0; page < pages; page++)
        CHECK(*(uint64_t *)(memory + page * PAGE) == word_of(page));

    // A guest's disk: the kernel loads from pages and stores to pages that are not in the cache.
    FILE *disk = tmpfile();
    CHECK(disk);
    size_t half = bytes / 2;
    CHECK(pwrite(fileno(disk), memory, half, 0) == (ssize_t)half);
    CHECK(pread(fileno(disk), memory + half, half, 0) == (ssize_t)half);
    for (size_t page = 0; page < pages; page++)
        CHECK(*(uint64_t *)(memory + page * PAGE) == word_of(page % (pages / 2)));
    // All that was reserved goes, but for the window.
    CHECK(munmap(reserved, bytes + 2 * GUARD) == 0);
    CHECK(*(uint64_t *)memory == word_of(0));
    CHECK(msync(reserved, PAGE, MS_ASYNC) != 0 && msync(memory + bytes, PAGE, MS_ASYNC) != 0);
    printf("well\n");
    return 0;
}
