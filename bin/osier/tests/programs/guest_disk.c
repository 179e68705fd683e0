// The first process of a guest that has a device of the host's, at 10.0.2.2, port `port=`, as a disk: by NVMe/TCP, as the
// subsystem `nqn=`, for which it asks the discovery controller first; or by NBD (`via=nbd`); or as a virtio disk of the
// machine (`via=virtio`). It makes a file system of the kind `fs=` there, fills files, disconnects, connects anew, checks the file system and compares the files. Says
// `guest: well` at its end, or what is wrong.
//
// Modules are in /lib, in the order of /lib/order; the programs of e2fsprogs or xfsprogs in /sbin. What the host's side
// does meanwhile to what serves the disk is its own affair: `guest: writes` says where this is.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/nbd.h>
#include <linux/nvme_ioctl.h>
#include <net/if.h>
#include <net/route.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "guest.h"

enum { FILES = 24, CHUNKS = 16, CHUNK = 65536, TRIES = 600, TRY_US = 100000 };

static char words[1024];
static const char *disk = "/dev/nvme0n1";
static pid_t nbd_child;

// The value of a word of the kernel's command line, or what there is else.
static const char *word(const char *name, const char *other)
{
    static char value[4][256];
    static int turn;
    char *place = value[turn++ % 4], *at = strstr(words, name);
    if (!at || at[strlen(name)] != '=')
        return other;
    at += strlen(name) + 1;
    snprintf(place, 256, "%.*s", (int)strcspn(at, " \n"), at);
    return place;
}

static void load_modules(void)
{
    char name[64], path[96];
    FILE *order = fopen("/lib/order", "r");
    while (order && fscanf(order, "%63s", name) == 1) {
        snprintf(path, sizeof path, "/lib/%s", name);
        int file = open(path, O_RDONLY);
        if (file < 0 || (syscall(SYS_finit_module, file, "", 0) != 0 && errno != EEXIST))
            fail("%s cannot be loaded", path);
        close(file);
    }
    if (order)
        fclose(order);
}

static void address(struct sockaddr *place, const char *text)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    inet_pton(AF_INET, text, &in.sin_addr);
    memcpy(place, &in, sizeof in);
}

// The network card of a machine of QEMU's, which is 10.0.2.15 behind 10.0.2.2.
static void bring_network_up(void)
{
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq request = {0};
    strcpy(request.ifr_name, "eth0");
    address(&request.ifr_addr, "10.0.2.15");
    if (ioctl(any, SIOCSIFADDR, &request) != 0)
        fail("eth0 gets no address");
    address(&request.ifr_netmask, "255.255.255.0");
    if (ioctl(any, SIOCSIFNETMASK, &request) != 0)
        fail("eth0 gets no netmask");
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(any, SIOCSIFFLAGS, &request) != 0)
        fail("eth0 does not come up");
    close(any);
    // The card needs some seconds until its link is there, and what is sent before is lost.
    for (int tries = 0;; tries++, usleep(TRY_US)) {
        char carrier = '0';
        int file = open("/sys/class/net/eth0/carrier", O_RDONLY);
        int is_up = file >= 0 && read(file, &carrier, 1) == 1 && carrier == '1';
        close(file);
        if (is_up)
            return;
        if (tries == TRIES)
            fail("eth0 has no link");
    }
}

static void remove_controller(void)
{
    int file = open("/sys/class/nvme/nvme0/delete_controller", O_WRONLY);
    if (file < 0 || write(file, "1", 1) != 1)
        fail("cannot disconnect");
    close(file);
    for (int tries = 0; access("/dev/nvme0", F_OK) == 0; tries++) {
        if (tries == TRIES)
            fail("the controller stays");
        usleep(TRY_US);
    }
}

