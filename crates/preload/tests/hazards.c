/* Programs that do to descriptors what programs do, under libstria_posix.so: hazards STEP FILE. FILE is on a mount and holds
 * RECORDS records of 8 bytes, each its own number. Says "well" where everything was as POSIX has it and bytes went
 * through the rings; crates/cluster/tests/preload.rs runs it with STRIA_POSIX_AFTER=0. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef LIBRARY
/* A library that the program is linked to jumps before any library that is preloaded has begun. */
__attribute__((constructor)) static void begins(void)
{
    jmp_buf here;
    volatile int times = 0;
    if (setjmp(here) < 3) longjmp(here, ++times);
}
#else
#define RECORDS 4096
#define CHECK(what) do { if (!(what)) { printf("line %d: not so: %s (%s)\n", __LINE__, #what, strerror(errno)); fflush(stdout); _exit(1); } } while (0)

static uint64_t (*calls)(void);
static const char *path;

static int file(int flags) { int fd = open(path, flags, 0644); CHECK(fd >= 0); return fd; }
static uint64_t next(int fd) { uint64_t n; CHECK(read(fd, &n, 8) == 8); return n; }
static uint64_t record(int fd, uint64_t i) { uint64_t n; CHECK(pread(fd, &n, 8, 8 * i) == 8); return n; }
static off_t at(int fd) { return syscall(SYS_lseek, fd, 0, SEEK_CUR); }
/* What was done since `before` went through the rings, or did not. */
static void rings(uint64_t before) { CHECK(calls() > before); }
static void kernels(uint64_t before) { CHECK(calls() == before); }
static void ended_well(pid_t pid) { int s; CHECK(waitpid(pid, &s, 0) == pid); CHECK(WIFEXITED(s) && WEXITSTATUS(s) == 0); }

static void plain(void)
{
    int fd = file(O_RDWR);
    uint64_t before = calls(), pair[2], one = 77;
    for (uint64_t i = 0; i < 100; i++) CHECK(next(fd) == i);
    CHECK(calls() == before + 100 && at(fd) == 800);
    CHECK(lseek(fd, 8 * 500, SEEK_SET) == 4000 && next(fd) == 500);
    struct iovec two[] = {{&pair[0], 8}, {&one, 0}, {&pair[1], 8}};
    CHECK(readv(fd, two, 3) == 16 && pair[0] == 501 && pair[1] == 502 && at(fd) == 8 * 503);
    CHECK(preadv(fd, two, 3, 80) == 16 && pair[0] == 10 && pair[1] == 11 && at(fd) == 8 * 503);
    CHECK(preadv2(fd, two, 3, -1, 0) == 16 && pair[0] == 503);
    before = calls();
    CHECK(write(fd, &one, 8) == 8 && at(fd) == 8 * 506 && record(fd, 505) == 77);
    CHECK(pwritev(fd, two, 3, 0) == 16 && record(fd, 0) == 503 && record(fd, 1) == 504);
    CHECK(calls() == before + 5);
    /* Errors are the kernel's, and errno stays where there is none. */
    CHECK(pread(fd, &one, 8, -1) == -1 && errno == EINVAL);
    void *volatile nowhere = NULL;
    CHECK(read(fd, nowhere, 8) == -1 && errno == EFAULT);
    errno = 99;
    CHECK(lseek(fd, 0, SEEK_END) == 8 * RECORDS && read(fd, &one, 8) == 0 && errno == 99);
    int readonly = file(O_WRONLY);
    CHECK(read(readonly, &one, 8) == -1 && errno == EBADF);
    CHECK(fsync(fd) == 0 && fdatasync(fd) == 0);
    struct rlimit limit = {8 * RECORDS, 8 * RECORDS};
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(pwrite(fd, &one, 8, 8 * RECORDS) == -1 && errno == EFBIG);
}

static void duplicated(void)
{
    int fd = file(O_RDWR), other[4];
    uint64_t before = calls(), n = 0;
    CHECK(next(fd) == n++);
    other[0] = dup(fd);
    other[1] = dup2(fd, 100);
    other[2] = dup3(fd, 101, O_CLOEXEC);
    other[3] = fcntl(fd, F_DUPFD_CLOEXEC, 200);
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < 4; i++) CHECK(next(other[i]) == n++);
    CHECK(close(fd) == 0 && next(100) == n++ && lseek(101, 0, SEEK_SET) == 0 && next(other[0]) == 0);
    CHECK(calls() == before + 83);
    /* Onto a descriptor that was open: it is the other file now. */
    int null = open("/dev/null", O_RDWR);
    CHECK(dup2(null, 100) == 100 && read(100, &n, 8) == 0);
    CHECK(dup2(101, null) == null && next(null) == 1);
}

