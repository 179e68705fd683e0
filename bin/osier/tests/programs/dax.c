/*
 * Uses a path as programs do that are written for DAX: opens it, looks at it, maps parts of it, stores, flushes, reads and
 * writes by its descriptor, forks. It knows nothing of windows: what it expects is what the manual pages promise of a file
 * that is as long as its second argument says in MiB. Its first argument is the path.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static void expect(int is_so, const char *what) {
    if (!is_so) {
        fprintf(stderr, "dax: it is not so that %s (%s)\n", what, strerror(errno));
        _exit(1);
    }
}

static void refuses(long result, int code, const char *what) {
    if (result == -1 && errno == code) return;
    fprintf(stderr, "dax: %s gives %ld with %s and not with %s\n", what, result, strerror(errno), strerror(code));
    _exit(1);
}

static unsigned char byte(size_t at, unsigned seed) { return (unsigned char)(at * 31 + (at >> 8) * 7 + (at >> 16) + seed); }

static void fill(unsigned char *map, size_t from, size_t to, unsigned seed) {
    for (size_t at = from; at < to; at++) map[at] = byte(at, seed);
}

static int is_filled(const unsigned char *map, size_t from, size_t to, unsigned seed) {
    for (size_t at = from; at < to; at++)
        if (map[at] != byte(at, seed)) return 0;
    return 1;
}

static const char *path;
static size_t bytes;

static void *map(int fd, size_t length, size_t offset, int protection) {
    void *at = mmap(NULL, length, protection, MAP_SHARED, fd, (off_t)offset);
    expect(at != MAP_FAILED, "a part of the path can be mapped");
    return at;
}

/* As libpmem looks at a file before it maps it. */
static int looked_at(void) {
    struct stat by_name, by_fd;
    expect(stat(path, &by_name) == 0 && S_ISREG(by_name.st_mode), "the path is a regular file");
    expect((size_t)by_name.st_size == bytes, "it is as long as it says");
    expect(access(path, R_OK | W_OK) == 0, "it may be read and written");
    refuses(open(path, O_RDWR | O_CREAT | O_EXCL, 0600), EEXIST, "to make it anew");
    refuses(open(path, O_RDWR | O_TRUNC), EINVAL, "to empty it");
    refuses(open(path, O_RDONLY | O_DIRECTORY), ENOTDIR, "to open it as a directory");
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    expect(fd >= 0, "it can be opened");
    expect(fstat(fd, &by_fd) == 0 && by_fd.st_ino == by_name.st_ino && by_fd.st_size == by_name.st_size, "both are it");
    expect(ftruncate(fd, (off_t)bytes) == 0 && posix_fallocate(fd, 0, (off_t)bytes) == 0, "all of it is there");
    refuses(ftruncate(fd, (off_t)bytes / 2), EPERM, "to make it shorter");
    refuses(fallocate(fd, 0, (off_t)bytes, PAGE), ENOSPC, "to make it longer");
    refuses(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE), EOPNOTSUPP, "to make a hole");
    expect(flock(fd, LOCK_EX | LOCK_NB) == 0, "it can be locked");
    int second = open(path, O_RDWR);
    refuses(flock(second, LOCK_EX | LOCK_NB), EWOULDBLOCK, "to lock it twice");
    close(second);
    return fd;
}

static void what_cannot_be_mapped_is_refused(int fd) {
    const int rw = PROT_READ | PROT_WRITE;
    refuses((long)mmap(NULL, PAGE, rw, MAP_SHARED, fd, (off_t)bytes), EINVAL, "to map behind the end");
    refuses((long)mmap(NULL, 2 * PAGE, rw, MAP_SHARED, fd, (off_t)bytes - PAGE), EINVAL, "to map across the end");
    refuses((long)mmap(NULL, PAGE, rw, MAP_SHARED, fd, 512), EINVAL, "to map from within a page");
    refuses((long)mmap(NULL, 0, rw, MAP_SHARED, fd, 0), EINVAL, "to map nothing");
    refuses((long)mmap(NULL, PAGE, rw, MAP_PRIVATE, fd, 0), EINVAL, "to map it privately");
    refuses((long)mmap(NULL, PAGE, rw | PROT_EXEC, MAP_SHARED, fd, 0), EACCES, "to map it as code");
    int to_read = open(path, O_RDONLY);
    refuses((long)mmap(NULL, PAGE, rw, MAP_SHARED, to_read, 0), EACCES, "to map for stores what was opened to read");
    unsigned char *shown = map(to_read, PAGE, 0, PROT_READ);
    refuses(mprotect(shown, PAGE, rw), EACCES, "to make that writable");
    munmap(shown, PAGE);
    refuses(write(to_read, "x", 1), EBADF, "to write to what was opened to read");
    close(to_read);
    FILE *stream = fdopen(dup(fd), "r+");
    expect(stream && fileno(stream) < 0 && fclose(stream) == 0, "a descriptor has a stream, which has no number");
}