// Connects to a subsystem.
static void connect_to(const char *nqn)
{
    char options[512], name[64] = "";
    int length = snprintf(options, sizeof options,
                          "transport=tcp,traddr=10.0.2.2,trsvcid=%s,nqn=%s,hostnqn=nqn.2014-08.org.nvmexpress:uuid:"
                          "11111111-2222-3333-4444-555555555555,reconnect_delay=1,keep_alive_tmo=5%s%s",
                          word("port", "4420"), nqn, strcmp(word("digests", "0"), "0") ? ",hdr_digest" : "",
                          strcmp(word("digests", "0"), "0") ? ",data_digest" : "");
    int file = open("/dev/nvme-fabrics", O_RDWR), has_connected = 0;
    // On a machine that is busy the kernel's three seconds may be too few.
    for (int tries = 0; !has_connected && tries < 5; tries++) {
        has_connected = file >= 0 && write(file, options, length) == length;
        if (!has_connected && errno != ETIMEDOUT)
            break;
    }
    if (!has_connected)
        fail("cannot connect with %s", options);
    ssize_t got = read(file, name, sizeof name - 1);
    close(file);
    printf("guest: connected: %.*s\n", got > 0 ? (int)strcspn(name, "\n") : 0, name);
}

// Asks the discovery controller, which has to name the subsystem first.
static void discover(void)
{
    static uint8_t page[2048];
    connect_to("nqn.2014-08.org.nvmexpress.discovery");
    struct nvme_admin_cmd command = {.opcode = 2, .addr = (uintptr_t)page, .data_len = sizeof page};
    command.cdw10 = 0x70 | (sizeof page / 4 - 1) << 16;
    int file = -1;
    for (int tries = 0; file < 0 && tries < TRIES; tries++, usleep(TRY_US))
        file = open("/dev/nvme0", O_RDWR);
    if (file < 0 || ioctl(file, NVME_IOCTL_ADMIN_CMD, &command) != 0)
        fail("there is no discovery log");
    close(file);
    if (page[8] < 1 || page[1024] != 3 || strcmp((char *)page + 1024 + 256, word("nqn", "")) != 0)
        fail("discovery names %s", page + 1024 + 256);
    printf("guest: discovered\n");
    remove_controller();
}

static void exactly(ssize_t done, ssize_t wanted, const char *what)
{
    if (done != wanted)
        fail("NBD: %s", what);
}

// Connects by NBD ("Newstyle negotiation", NBD_OPT_EXPORT_NAME of the default export), and gives the socket to the kernel.
static void connect_nbd(void)
{
    struct sockaddr place;
    address(&place, "10.0.2.2");
    ((struct sockaddr_in *)&place)->sin_port = htons(atoi(word("port", "10809")));
    int server = socket(AF_INET, SOCK_STREAM, 0);
    if (server < 0 || connect(server, &place, sizeof place) != 0)
        fail("cannot connect to the NBD server");
    uint8_t greeting[18], answer[10], wanted[20] = {0, 0, 0, 3, 'I', 'H', 'A', 'V', 'E', 'O', 'P', 'T', 0, 0, 0, 1};
    exactly(recv(server, greeting, sizeof greeting, MSG_WAITALL), sizeof greeting, "no greeting");
    exactly(send(server, wanted, sizeof wanted, 0), sizeof wanted, "cannot ask for the export");
    exactly(recv(server, answer, sizeof answer, MSG_WAITALL), sizeof answer, "no export");
    uint64_t bytes = 0;
    for (int at = 0; at < 8; at++)
        bytes = bytes << 8 | answer[at];
    int file = open(disk, O_RDWR);
    int set = ioctl(file, NBD_SET_BLKSIZE, 4096UL) == 0 && ioctl(file, NBD_SET_SIZE_BLOCKS, bytes / 4096) == 0 &&
              ioctl(file, NBD_SET_FLAGS, (unsigned long)(answer[8] << 8 | answer[9])) == 0 &&
              ioctl(file, NBD_SET_SOCK, (unsigned long)server) == 0;
    if (file < 0 || !set)
        fail("%s takes no server", disk);
    nbd_child = fork();
    if (nbd_child == 0) {
        ioctl(file, NBD_DO_IT);
        _exit(0);
    }
    close(file);
    close(server);
    // It has its size when the kernel has begun.
    for (int tries = 0;; tries++, usleep(TRY_US)) {
        uint64_t size = 0;
        file = open(disk, O_RDONLY);
        int has_size = file >= 0 && ioctl(file, BLKGETSIZE64, &size) == 0 && size == bytes;
        close(file);
        if (has_size)
            break;
        if (tries == TRIES)
            fail("%s has %llu bytes", disk, (unsigned long long)size);
    }
    printf("guest: connected: %llu bytes\n", (unsigned long long)bytes);
}