static void forked(void)
{
    int fd = file(O_RDWR);
    uint64_t before = calls();
    CHECK(next(fd) == 0);
    rings(before);
    pid_t child = fork();
    if (child == 0) {
        before = calls();
        for (uint64_t i = 1; i <= 10; i++) CHECK(next(fd) == i);
        kernels(before);
        /* What it opens itself is its own. */
        int mine = file(O_RDWR);
        CHECK(next(mine) == 0 && record(mine, 7) == 7);
        rings(before);
        _exit(0);
    }
    ended_well(child);
    before = calls();
    CHECK(next(fd) == 11);
    kernels(before);
    CHECK(record(fd, 9) == 9);
    rings(before);
    /* A child that no library hears of. */
    int own = file(O_RDWR);
    CHECK(next(own) == 0);
    child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        CHECK(next(own) == 1 && record(own, 5) == 5);
        _exit(0);
    }
    ended_well(child);
    CHECK(next(own) == 2);
}

static int shared;
static char seen[RECORDS];
static void *reader(void *unused)
{
    uint64_t n;
    while (read(shared, &n, 8) == 8) __atomic_add_fetch(&seen[n], 1, __ATOMIC_SEQ_CST);
    return unused;
}

static void threads(void)
{
    uint64_t before = calls();
    shared = file(O_RDWR);
    pthread_t all[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&all[i], NULL, reader, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(all[i], NULL) == 0);
    for (int i = 0; i < RECORDS; i++) CHECK(seen[i] == 1);
    rings(before);
}

/* Parent and child read one position at the same time: each record comes to one of them. */
static void together(void)
{
    char *map = mmap(NULL, RECORDS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fd = file(O_RDWR);
    uint64_t n;
    for (int i = 0; i < 10; i++) map[next(fd)]++;
    pid_t child = fork();
    while (read(fd, &n, 8) == 8) __atomic_add_fetch(&map[n], 1, __ATOMIC_SEQ_CST);
    if (child == 0) _exit(0);
    ended_well(child);
    for (int i = 0; i < RECORDS; i++) CHECK(map[i] == 1);
}

static void executed(void)
{
    int fd = file(O_RDWR);
    uint64_t before = calls(), n;
    CHECK(next(fd) == 0 && next(fd) == 1);
    rings(before);
    int ends[2];
    CHECK(pipe(ends) == 0);
    /* vfork(2), as others make processes: the child moves descriptors about in its parent's memory. */
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 0);
        dup2(ends[1], 1);
        close(fd);
        execlp("head", "head", "-c", "16", (char *)NULL);
        _exit(1);
    }
    ended_well(child);
    CHECK(next(ends[0]) == 2 && next(ends[0]) == 3);
    before = calls();
    n = next(fd);
    CHECK(n >= 4 && (uint64_t)at(fd) == 8 * (n + 1));
    kernels(before);
    posix_spawn_file_actions_t actions;
    char *words[] = {"dd", "bs=8", "count=3", "status=none", NULL};
    CHECK(lseek(fd, 80, SEEK_SET) == 80 && posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 0) == 0 && posix_spawn_file_actions_adddup2(&actions, ends[1], 1) == 0);
    CHECK(posix_spawnp(&child, "dd", &actions, NULL, words, environ) == 0);
    ended_well(child);
    CHECK(next(ends[0]) == 10 && next(ends[0]) == 11 && next(ends[0]) == 12 && next(fd) == 13);
    /* And this very process: the position is where the new program expects it. */
    int last = file(O_RDWR);
    for (int i = 0; i < 5; i++) CHECK(next(last) == (uint64_t)i);
    CHECK(dup2(last, 0) == 0);
    execlp("sh", "sh", "-c", "test \"$(dd bs=8 count=1 status=none | od -An -tu8 | tr -d ' ')\" = 5 && echo well", (char *)NULL);
}

