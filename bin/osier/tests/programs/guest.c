// The first process of a guest, and its only one: says what it sees of node 1, which has memory and no processors,
// fills memory that is bound to it, several times over, and checks every word. Says `guest: well` at its end, or what
// is wrong.
//
// What it is told comes as variables of the environment, which the kernel makes of words of its command line:
// bound_mib=N, passes=N (0 is without end).
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "guest.h"

enum { NODE = 1, BIND = 2, PAGE = 4096, WORDS = PAGE / 8, SAMPLE = 64 };

static unsigned long number(const char *name, unsigned long otherwise)
{
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : otherwise;
}

// Prints a file of the system's as one line.
static void show(const char *name, const char *path)
{
    char text[4096] = "";
    FILE *file = fopen(path, "r");
    if (!file)
        fail("there is no %s", path);
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = 0;
    text[strcspn(text, "\n")] = 0;
    printf("guest: %s [%s]\n", name, text);
}

// What belongs in a word; no two words of any two passes are alike.
static uint64_t word_of(uint64_t pass, uint64_t index)
{
    uint64_t mixed = (pass << 40 | index) * 0x9e3779b97f4a7c15;
    return mixed ^ mixed >> 29;
}

// The pages in an order that has no neighbours in it. The step is a prime that is larger than their number, so each
// comes once.
static uint64_t place(uint64_t page, uint64_t pages)
{
    return page * 2654435761 % pages;
}

static void fill(uint64_t *words, uint64_t pages, uint64_t pass)
{
    for (uint64_t page = 0; page < pages; page++) {
        uint64_t first = place(page, pages) * WORDS;
        for (uint64_t index = first; index < first + WORDS; index++)
            words[index] = word_of(pass, index);
    }
}

static uint64_t wrong_words(const uint64_t *words, uint64_t pages, uint64_t pass)
{
    uint64_t wrong = 0;
    for (uint64_t index = 0; index < pages * WORDS; index++)
        wrong += words[index] != word_of(pass, index);
    return wrong;
}

// Asks the kernel where pages are, now and then.
static void check_node(uint64_t *words, uint64_t pages)
{
    for (uint64_t page = 0; page < pages; page += pages / SAMPLE) {
        void *address = words + page * WORDS;
        int node = -1;
        if (syscall(SYS_move_pages, 0, 1ul, &address, NULL, &node, 0) != 0 || node != NODE)
            fail("page %lu is on node %d", (unsigned long)page, node);
    }
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    mkdir("/sys", 0755);
    if (mount("sysfs", "/sys", "sysfs", 0, NULL) != 0)
        fail("no /sys");
    show("nodes with memory", "/sys/devices/system/node/has_memory");
    show("nodes with processors", "/sys/devices/system/node/has_cpu");
    show("processors of node 1", "/sys/devices/system/node/node1/cpulist");
    show("distances of node 1", "/sys/devices/system/node/node1/distance");
    show("memory of node 1", "/sys/devices/system/node/node1/meminfo");

    uint64_t bytes = number("bound_mib", 16) << 20, pages = bytes / PAGE;
    uint64_t *words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned long nodes = 1ul << NODE;
    if (words == MAP_FAILED || syscall(SYS_mbind, words, bytes, BIND, &nodes, 8ul * sizeof nodes, 0ul) != 0)
        fail("memory cannot be bound to node 1");
    unsigned long passes = number("passes", 2);
    printf("guest: begins\n");
    for (unsigned long pass = 1; passes == 0 || pass <= passes; pass++) {
        fill(words, pages, pass);
        if (pass == 1) {
            check_node(words, pages);
            // A check that can find nothing wrong is none.
            words[bytes / 16] ^= 1;
            if (wrong_words(words, pages, pass) != 1)
                fail("the check does not see a wrong word");
            words[bytes / 16] ^= 1;
        }
        uint64_t wrong = wrong_words(words, pages, pass);
        if (wrong)
            fail("%lu words of pass %lu", (unsigned long)wrong, pass);
        if (passes || pass == 1)
            printf("guest: pass %lu of %lu MiB\n", pass, (unsigned long)(bytes >> 20));
    }
    printf("guest: well\n");
    power_off();
}
