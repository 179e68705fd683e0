// What the first processes of guests share: they say on the console what they found, and switch the machine off.
#include <stdarg.h>
#include <stdio.h>
#include <sys/reboot.h>
#include <unistd.h>

static _Noreturn void power_off(void)
{
    fflush(stdout);
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

static _Noreturn void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("guest: wrong: ");
    vprintf(format, arguments);
    printf(" (%m)\n");
    va_end(arguments);
    power_off();
}
