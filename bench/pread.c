/* Nanoseconds of one cached pread and one pwrite of 4 KiB, of a read at the position, and microseconds of one pread of 1 MiB:
 * pread FILE CALLS. Best of five rounds. An ordinary program, for bench/preload.sh. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char bytes[1 << 20];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

#define BEST(name, unit, calls, call) do { \
    double best = 1e18; \
    for (int round = 0; round < 5; round++) { \
        double began = now(); \
        for (long i = 0; i < (calls); i++) if (!(call)) { perror(name); return 1; } \
        double took = (now() - began) / (calls); \
        if (took < best) best = took; \
    } \
    printf("\"%s\": %.0f%s", name, best / (unit), strcmp(name, "pread_1m_us") ? ", " : "\n"); \
} while (0)

int main(int count, char **words)
{
    if (count != 3) return 2;
    int fd = open(words[1], O_RDWR | O_CREAT, 0644);
    long calls = atol(words[2]);
    if (fd < 0 || write(fd, bytes, sizeof bytes) != sizeof bytes) { perror(words[1]); return 1; }
    BEST("pread_4k_ns", 1, calls, pread(fd, bytes, 4096, i % 256 * 4096) == 4096);
    BEST("read_4k_ns", 1, calls, (i % 256 || lseek(fd, 0, SEEK_SET) == 0) && read(fd, bytes, 4096) == 4096);
    BEST("pwrite_4k_ns", 1, calls, pwrite(fd, bytes, 4096, i % 256 * 4096) == 4096);
    BEST("pread_1m_us", 1e3, calls / 100 + 1, pread(fd, bytes, sizeof bytes, 0) == (ssize_t)sizeof bytes);
    return 0;
}