/* MAP_SYNC promises that what was stored stays without msync. */
static void synchronous_mappings_are(int is_durable, int fd) {
    void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
    if (is_durable) {
        expect(at != MAP_FAILED && munmap(at, PAGE) == 0, "it can be mapped synchronously");
    } else {
        refuses((long)at, EOPNOTSUPP, "to map it synchronously");
    }
}

static sigjmp_buf back;
static void on_fault(int signal) { siglongjmp(back, signal); }

static int faults(volatile unsigned char *at) {
    int signal = sigsetjmp(back, 1);
    if (signal == 0) (void)*at;
    return signal;
}

static void mappings_are_of_the_same_bytes(int fd) {
    size_t half = bytes / 2;
    unsigned char *all = map(fd, bytes, 0, PROT_READ | PROT_WRITE);
    expect(((uintptr_t)all & ((2 << 20) - 1)) == 0, "it lies where a large page could");
    fill(all, 0, bytes, 1);
    /* Again, while it is mapped; and a part of it for loads alone. */
    unsigned char *again = map(fd, half, half, PROT_READ | PROT_WRITE);
    unsigned char *shown = map(fd, 3 * PAGE, PAGE, PROT_READ);
    expect(again != all + half && is_filled(again - half, half, bytes, 1), "a second mapping has the same bytes");
    expect(is_filled(shown - PAGE, PAGE, 4 * PAGE, 1), "one for loads, too");
    again[0] ^= 0xff;
    all[2 * PAGE] ^= 0xff;
    expect(all[half] == again[0] && shown[PAGE] == all[2 * PAGE], "a store in one is seen in the others");
    again[0] ^= 0xff;
    all[2 * PAGE] ^= 0xff;
    expect(munmap(shown, 3 * PAGE) == 0 && munmap(again, half) == 0, "they can be unmapped");
    /* A part of a mapping goes, and what is around it stays. */
    struct sigaction action = {.sa_handler = on_fault}, before;
    sigaction(SIGSEGV, &action, &before);
    expect(munmap(all + 16 * PAGE, 8 * PAGE) == 0, "a part can be unmapped");
    expect(faults(all + 16 * PAGE) == SIGSEGV && faults(all + 24 * PAGE - 1) == SIGSEGV, "nothing is there then");
    expect(faults(all + 15 * PAGE) == 0 && faults(all + 24 * PAGE) == 0, "what is around it is");
    refuses(msync(all, 32 * PAGE, MS_SYNC), ENOMEM, "to flush what is not mapped");
    expect(is_filled(all, 0, 16 * PAGE, 1) && is_filled(all, 24 * PAGE, bytes, 1), "around it nothing has changed");
    /* At a fixed place, where something else was. */
    unsigned char *place = mmap(NULL, 8 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *fixed =
        mmap(place, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 16 * PAGE);
    expect(fixed == place && is_filled(fixed - 16 * PAGE, 16 * PAGE, 20 * PAGE, 1), "it is mapped where it is wanted");
    expect(mprotect(fixed, PAGE, PROT_NONE) == 0 && faults(fixed) == SIGSEGV, "it can be protected");
    expect(mprotect(fixed, PAGE, PROT_READ) == 0 && faults(fixed) == 0, "and be made accessible again");
    sigaction(SIGSEGV, &before, NULL);
    expect(madvise(all, PAGE, MADV_DONTNEED) == 0 && is_filled(all, 0, PAGE, 1), "what is not needed keeps its bytes");
    expect(munmap(fixed, 4 * PAGE) == 0 && munmap(all, bytes) == 0, "all can be unmapped");
    all = map(fd, bytes, 0, PROT_READ | PROT_WRITE);
    expect(is_filled(all, 0, bytes, 1), "mapped again it has its bytes");
    expect(msync(all, bytes, MS_SYNC) == 0 && fsync(fd) == 0 && fdatasync(fd) == 0, "it can be flushed");
    expect(msync(all, bytes, MS_ASYNC) == 0 && is_filled(all, 0, bytes, 1), "flushed it has its bytes");
    refuses(msync(all, bytes, MS_SYNC | MS_ASYNC), EINVAL, "to flush it now and later");
    expect(munmap(all, bytes) == 0, "it can be unmapped again");
}

static void calls_move_the_same_bytes(int fd) {
    unsigned char *all = map(fd, bytes, 0, PROT_READ | PROT_WRITE), buffer[3 * PAGE];
    expect(pread(fd, buffer, sizeof buffer, 100) == sizeof buffer && !memcmp(buffer, all + 100, sizeof buffer), "pread reads");
    memset(buffer, 5, sizeof buffer);
    expect(pwrite(fd, buffer, 5000, 4000) == 5000 && !memcmp(all + 4000, buffer, 5000), "pwrite writes");
    expect(all[3999] == byte(3999, 1) && all[9000] == byte(9000, 1), "and nothing around it");
    fill(all, 4000, 9000, 1);
    expect(lseek(fd, -100, SEEK_END) == (off_t)bytes - 100 && read(fd, buffer, 200) == 100, "read reads to the end");
    expect(!memcmp(buffer, all + bytes - 100, 100) && read(fd, buffer, 1) == 0, "which is the end");
    refuses(write(fd, buffer, 1), ENOSPC, "to write behind it");
    struct iovec parts[2] = {{buffer, 10}, {buffer + 20, 30}};
    expect(lseek(fd, PAGE, SEEK_SET) == PAGE && readv(fd, parts, 2) == 40 && lseek(fd, 0, SEEK_CUR) == PAGE + 40, "readv");
    expect(!memcmp(buffer, all + PAGE, 10) && !memcmp(buffer + 20, all + PAGE + 10, 30), "readv reads all parts");
    int other = open("/dev/null", O_WRONLY);
    off_t from = 0;
    refuses(copy_file_range(fd, &from, other, NULL, PAGE, 0), EINVAL, "to let the kernel copy");
    close(other);
    munmap(all, bytes);
}

/* What one stores the other sees, with no exec in between. */
static void a_child_shares_them(int fd) {
    unsigned char *all = map(fd, bytes, 0, PROT_READ | PROT_WRITE);
    pid_t child = fork();
    if (child == 0) {
        expect(is_filled(all, 0, bytes, 1), "a child has its parent's bytes");
        fill(all, 0, bytes / 2, 2);
        int again = open(path, O_RDWR);
        unsigned char *own = map(again, PAGE, bytes - PAGE, PROT_READ | PROT_WRITE);
        fill(own - (bytes - PAGE), bytes - PAGE, bytes, 3);
        _exit(0);
    }
    int status;
    expect(waitpid(child, &status, 0) == child && status == 0, "the child ends well");
    expect(is_filled(all, 0, bytes / 2, 2) && is_filled(all, bytes - PAGE, bytes, 3), "it stored for its parent, too");
    fill(all, 0, bytes, 1);
    munmap(all, bytes);
}

static void *wait_for_ever(void *fd) {
    char letter;
    (void)!read(*(int *)fd, &letter, 1);
    return NULL;
}

/* The calls of other files are what they were. */
static void a_thread_that_reads_can_be_cancelled(void) {
    int ends[2];
    pthread_t thread;
    void *result;
    expect(pipe(ends) == 0 && pthread_create(&thread, NULL, wait_for_ever, &ends[0]) == 0, "a thread can be made");
    usleep(20000);
    expect(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED, "cancelled");
}

int main(int count, char **arguments) {
    path = arguments[1];
    bytes = strtoul(arguments[2], NULL, 10) << 20;
    int is_durable = count > 3 && !strcmp(arguments[3], "durable");
    if (count > 3 && !strcmp(arguments[3], "check")) {
        int fd = open(path, O_RDWR);
        expect(is_filled(map(fd, bytes, 0, PROT_READ), 0, bytes, 1), "what another program stored is there");
        puts("well");
        return 0;
    }
    int fd = looked_at();
    what_cannot_be_mapped_is_refused(fd);
    synchronous_mappings_are(is_durable, fd);
    mappings_are_of_the_same_bytes(fd);
    calls_move_the_same_bytes(fd);
    a_child_shares_them(fd);
    a_thread_that_reads_can_be_cancelled();
    puts("well");
    return 0;
}
