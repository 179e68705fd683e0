// The first process of a guest, and its only one, whose machine has a CXL Type 3 device: makes a region of it, as `cxl
// create-region` does, maps the region, and stores and loads through it. Says `guest: well` at its end, or what is wrong.
//
// The modules cxl_acpi, cxl_pci and cxl_mem are in /lib. QEMU carries out each access by itself, so there are few.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include "guest.h"

#define BUS "/sys/bus/cxl/devices/"

enum { PAGE = 4096, STEP = 1024, BYTES = 24 << 20, TRIES = 100, TRY_US = 50000 };

static void load_module(const char *path)
{
    int file = open(path, O_RDONLY);
    if (file < 0 || syscall(SYS_finit_module, file, "", 0) != 0)
        fail("%s cannot be loaded", path);
    close(file);
}

// The first word of a file of the system's.
static void load(const char *path, char *text, size_t length)
{
    int file = open(path, O_RDONLY);
    ssize_t got = file < 0 ? -1 : read(file, text, length - 1);
    if (got <= 0)
        fail("%s cannot be read", path);
    text[got] = 0;
    text[strcspn(text, "\n")] = 0;
    close(file);
}

// Stores a word into a file of the system's, as a line: one of them insists on that.
static void store(const char *path, const char *text)
{
    char line[128];
    int length = snprintf(line, sizeof line, "%s\n", text), file = open(path, O_WRONLY);
    if (file < 0 || write(file, line, length) != length)
        fail("%s cannot be made %s", path, text);
    close(file);
}

static uint64_t word_of(uint64_t index)
{
    return (index + 1) * 0x9e3779b97f4a7c15;
}

int main(void)
{
    char size[32], name[32], path[128], text[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    mkdir("/sys", 0755);
    if (mount("sysfs", "/sys", "sysfs", 0, NULL) != 0 || mknod("/dev/mem", S_IFCHR | 0600, makedev(1, 1)) != 0)
        fail("no /sys or no /dev/mem");
    load_module("/lib/cxl_acpi.ko");
    load_module("/lib/cxl_pci.ko");
    load_module("/lib/cxl_mem.ko");
    // The device's decoder is the last that the drivers find, in their own time.
    for (int tries = 0; access(BUS "decoder2.0", F_OK) != 0; tries++) {
        if (tries == TRIES)
            fail("there is no CXL device");
        usleep(TRY_US);
    }
    load(BUS "mem0/pmem/size", size, sizeof size);
    printf("guest: a CXL device of %s bytes\n", size);

    load(BUS "decoder0.0/create_pmem_region", name, sizeof name);
    store(BUS "decoder0.0/create_pmem_region", name);
    store(BUS "decoder2.0/mode", "pmem");
    store(BUS "decoder2.0/dpa_size", size);
    const char *const settings[][2] = {
        {"interleave_granularity", "256"},
        {"interleave_ways", "1"},
        {"uuid", "5c1b1b1b-0000-4000-8000-000000000001"},
        {"size", size},
        {"target0", "decoder2.0"},
        {"commit", "1"},
    };
    for (size_t index = 0; index < sizeof settings / sizeof *settings; index++) {
        snprintf(path, sizeof path, BUS "%s/%s", name, settings[index][0]);
        store(path, settings[index][1]);
    }
    snprintf(path, sizeof path, BUS "%s/resource", name);
    load(path, text, sizeof text);

    int memory = open("/dev/mem", O_RDWR | O_SYNC);
    volatile uint64_t *words = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, strtoull(text, NULL, 0));
    if (words == MAP_FAILED)
        fail("the region at %s cannot be mapped", text);
    printf("guest: begins\n");
    for (uint64_t index = 0; index < BYTES / STEP; index++)
        words[index * STEP / 8] = word_of(index);
    for (uint64_t index = 0; index < BYTES / STEP; index++)
        if (words[index * STEP / 8] != word_of(index))
            fail("the word at %lu", (unsigned long)(index * STEP));
    printf("guest: well\n");
    power_off();
}
