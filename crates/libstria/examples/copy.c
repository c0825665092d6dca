/* Calls every function of libstria on the file that is named: used by crates/cluster/tests/libstria.rs, and an example.
 * cc copy.c -lstria && ./a.out FILE [FILE OF ANOTHER MOUNT] */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "stria.h"

#define CHECK(what) do { if (!(what)) { printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno)); return 1; } } while (0)

int main(int count, char **words)
{
    char bytes[16] = {0};
    struct stat stat;
    CHECK(count == 2 || count == 3);
    CHECK(stria_open("/no/such/file", O_RDONLY, 0) == NULL && errno == ENOENT);
    CHECK(stria_open(NULL, O_RDONLY, 0) == NULL && errno == EFAULT);
    stria_file *file = stria_open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(file != NULL);
    CHECK(stria_is_native(file) == 1);
    CHECK(stria_pwrite(file, "0123456789", 10, 5) == 10);
    CHECK(stria_pread(file, bytes, sizeof bytes, 5) == 10);
    CHECK(memcmp(bytes, "0123456789", 10) == 0);
    CHECK(stria_pread(file, bytes, 1, -1) == -1 && errno == EINVAL);
    CHECK(stria_pread(file, NULL, 1, 0) == -1 && errno == EINVAL);
    CHECK(fstat(stria_fileno(file), &stat) == 0 && stat.st_size == 15);
    stria_request *one = stria_begin_pwrite(file, "abc", 3, 15);
    CHECK(one != NULL);
    CHECK(stria_wait(one, NULL, 0) == 3);
    stria_request *other = stria_begin_pread(file, 3, 15);
    CHECK(other != NULL);
    while (!stria_is_done(other)) { }
    CHECK(stria_wait(other, bytes, sizeof bytes) == 3);
    CHECK(memcmp(bytes, "abc", 3) == 0);
    CHECK(stria_fdatasync(file) == 0 && stria_fsync(file) == 0);
    char head[2], tail[8];
    struct iovec two[] = {{head, sizeof head}, {tail, sizeof tail}}, bad = {NULL, 1}, gap[] = {two[0], {NULL, 0}, two[1]};
    CHECK(stria_preadv(file, two, 2, 5) == 10 && memcmp(head, "01", 2) == 0 && memcmp(tail, "23456789", 8) == 0);
    CHECK(stria_pwritev(file, two, 2, 5) == 10);
    CHECK(stria_preadv(file, gap, 3, 5) == 10 && memcmp(tail, "23456789", 8) == 0 && stria_pwritev(file, gap, 3, 5) == 10);
    CHECK(stria_preadv(file, two, -1, 0) == -1 && errno == EINVAL && stria_preadv(file, &bad, 1, 0) == -1 && errno == EINVAL);
    stria_queue *queue = stria_queue_new();
    struct stria_done done[8];
    char each[8];
    for (int i = 0; i < 8; i++) CHECK(stria_queue_pread(queue, file, &each[i], 1, 5 + i, &each[i]) == 0);
    int taken = 0;
    while (taken < 8) {
        int n = stria_queue_reap(queue, done, 1, 8);
        CHECK(n >= 1);
        for (int i = 0; i < n; i++, taken++) CHECK(done[i].result == 1 && *(char *)done[i].user == '0' + (char *)done[i].user - each);
    }
    CHECK(stria_queue_reap(queue, done, 1, 8) == 0);
    CHECK(stria_queue_pwrite(queue, file, "abc", 3, 15, NULL) == 0 && stria_queue_reap(queue, done, 1, 1) == 1);
    CHECK(done[0].result == 3 && done[0].user == NULL);
    if (count == 3) {
        /* A queue is one mount's: what it does not take is not done. */
        stria_file *away = stria_open(words[2], O_RDWR | O_CREAT | O_TRUNC, 0644);
        CHECK(away != NULL && stria_is_native(away) == 1 && stria_queue_pread(queue, file, each, 1, 5, NULL) == 0);
        CHECK(stria_queue_pwrite(queue, away, "abc", 3, 0, NULL) == -1 && errno == EXDEV);
        CHECK(stria_queue_pread(queue, away, each, 1, 0, NULL) == -1 && errno == EXDEV);
        CHECK(stria_fsync(away) == 0 && fstat(stria_fileno(away), &stat) == 0 && stat.st_size == 0);
        CHECK(stria_queue_reap(queue, done, 1, 8) == 1 && done[0].result == 1 && stria_close(away) == 0);
    }
    stria_queue_free(queue);
    CHECK(stria_close(file) == 0);
    puts("well");
    return 0;
}
