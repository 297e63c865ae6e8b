/* Preloaded into a server by testkit/shim.py: a wall clock that can be moved, and a record of what is not on disk yet.
 *
 * CHAOS_CLOCK     file of one int64: nanoseconds added to the wall clock (monotonic clocks are left alone)
 * CHAOS_WRITES    file that gets one line per write to, and per sync of, a regular file:
 *                   W <device> <inode> <offset> <length>    written, not yet durable
 *                   S <device> <inode> <size>               durable up to here: everything written before
 * Writes through descriptors with O_DSYNC or O_SYNC are durable when they return and are not recorded.
 *
 * CHAOS_HANG      file: while it exists, writes to and syncs of files below the directory CHAOS_HANG_IN do not return
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *skew;
static int record = -1;
static const char *hang, *hang_in;

__attribute__((constructor)) static void setup(void)
{
    hang = getenv("CHAOS_HANG");
    hang_in = getenv("CHAOS_HANG_IN");
    const char *clock_path = getenv("CHAOS_CLOCK"), *record_path = getenv("CHAOS_WRITES");
    int fd = clock_path ? open(clock_path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void *map = mmap(NULL, sizeof *skew, PROT_READ, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED)
            skew = map;
        close(fd);
    }
    if (record_path)
        record = open(record_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
}

/* -- the clock */

int clock_gettime(clockid_t id, struct timespec *ts)
{
    int rc = syscall(SYS_clock_gettime, id, ts);
    if (rc == 0 && skew && *skew && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)ts->tv_sec * 1000000000 + ts->tv_nsec + *skew;
        ts->tv_sec = ns / 1000000000;
        ts->tv_nsec = ns % 1000000000;
    }
    return rc;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
    struct timespec ts;
    (void)tz;
    clock_gettime(CLOCK_REALTIME, &ts);
    tv->tv_sec = ts.tv_sec;
    tv->tv_usec = ts.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    if (out)
        *out = ts.tv_sec;
    return ts.tv_sec;
}

/* -- the disk */

static void wait_for_disk(int fd)
{
    char link[64], path[4096];
    int saved = errno;
    while (hang && hang_in && access(hang, F_OK) == 0) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        path[n > 0 ? n : 0] = 0;
        if (strncmp(path, hang_in, strlen(hang_in)))
            break;
        usleep(10000);
    }
    errno = saved;
}

static void put(const char *line, int length)
{
    if (syscall(SYS_write, record, line, length) != length)
        abort(); /* without its record the run proves nothing */
}

static int recorded(int fd, struct stat *st)
{
    return record >= 0 && fstat(fd, st) == 0 && S_ISREG(st->st_mode);
}

static void wrote(int fd, off_t offset, ssize_t length)
{
    char line[128];
    struct stat st;
    int saved = errno, flags;
    if (length > 0 && recorded(fd, &st)) {
        flags = fcntl(fd, F_GETFL);
        if (!(flags & O_DSYNC)) {
            if (offset < 0)
                offset = lseek(fd, 0, SEEK_CUR) - length;
            put(line, snprintf(line, sizeof line, "W %ju %ju %jd %zd\n", (uintmax_t)st.st_dev,
                               (uintmax_t)st.st_ino, (intmax_t)offset, length));
        }
    }
    errno = saved;
}

static int synced(int rc, const struct stat *before)
{
    char line[128];
    int saved = errno;
    if (rc == 0 && before)
        put(line, snprintf(line, sizeof line, "S %ju %ju %jd\n", (uintmax_t)before->st_dev,
                           (uintmax_t)before->st_ino, (intmax_t)before->st_size));
    errno = saved;
    return rc;
}

#define SYNC(name) \
    int name(int fd) \
    { \
        static int (*real)(int); \
        struct stat st; \
        if (!real) \
            real = dlsym(RTLD_NEXT, #name); \
        wait_for_disk(fd); \
        int known = recorded(fd, &st); \
        return synced(real(fd), known ? &st : NULL); \
    }

#define WRITE(name, arguments, offset, ...) \
    ssize_t name arguments \
    { \
        static ssize_t(*real) arguments; \
        if (!real) \
            real = dlsym(RTLD_NEXT, #name); \
        wait_for_disk(fd); \
        ssize_t n = real(__VA_ARGS__); \
        wrote(fd, offset, n); \
        return n; \
    }

SYNC(fsync)
SYNC(fdatasync)
WRITE(write, (int fd, const void *data, size_t size), -1, fd, data, size)
WRITE(writev, (int fd, const struct iovec *v, int count), -1, fd, v, count)
WRITE(pwrite, (int fd, const void *data, size_t size, off_t at), at, fd, data, size, at)
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t at), at, fd, data, size, at)
WRITE(pwritev, (int fd, const struct iovec *v, int count, off_t at), at, fd, v, count, at)
WRITE(pwritev64, (int fd, const struct iovec *v, int count, off64_t at), at, fd, v, count, at)
WRITE(pwritev2, (int fd, const struct iovec *v, int count, off_t at, int flags), at, fd, v, count, at, flags)
WRITE(pwritev64v2, (int fd, const struct iovec *v, int count, off64_t at, int flags), at, fd, v, count, at, flags)