static void closed(void)
{
    char other[] = "/tmp/hazards.XXXXXX";
    uint64_t mark = 1 << 30;
    int fd = mkstemp(other);
    CHECK(fd >= 0 && write(fd, &mark, 8) == 8 && close(fd) == 0);
    /* A number that becomes another file's where no library sees it. */
    fd = file(O_RDWR);
    uint64_t before = calls(), value = 5;
    CHECK(next(fd) == 0 && record(fd, 3) == 3);
    rings(before);
    CHECK(syscall(SYS_close, fd) == 0);
    FILE *stream = fopen(other, "r+");
    CHECK(stream != NULL && fileno(stream) == fd);
    CHECK(record(fd, 0) == mark && next(fd) == mark && pwrite(fd, &value, 8, 0) == 8 && record(fd, 0) == 5);
    CHECK(fclose(stream) == 0);
    /* The same file, with other rights. */
    fd = file(O_RDWR);
    CHECK(record(fd, 1) == 1 && syscall(SYS_close, fd) == 0 && syscall(SYS_openat, AT_FDCWD, path, O_RDONLY) == fd);
    CHECK(pwrite(fd, &value, 8, 0) == -1 && errno == EBADF && record(fd, 0) == 0);
    CHECK(close(fd) == 0 && close(fd) == -1 && errno == EBADF && read(fd, &value, 8) == -1 && errno == EBADF);
    /* Everything that the program does not know; what the library has is not there for it. */
    fd = file(O_RDWR);
    CHECK(record(fd, 1) == 1);
    closefrom(3);
    CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF && read(fd, &value, 8) == -1 && errno == EBADF);
    for (int i = 3; i < 1024; i++) CHECK(close(i) == -1 && errno == EBADF);
    before = calls();
    CHECK((fd = file(O_RDWR)) == 3 && record(fd, 8) == 8 && close_range(3, 3, 0) == 0 && read(3, &value, 8) == -1);
    rings(before);
    /* Every number that may be the library's becomes a file. */
    int null = open(other, O_RDWR | O_TRUNC);
    for (int i = 900; i < 1024; i++) CHECK(dup2(null, i) == i);
    fd = file(O_RDWR);
    for (int i = 0; i < 10; i++) CHECK(record(fd, 8) == 8 && pwrite(fd, &mark, 8, 0) == 8 && record(fd, 0) == mark);
    CHECK(lseek(null, 0, SEEK_END) == 0 && unlink(other) == 0);
}

static void appended(void)
{
    int fd = file(O_RDWR | O_APPEND), other = file(O_RDWR);
    uint64_t value = 1, before = calls();
    CHECK(write(fd, &value, 8) == 8 && at(fd) == 8 * (RECORDS + 1) && record(other, RECORDS) == 1);
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && write(fd, &value, 8) == 8 && lseek(fd, 0, SEEK_CUR) == 8 * (RECORDS + 2));
    CHECK(pread(fd, &value, 8, 80) == 8 && value == 10);
    rings(before);
    /* The flag comes and goes. */
    CHECK(pwrite(other, &value, 8, 0) == 8 && fcntl(other, F_SETFL, O_APPEND) == 0);
    CHECK(lseek(other, 0, SEEK_SET) == 0 && write(other, &value, 8) == 8 && at(other) == 8 * (RECORDS + 3) && record(fd, 1) == 1);
    CHECK(fcntl(other, F_SETFL, 0) == 0 && lseek(other, 8, SEEK_SET) == 8 && write(other, &value, 8) == 8 && at(other) == 16);
    CHECK(lseek(other, 0, SEEK_END) == 8 * (RECORDS + 3));
    /* While the flag is there the kernel alone sees a write. */
    other = file(O_RDWR);
    CHECK(pwrite(other, &value, 8, 0) == 8 && fcntl(other, F_SETFL, O_APPEND) == 0);
    CHECK(syscall(SYS_write, other, &value, 8) == 8 && fcntl(other, F_SETFL, 0) == 0);
    before = calls();
    CHECK(pwrite(other, &value, 8, 80) == 8 && lseek(other, 0, SEEK_END) == 8 * (RECORDS + 4));
    rings(before);
    /* The kernel appends for a single call, behind what the rings wrote. */
    uint64_t last = 4321;
    struct iovec one = {&last, 8};
    for (int i = 4; i < 14; i++) CHECK(pwrite(other, &value, 8, 8 * (RECORDS + i)) == 8);
    CHECK(pwritev2(other, &one, 1, 0, RWF_APPEND) == 8 && record(other, RECORDS + 14) == 4321 && record(other, RECORDS + 13) == value);
}

