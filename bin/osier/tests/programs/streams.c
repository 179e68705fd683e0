/* Uses a file of 2 MiB by the C library's streams, and asks for its attributes; says what came of it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#define BYTES (2 << 20)

static void expect(int is_so, const char *what) {
    if (is_so) return;
    fprintf(stderr, "streams: it is not so that %s: %s\n", what, strerror(errno));
    exit(1);
}

static unsigned char byte(size_t at) {
    return (unsigned char)(at * 13 + (at >> 10));
}

static void says(const char *what, long result) {
    printf("%s: %ld %s\n", what, result, result < 0 ? strerror(errno) : "");
}

int main(int count, char **arguments) {
    const char *path = arguments[1];
    if (count > 2) {
        puts(freopen(path, "r", stdin) ? "open" : strerror(errno));
        return 0;
    }
    FILE *file = fopen(path, "r+");
    expect(file != NULL, "it can be opened");
    for (size_t at = 0; at < BYTES; at++) expect(putc(byte(at), file) != EOF, "a byte can be written");
    expect(ftell(file) == BYTES && fflush(file) == 0, "all of it is written");
    expect(fseek(file, 0, SEEK_END) == 0 && ftell(file) == BYTES, "it has its size");
    expect(fseek(file, 4097, SEEK_SET) == 0 && getc(file) == byte(4097), "a place can be sought");
    expect(fprintf(file, "word %d\n", 42) == 8 && fclose(file) == 0, "text can be written");
    file = fopen(path, "rb");
    char line[16];
    expect(file && fseek(file, 4098, SEEK_SET) == 0 && fgets(line, 16, file), "a line can be read");
    expect(strcmp(line, "word 42\n") == 0, "it is what was written");
    unsigned char *all = malloc(BYTES + 1);
    rewind(file);
    expect(fread(all, 1, BYTES + 1, file) == BYTES && feof(file), "it ends where it ends");
    for (size_t at = 0; at < BYTES; at++)
        expect(at - 4098 < 8 || all[at] == byte(at), "each byte is what was written");
    errno = 0;
    expect(fputc('x', file) == EOF && errno == EBADF, "what is open for reading is not written to");
    fclose(file);
    int fd = open(path, O_RDONLY);
    expect(fdopen(fd, "w") == NULL && errno == EINVAL, "a descriptor's mode is respected");
    file = fdopen(fd, "r");
    expect(file && fgetc(file) == byte(0) && fclose(file) == 0, "a descriptor has a stream");
    expect(close(fd) < 0 && errno == EBADF, "the stream has closed it");
    expect(fopen(path, "wx") == NULL && errno == EEXIST, "it is there already");
    expect(fopen(path, "?") == NULL && errno == EINVAL, "a mode is one of three");

    char value[64];
    says("system.posix_acl_access", getxattr(path, "system.posix_acl_access", value, sizeof value));
    says("user.none", lgetxattr(path, "user.none", value, sizeof value));
    says("nonsense", getxattr(path, "nonsense", value, sizeof value));
    fd = open(path, O_RDWR);
    says("by number", fgetxattr(fd, "system.posix_acl_access", value, sizeof value));
    says("all", listxattr(path, value, sizeof value));
    says("all of it", llistxattr(path, value, sizeof value));
    says("all by number", flistxattr(fd, value, sizeof value));
    puts("well");
    return 0;
}