static void disconnect_nbd(void)
{
    int file = open(disk, O_RDWR);
    if (file < 0 || ioctl(file, NBD_DISCONNECT) != 0)
        fail("cannot disconnect");
    close(file);
    if (waitpid(nbd_child, NULL, 0) != nbd_child)
        fail("NBD goes on");
}

// Connects, and waits for the namespace.
static void connect_nvme(void)
{
    connect_to(word("nqn", ""));
    for (int tries = 0; access("/dev/nvme0n1", F_OK) != 0; tries++) {
        if (tries == TRIES)
            fail("there is no namespace");
        usleep(TRY_US);
    }
}

static void disconnect_nvme(void)
{
    remove_controller();
    for (int tries = 0; access("/dev/nvme0n1", F_OK) == 0; tries++) {
        if (tries == TRIES)
            fail("the namespace stays");
        usleep(TRY_US);
    }
}

static void fill(char *bytes, uint64_t seed);

// Reads a number of the disk's from sysfs.
static long attribute(const char *name)
{
    char path[96];
    long value = -1;
    snprintf(path, sizeof path, "/sys/block/vda/%s", name);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%ld", &value) != 1)
        fail("%s cannot be read", path);
    fclose(file);
    return value;
}

// A disk of the machine has only to be found; what it says of itself has to be what the device is.
static void find_virtio(void)
{
    for (int tries = 0; access(disk, F_OK) != 0; tries++) {
        if (tries == TRIES)
            fail("there is no %s", disk);
        usleep(TRY_US);
    }
    char id[32] = "";
    FILE *file = fopen("/sys/block/vda/serial", "r");
    if (!file || fscanf(file, "%31s", id) != 1)
        fail("%s has no name", disk);
    fclose(file);
    printf("guest: connected: %s, %ld sectors of %ld, discards %ld, zeroes %ld\n", id, attribute("size"),
           attribute("queue/logical_block_size"), attribute("queue/discard_max_bytes"),
           attribute("queue/write_zeroes_max_bytes"));
}

// Nothing of a disk may stay in the guest's own memory.
static void forget_virtio(void)
{
    int file = open(disk, O_RDWR);
    if (file < 0 || fsync(file) != 0 || ioctl(file, BLKFLSBUF, 0) != 0)
        fail("%s cannot be flushed", disk);
    close(file);
}

// Writes blocks, discards some and zeroes others: what is not zeroed is as it was, what is zeroed is zero.
static void cut_virtio(void)
{
    static char bytes[CHUNK] __attribute__((aligned(4096))), again[CHUNK] __attribute__((aligned(4096)));
    uint64_t zeroed[2] = {CHUNK / 4, CHUNK / 4}, discarded[2] = {CHUNK, CHUNK};
    int file = open(disk, O_RDWR | O_DIRECT);
    fill(bytes, 77);
    int done = file >= 0 && pwrite(file, bytes, CHUNK, 0) == CHUNK && pwrite(file, bytes, CHUNK, CHUNK) == CHUNK &&
               ioctl(file, BLKZEROOUT, zeroed) == 0 && ioctl(file, BLKDISCARD, discarded) == 0 &&
               pread(file, again, CHUNK, 0) == CHUNK;
    if (!done)
        fail("%s cannot be zeroed and discarded", disk);
    close(file);
    memset(bytes + CHUNK / 4, 0, CHUNK / 4);
    if (memcmp(bytes, again, CHUNK) != 0)
        fail("%s has other bytes where some were zeroed", disk);
    printf("guest: cut\n");
}

enum via { NVME, NBD, VIRTIO };

static void connect_disk(enum via via)
{
    via == VIRTIO ? find_virtio() : via == NBD ? connect_nbd() : connect_nvme();
}