/* Alarms come one at a time, each when the program has armed it: where a handler takes longer than the pause to the next alarm, the program
 * would never go on. `came`: handlers that found what they should; `fired`: all that came back. */
static int interrupted;
static volatile int came, fired;
static void alarm_in(long us) { struct itimerval once = {{0, 0}, {0, us}}; CHECK(setitimer(ITIMER_REAL, &once, NULL) == 0); }
static sigjmp_buf back;
static void on_alarm(int unused)
{
    uint64_t n;
    (void)unused;
    if (pread(interrupted, &n, 8, 8 * 33) == 8 && n == 33) came++;
    fired++;
}
static void on_jump(int unused) { (void)unused; came++; siglongjmp(back, 1); }

static void signalled(void)
{
    interrupted = file(O_RDWR);
    uint64_t before = calls(), value;
    signal(SIGALRM, on_alarm);
    int armed = 0;
    for (uint64_t i = 0; came < 300; i++) {
        if (fired == armed) {
            CHECK(came == armed);
            alarm_in(100 + 37 * armed++ % 400);
        }
        CHECK(record(interrupted, i % RECORDS) == i % RECORDS);
        value = i % RECORDS;
        CHECK(pwrite(interrupted, &value, 8, 8 * value) == 8);
        CHECK(lseek(interrupted, 0, SEEK_SET) == 0 && next(interrupted) == 0 && at(interrupted) == 8);
    }
    rings(before);
    /* A handler that does not come back, while other threads go on. */
    pthread_t other;
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, NULL);
    shared = file(O_RDWR);
    CHECK(pthread_create(&other, NULL, reader, NULL) == 0);
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    came = 0;
    signal(SIGALRM, on_jump);
    if (sigsetjmp(back, 1) == 0) {
        alarm_in(3000);
        for (;;) record(interrupted, 5);
    }
    CHECK(came == 1 && record(interrupted, 6) == 6 && pthread_join(other, NULL) == 0);
    for (int i = 0; i < RECORDS; i++) CHECK(seen[i] == 1);
}

/* Handlers that close a file, and put another descriptor in a file's place, amid the thread's calls on other files of the mount. */
static int victim = -1, second = -1;
static void on_close(int unused)
{
    (void)unused;
    if (victim < 0) return;
    if (close(victim) == 0 && dup2(interrupted, second) == second) came++;
    victim = -1;
}

static void closed_amid(void)
{
    interrupted = file(O_RDWR);
    came = 0;
    signal(SIGALRM, on_close);
    for (int round = 0; round < 300; round++) {
        int other = file(O_RDWR);
        second = file(O_RDWR);
        CHECK(record(other, 7) == 7 && record(second, 8) == 8);
        victim = other;
        alarm_in(300);
        while (came == round) CHECK(record(interrupted, round) == (uint64_t)round);
        CHECK(record(second, 9) == 9 && close(second) == 0);
    }
}

/* Handlers that come while the thread asks for a position. */
static volatile int way;
static void on_seek(int unused)
{
    uint64_t n;
    int status;
    (void)unused;
    if (way == 0) {
        if (lseek(interrupted, 8 * 5, SEEK_SET) == 8 * 5 && read(interrupted, &n, 8) == 8 && n == 5) came++;
    } else if (way == 1) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (waitpid(child, &status, 0) == child && status == 0) came++;
    } else {
        came++;
        siglongjmp(back, 1);
    }
}

static void sought(void)
{
    signal(SIGALRM, on_seek);
    for (way = 0; way < 3; way++) {
        interrupted = file(O_RDWR);
        CHECK(next(interrupted) == 0);
        came = 0;
        /* Not in the middle of anything else: the timer runs while the position is asked for, and at no other time. */
        int wanted = way == 2 ? 4000 : 50;
        for (int rounds = 0; came < wanted; rounds++) {
            CHECK(rounds < 100000);
            if (sigsetjmp(back, 1) == 0) {
                alarm_in(20 + 37 * rounds % (way == 2 ? 60 : 480));
                for (int i = 0; i < 100; i++) CHECK(lseek(interrupted, 0, SEEK_END) == 8 * RECORDS);
            }
            alarm_in(0);
            CHECK(lseek(interrupted, 0, SEEK_SET) == 0 && next(interrupted) == 0);
        }
        pid_t child = fork();
        if (child == 0) _exit(0);
        ended_well(child);
        CHECK(close(interrupted) == 0);
    }
}

