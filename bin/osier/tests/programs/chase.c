/*
 * Follows a chain through as many MiB as its argument says, in two threads, one of which keeps all signals away and has a
 * handler of one. Prints how many nanoseconds of a thread's time a step took. It knows nothing of windows.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LINE 64
#define STEPS 4000000

static char *chain;
static size_t lines;
static volatile sig_atomic_t alarms;

static void on_alarm(int number) {
    (void)number;
    alarms++;
}

static double thread_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static size_t follow(size_t steps) {
    void **at = (void **)chain;
    while (steps--) at = (void **)*at;
    return ((char *)at - chain) / LINE;
}

static void *quiet(void *result) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    double began = thread_ns();
    if (follow(lines * 4) != 0) _exit(3);
    follow(STEPS);
    *(double *)result = (thread_ns() - began) / (STEPS + lines * 4);
    return NULL;
}

int main(int count, char **arguments) {
    lines = (size_t)(count > 1 ? atoi(arguments[1]) : 16) * (1 << 20) / LINE;
    chain = mmap(NULL, lines * LINE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (chain == MAP_FAILED) return 2;
    uint32_t *order = malloc(lines * sizeof *order);
    uint64_t random = 1;
    for (size_t i = 0; i < lines; i++) order[i] = i;
    for (size_t i = lines - 1; i > 0; i--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t j = (random >> 20) % i;
        uint32_t other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
    for (size_t i = 0; i < lines; i++) {
        /* The order is a cycle, and the line after the one with number 0 is where it ends. */
        *(void **)(chain + (size_t)order[i] * LINE) = chain + (size_t)order[(i + 1) % lines] * LINE;
    }
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    signal(SIGSTKFLT, SIG_IGN);
    struct timespec every = {.tv_nsec = 10000000};
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    struct itimerspec times = {.it_interval = every, .it_value = every};
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &times, NULL)) return 4;
    double other = 0, began = thread_ns();
    pthread_t thread;
    if (pthread_create(&thread, NULL, quiet, &other)) return 5;
    if (follow(lines) != 0) return 6;
    follow(STEPS);
    double took = (thread_ns() - began) / (STEPS + lines);
    pthread_join(thread, NULL);
    /* A child has the bytes, and a system call with a buffer of them gives what is asked for. */
    int ends[2], status = 1;
    if (pipe(ends)) return 7;
    pid_t child = fork();
    if (child == 0) {
        alarm(0);
        for (size_t i = 0; i < lines; i += 1021)
            if (write(ends[1], chain + i * LINE, sizeof(void *)) != sizeof(void *)) _exit(8);
        _exit(follow(lines) == 0 ? 0 : 9);
    }
    close(ends[1]);
    void *link;
    for (size_t i = 0; read(ends[0], &link, sizeof link) == sizeof link; i += 1021)
        if (link != *(void **)(chain + i * LINE)) return 10;
    if (waitpid(child, &status, 0) != child || status != 0 || alarms == 0) return 11;
    printf("%.1f %.1f\n", took, other);
    return 0;
}