static void disconnect_disk(enum via via)
{
    via == VIRTIO ? forget_virtio() : via == NBD ? disconnect_nbd() : disconnect_nvme();
}

// Runs a program; it has to end with 0.
static void run(char *const *arguments)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        execv(arguments[0], arguments);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        fail("%s ends with %d", arguments[0], WEXITSTATUS(status));
}

static void fill(char *bytes, uint64_t seed)
{
    for (uint64_t at = 0; at < CHUNK; at += 8) {
        uint64_t value = (seed * CHUNK + at + 1) * 0x9e3779b97f4a7c15;
        memcpy(bytes + at, &value, 8);
    }
}

// Says where it is when a file is about to be synced (`before`), so that a death hits what is under way, or when it has been.
static void write_files(int before)
{
    static char bytes[CHUNK];
    char path[64];
    for (int file = 0; file < FILES; file++) {
        snprintf(path, sizeof path, "/mnt/file%d", file);
        int out = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            fill(bytes, file * CHUNKS + chunk);
            if (out < 0 || write(out, bytes, CHUNK) != CHUNK)
                fail("%s cannot be written", path);
        }
        if (before)
            printf("guest: writes %d of %d\n", file + 1, FILES);
        if (fsync(out) != 0)
            fail("%s cannot be synced", path);
        close(out);
        if (!before)
            printf("guest: writes %d of %d\n", file + 1, FILES);
    }
}

static void compare_files(void)
{
    static char bytes[CHUNK], expected[CHUNK];
    char path[64];
    for (int file = 0; file < FILES; file++) {
        snprintf(path, sizeof path, "/mnt/file%d", file);
        int in = open(path, O_RDONLY);
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            fill(expected, file * CHUNKS + chunk);
            if (in < 0 || read(in, bytes, CHUNK) != CHUNK)
                fail("%s cannot be read", path);
            if (memcmp(bytes, expected, CHUNK) != 0)
                fail("%s has other bytes at %d", path, chunk * CHUNK);
        }
        close(in);
    }
    printf("guest: compares\n");
}

static void mount_it(const char *kind)
{
    if (mount(disk, "/mnt", kind, 0, "") != 0)
        fail("%s cannot be mounted", kind);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    mkdir("/proc", 0755);
    mkdir("/sys", 0755);
    mkdir("/mnt", 0755);
    mount("proc", "/proc", "proc", 0, "");
    mount("sysfs", "/sys", "sysfs", 0, "");
    mount("devtmpfs", "/dev", "devtmpfs", 0, "");
    FILE *line = fopen("/proc/cmdline", "r");
    if (!line || !fgets(words, sizeof words, line))
        fail("the command line cannot be read");
    fclose(line);
    load_modules();
    const char *kind = strdup(word("fs", "ext4")), *by = word("via", "nvme");
    int is_xfs = strcmp(kind, "xfs") == 0;
    enum via via = strcmp(by, "virtio") == 0 ? VIRTIO : strcmp(by, "nbd") == 0 ? NBD : NVME;

    if (via != VIRTIO)
        bring_network_up();
    if (via == NVME)
        discover();
    else
        disk = via == NBD ? "/dev/nbd0" : "/dev/vda";
    connect_disk(via);
    if (via == VIRTIO)
        cut_virtio();
    run(is_xfs ? (char *[]){"/sbin/mkfs.xfs", "-q", "-f", (char *)disk, NULL}
               : (char *[]){"/sbin/mke2fs", "-q", "-F", "-t", "ext4", (char *)disk, NULL});
    printf("guest: made %s\n", kind);
    mount_it(kind);
    write_files(via == VIRTIO);
    if (umount("/mnt") != 0)
        fail("cannot unmount");
    disconnect_disk(via);

    connect_disk(via);
    run(is_xfs ? (char *[]){"/sbin/xfs_repair", "-n", (char *)disk, NULL}
               : (char *[]){"/sbin/e2fsck", "-f", "-n", (char *)disk, NULL});
    printf("guest: checked\n");
    mount_it(kind);
    compare_files();
    if (umount("/mnt") != 0)
        fail("cannot unmount");
    disconnect_disk(via);
    printf("guest: well\n");
    power_off();
}