/* Handlers that jump out of transfers while another thread reads through the same connection. */
static volatile int ends;
static void *reads_anew(void *unused)
{
    (void)unused;
    while (!ends) {
        int fd = file(O_RDONLY);
        for (uint64_t i = 0; i < 50; i++) record(fd, 0);
        CHECK(close(fd) == 0);
    }
    return NULL;
}

#define LARGE (3 << 20)
static uint64_t large[LARGE / 8];

/* A write that has begun comes to its end before the handler jumps, as the kernel's do: below the position there is no hole. */
static void jumped(void)
{
    pthread_t other;
    sigset_t alarms;
    CHECK(truncate(path, 0) == 0);
    int first = file(O_RDWR);
    uint64_t one = 1;
    CHECK(pwrite(first, &one, 8, 0) == 8 && close(first) == 0);
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    CHECK(pthread_sigmask(SIG_BLOCK, &alarms, NULL) == 0 && pthread_create(&other, NULL, reads_anew, NULL) == 0);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &alarms, NULL) == 0);
    signal(SIGALRM, on_jump);
    came = 0;
    for (int rounds = 0; came < 900; rounds++) {
        CHECK(rounds < 100000);
        interrupted = file(O_RDWR);
        int way = rounds % 3;
        static volatile uint64_t value;
        value = (uint64_t)rounds + 1;
        if (way == 2) for (size_t i = 0; i < LARGE / 8; i++) large[i] = value;
        if (sigsetjmp(back, 1) == 0) {
            alarm_in(300 + 37 * rounds % (way == 2 ? 4000 : 400));
            for (int i = 0; i < 20000; i++) {
                if (way == 0) record(interrupted, 0);
                if (way == 1) CHECK(write(interrupted, (void *)&value, 8) == 8);
                if (way == 2) CHECK(write(interrupted, large, LARGE) == LARGE && lseek(interrupted, 0, SEEK_SET) == 0);
            }
        }
        alarm_in(0);
        off_t end = at(interrupted);
        if (way == 1) {
            CHECK(end % 8 == 0);
            for (off_t i = end / 8 - 1; i >= 0 && i >= end / 8 - 20; i--) CHECK(record(interrupted, i) == value);
        }
        if (way == 2) {
            CHECK(end == 0 || end == LARGE);
            if (end == LARGE) {
                CHECK(pread(interrupted, large, LARGE, 0) == LARGE);
                for (size_t i = 0; i < LARGE / 8; i++) CHECK(large[i] == value);
            }
        }
        CHECK(close(interrupted) == 0);
    }
    ends = 1;
    CHECK(pthread_join(other, NULL) == 0);
}

/* Handlers that make a child, which returns into the call that the handler interrupted. */
static volatile int is_child;
static void on_fork(int unused)
{
    (void)unused;
    pid_t child = fork();
    if (child == 0) { is_child = 1; return; }
    ended_well(child);
    came++;
}

static void returned(void)
{
    uint64_t value = 7;
    signal(SIGALRM, on_fork);
    for (int way = 0; way < 2; way++) {
        interrupted = file(O_RDWR);
        came = 0;
        int armed = 0, calls_of_child = 0;
        for (uint64_t i = 0; came < 100; i++) {
            if (came == armed && !is_child) alarm_in(100 + 37 * armed++ % 400);
            if (way == 0) CHECK(record(interrupted, i % RECORDS) == i % RECORDS);
            if (way == 1) CHECK(write(interrupted, &value, 8) == 8);
            if (is_child && ++calls_of_child > 20) _exit(record(interrupted, 5) != (way ? 7 : 5));
        }
        alarm_in(0);
        off_t end = at(interrupted);
        for (off_t i = 0; way == 1 && i < end / 8; i++) CHECK(record(interrupted, i) == 7);
        CHECK(close(interrupted) == 0);
    }
}

/* As above, at each instruction of a call, every third one in one go: the processor stops after each. */
#ifdef __x86_64__
#define EVERY 3
#define TRAPS 0x100
static volatile unsigned instructions;
static void on_instruction(int number, siginfo_t *unused, void *context)
{
    (void)number, (void)unused;
    if (instructions++ % EVERY) return;
    pid_t child = _Fork();
    if (child != 0) { ended_well(child); return; }
    is_child = 1;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAPS;
}
#define STEPS(how, bits) __asm__ volatile("lea -128(%%rsp), %%rsp; pushfq; " how " %0, (%%rsp); popfq; lea 128(%%rsp), %%rsp" :: "i"(bits) : "memory", "cc")

static int call(int which, int fd)
{
    uint64_t value = 3;
    int other;
    switch (which) {
    case 0: return record(fd, 3) == 3;
    case 1: return pwrite(fd, &value, 8, 24) == 8;
    case 2: return lseek(fd, 800, SEEK_SET) == 800;
    case 3: return read(fd, &value, 8) == 8 && value >= 100;
    case 4: value = 4000; return write(fd, &value, 8) == 8;
    case 5: return (other = dup(fd)) >= 0 && close(other) == 0;
    case 6: return (other = open(path, O_RDWR)) >= 0 && close(other) == 0;
    }
    return -1;
}

static void stepped(void)
{
    struct sigaction on = {.sa_sigaction = on_instruction, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGTRAP, &on, NULL) == 0);
    for (int which = 0; which < 7; which++) {
        int fd = file(O_RDWR);
        CHECK(call(2, fd) == 1 && call(which, fd) == 1);
        for (unsigned first = 0; first < EVERY; first++) {
            instructions = first;
            STEPS("orq", TRAPS);
            int well = call(which, fd);
            STEPS("andq", ~TRAPS);
            if (is_child) well = well == 1 && call(0, fd) == 1 && call(6, fd) == 1;
            if (is_child) _exit(well != 1);
            CHECK(well == 1);
        }
        CHECK(close(fd) == 0);
    }
}
#else
static void stepped(void) { CHECK(record(file(O_RDWR), 3) == 3); }
#endif

/* A program that closes all numbers behind the library's back, and has files of its own by them then. */
static void taken(void)
{
    int fd = file(O_RDWR), n = 0;
    static int mine[4096];
    CHECK(next(fd) == 0);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(syscall(SYS_close_range, 3, ~0U, 0) == 0);
    while (n < 1100 && (mine[n] = open("/dev/null", O_RDONLY)) >= 0) n++;
    CHECK(n > 900);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < n; i++) CHECK(fcntl(mine[i], F_GETFD) >= 0);
        _exit(0);
    }
    ended_well(child);
    for (int i = 0; i < n; i++) CHECK(close(mine[i]) == 0);
}

/* A number that gets another file while threads write to it, from the first call on: nobody knows yet how the files are served. */
#define BLOCK (192 << 10)
#define BLOCKS 40
static int number = 100;
static void *writes_blocks(void *total)
{
    char *block = malloc(BLOCK);
    CHECK(block != NULL);
    memset(block, 'x', BLOCK);
    for (int i = 0; i < BLOCKS; i++) CHECK(write(number, block, BLOCK) == BLOCK);
    __atomic_add_fetch((uint64_t *)total, BLOCKS * (uint64_t)BLOCK, __ATOMIC_SEQ_CST);
    free(block);
    return NULL;
}

static void replaced_once(void)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.other", path);
    int one = file(O_RDWR | O_TRUNC), other = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    uint64_t written = 0, there = 0;
    pthread_t writers[2];
    CHECK(other >= 0 && dup2(one, number) == number);
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&writers[i], NULL, writes_blocks, &written) == 0);
    while (__atomic_load_n(&written, __ATOMIC_SEQ_CST) < 2 * BLOCKS * (uint64_t)BLOCK)
        CHECK(dup2(other, number) == number && dup2(one, number) == number);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(writers[i], NULL) == 0);
    char *bytes = malloc(BLOCK);
    for (int i = 0; i < 2; i++) {
        ssize_t n;
        int of = i ? other : one;
        off_t end = lseek(of, 0, SEEK_END), from = 0;
        there += (uint64_t)end;
        for (; (n = pread(of, bytes, BLOCK, from)) > 0; from += n)
            for (ssize_t k = 0; k < n; k++) CHECK(bytes[k] == 'x');
        CHECK(from == end);
    }
    CHECK(there == written && close(one) == 0 && close(other) == 0 && close(number) == 0);
    free(bytes);
}

static void replaced(void)
{
    for (int round = 0; round < 12; round++) {
        uint64_t before = calls();
        replaced_once();
        rings(before);
    }
}

static ssize_t send_one(int to, struct msghdr *message) { return sendmsg(to, message, 0); }
static ssize_t send_many(int to, struct msghdr *message)
{
    char byte = 2;
    struct iovec part = {&byte, 1};
    struct mmsghdr two[] = {{.msg_hdr = *message}, {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}};
    return sendmmsg(to, two, 2, 0) == 2 ? 1 : -1;
}

static void sent_by(ssize_t (*sends)(int, struct msghdr *))
{
    int ends[2], fd = file(O_RDWR);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    char byte = 1, room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    pid_t child = fork();
    if (child == 0) {
        CHECK(recvmsg(ends[1], &message, 0) == 1);
        int got;
        memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
        for (uint64_t i = 2; i < 10; i++) CHECK(next(got) == i);
        _exit(0);
    }
    fd = file(O_RDWR);
    uint64_t before = calls();
    CHECK(next(fd) == 0 && next(fd) == 1);
    rings(before);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    CHECK(sends(ends[0], &message) == 1);
    ended_well(child);
    before = calls();
    CHECK(next(fd) == 10);
    kernels(before);
}

static void sent(void) { sent_by(send_one); sent_by(send_many); }

/* The C library's streams read past this library; both see one position. */
static void mixed(void)
{
    int fd = file(O_RDWR);
    uint64_t n, before = calls();
    CHECK(next(fd) == 0);
    CHECK(syscall(SYS_read, fd, &n, 8) == 8 && n == 1 && next(fd) == 2);
    FILE *stream = fdopen(dup(fd), "r+");
    CHECK(stream != NULL && setvbuf(stream, NULL, _IONBF, 0) == 0);
    CHECK(fread(&n, 8, 1, stream) == 1 && n == 3 && next(fd) == 4);
    n = 1000;
    CHECK(fseek(stream, 8 * 7, SEEK_SET) == 0 && fwrite(&n, 8, 1, stream) == 1 && next(fd) == 8 && record(fd, 7) == 1000);
    rings(before);
    /* Stores to a mapping and writes through the rings. */
    uint64_t *map = mmap(NULL, 8 * RECORDS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    for (uint64_t i = 0; i < 20; i++) {
        map[i] = i + 500;
        CHECK(record(fd, i) == i + 500);
        n = i + 600;
        CHECK(pwrite(fd, &n, 8, 8 * (i + 100)) == 8 && map[i + 100] == n);
    }
    /* The kernel believes the size that writes past it made. */
    int copy = file(O_RDWR);
    n = 4242;
    CHECK(pwrite(fd, &n, 8, 8 * 5000) == 8 && (map = mmap(NULL, 8 * 5001, PROT_READ, MAP_SHARED, copy, 0)) != MAP_FAILED);
    CHECK(map[5000] == 4242);
    off_t from = 8 * 6000, to = 0;
    CHECK(pwrite(fd, &n, 8, from) == 8 && copy_file_range(copy, &from, fd, &to, 8, 0) == 8 && record(fd, 0) == 4242);
    CHECK(pwrite(fd, &n, 8, 8 * 7000) == 8 && fcntl(copy, F_SETFL, O_APPEND) == 0 && write(copy, &n, 8) == 8 && at(copy) == 8 * 7002);
    CHECK(close(copy) == 0);
    CHECK(ftruncate(fd, 80) == 0 && pread(fd, &n, 8, 80) == 0 && lseek(fd, 0, SEEK_END) == 80);
    /* A mapping that is there, longer than its file, hears of writes that make this longer. */
    CHECK((map = mmap(NULL, 8 * RECORDS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED && map[9] == record(fd, 9));
    for (uint64_t i = 10; i < RECORDS; i += 1 + i / 3) {
        n = i + 700;
        CHECK(pwrite(fd, &n, 8, 8 * i) == 8 && map[i] == n);
        map[i] = i + 800;
        CHECK(msync(map, 8 * RECORDS, MS_SYNC) == 0 && record(fd, i) == i + 800);
    }
    CHECK(munmap(map, 8 * RECORDS) == 0);
}

/* More bytes under way than the rings have room for: every call does the whole of it all the same. */
#define WIDE (5 << 20)
static void *transfers(void *number)
{
    char *bytes = malloc(WIDE), *back = malloc(WIDE);
    off_t at = (off_t)(uintptr_t)number * WIDE;
    int own = file(O_RDWR);
    CHECK(bytes != NULL && back != NULL);
    for (int round = 0; round < 30; round++) {
        struct iovec parts[] = {{bytes, 3 << 20}, {bytes + (3 << 20), WIDE - (3 << 20)}};
        for (size_t i = 0; i < WIDE; i++) bytes[i] = (char)(i / 4093 + round + (uintptr_t)number);
        if (round % 2) CHECK(lseek(own, at, SEEK_SET) == at && writev(own, parts, 2) == WIDE && lseek(own, 0, SEEK_CUR) == at + WIDE);
        else CHECK(pwrite(shared, bytes, WIDE, at) == WIDE);
        if (round % 2) CHECK(lseek(own, at, SEEK_SET) == at && read(own, back, WIDE) == WIDE);
        else CHECK(pread(shared, back, WIDE, at) == WIDE);
        CHECK(memcmp(bytes, back, WIDE) == 0);
    }
    return NULL;
}

/* Shorter ones, which take the room between the pieces of others. */
#define NARROW (200 << 10)
static int over;
static void *narrow(void *number)
{
    char *bytes = calloc(1, NARROW);
    off_t at = (off_t)(16 + (uintptr_t)number) * WIDE;
    CHECK(bytes != NULL);
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST))
        CHECK(pwrite(shared, bytes, NARROW, at) == NARROW && pread(shared, bytes, NARROW, at) == NARROW);
    return NULL;
}

static void wide(void)
{
    pthread_t all[16];
    shared = file(O_RDWR);
    for (uintptr_t i = 0; i < 16; i++) CHECK(pthread_create(&all[i], NULL, i < 6 ? transfers : narrow, (void *)i) == 0);
    for (int i = 0; i < 6; i++) CHECK(pthread_join(all[i], NULL) == 0);
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    for (int i = 6; i < 16; i++) CHECK(pthread_join(all[i], NULL) == 0);
}

static void *waits(void *of) { uint64_t n; (void)!read(*(int *)of, &n, 8); return NULL; }

/* Threads that never leave the rings. */
static void *reads_on(void *of) { while (of) record(*(int *)of, 3); return NULL; }
static void *reads_along(void *of) { while (lseek(*(int *)of, 0, SEEK_SET) == 0) CHECK(next(*(int *)of) == 0); return NULL; }
static void *writes_on(void *of) { uint64_t n = 3; while (pwrite(*(int *)of, &n, 8, 8 * 3) == 8) { } return NULL; }

static void cancelled(void)
{
    int ends[2], fd = file(O_RDWR);
    pthread_t thread;
    void *result;
    CHECK(pipe(ends) == 0 && record(fd, 1) == 1);
    CHECK(pthread_create(&thread, NULL, waits, &ends[0]) == 0 && pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && record(fd, 2) == 2);
    void *(*all[])(void *) = {reads_on, reads_along, writes_on};
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_create(&thread, NULL, all[i], &fd) == 0 && usleep(1000) == 0 && pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        uint64_t before = calls();
        CHECK(record(fd, 2) == 2 && lseek(fd, 8, SEEK_SET) == 8 && next(fd) == 1);
        rings(before);
    }
}

int main(int count, char **words)
{
    static const struct { const char *name; void (*step)(void); } steps[] = {
        {"plain", plain}, {"duplicated", duplicated}, {"forked", forked}, {"threads", threads}, {"together", together},
        {"executed", executed}, {"closed", closed}, {"appended", appended}, {"signalled", signalled}, {"closed_amid", closed_amid}, {"sent", sent}, {"sought", sought}, {"jumped", jumped}, {"returned", returned}, {"stepped", stepped}, {"taken", taken},
        {"replaced", replaced},
        {"mixed", mixed}, {"cancelled", cancelled}, {"wide", wide},
    };
    CHECK(count == 3);
    calls = (uint64_t (*)(void))dlsym(RTLD_DEFAULT, "stria_posix_calls");
    CHECK(calls != NULL);
    path = words[2];
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (strcmp(steps[i].name, words[1]) == 0) {
            uint64_t before = calls();
            steps[i].step();
            rings(before);
            puts("well");
            return 0;
        }
    }
    return 2;
}
#endif
