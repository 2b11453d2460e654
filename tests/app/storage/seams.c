/* Stands between a process and the files below one folder (LD_PRELOAD), to kill the process at a chosen call, to let
 * calls fail, and to keep a log of what was done, from which a loss of power can be worked out.
 *
 * SEAM_FOLDER  the folder, an absolute path; nothing happens without it.
 * SEAM_KILL    OPERATION:N:WHEN: SIGKILL before, after or (of a write) in the half of the N-th such operation.
 * SEAM_FAIL    a file; while it is there and holds "OPERATION ERRNO", such operations fail.
 * SEAM_LOG     a file: a line "KIND OFFSET SIZE PATH" for each operation that was done, and the bytes behind it.
 *
 * An OPERATION is a verb and what kind of file it concerns, as in write-seg, sync-wal, unlink-seg; "any" is each one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))real(#name))

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int counted;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

/* The part of a path below the folder; NULL for any other path. */
static const char *below(const char *path) {
    const char *folder = getenv("SEAM_FOLDER");
    size_t size;
    if (folder == NULL || path == NULL) return NULL;
    size = strlen(folder);
    if (strncmp(path, folder, size) != 0) return NULL;
    return path[size] == 0 ? "." : path[size] == '/' ? path + size + 1 : NULL;
}

static const char *path_of(int descriptor, char *buffer) {
    char link[64];
    ssize_t size;
    if (getenv("SEAM_FOLDER") == NULL) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    size = readlink(link, buffer, PATH_MAX - 1);
    if (size <= 0) return NULL;
    buffer[size] = 0;
    return strstr(buffer, " (deleted)") ? NULL : below(buffer);
}

static int ends(const char *path, const char *suffix) {
    size_t a = strlen(path), b = strlen(suffix);
    return a >= b && strcmp(path + a - b, suffix) == 0;
}

static const char *kind(const char *path) {
    if (strncmp(path, "worker-", 7) == 0 && strchr(path, '/')) path = strchr(path, '/') + 1;
    if (ends(path, ".seg")) return "seg";
    if (ends(path, "-wal")) return "wal";
    if (ends(path, "-shm")) return "shm";
    if (ends(path, ".sqlite")) return "db";
    if (strcmp(path, ".") == 0 || strncmp(path, "segments", 8) == 0) return "dir";
    return "other";
}

static int is(const char *wanted, const char *verb, const char *path) {
    char name[64];
    snprintf(name, sizeof name, "%s-%s", verb, kind(path));
    return strcmp(wanted, "any") == 0 || strcmp(wanted, name) == 0;
}

/* How the coming operation is to end: 0 as usual, 'b' killed before, 'h' in the half, 'a' after it. */
static int fate(const char *verb, const char *path) {
    char wanted[64], when[16];
    int number;
    const char *text = getenv("SEAM_KILL");
    if (text == NULL || strcmp(kind(path), "shm") == 0) return 0;
    if (sscanf(text, "%63[^:]:%d:%15s", wanted, &number, when) != 3 || !is(wanted, verb, path)) return 0;
    return ++counted == number ? when[0] : 0;
}

static int end(int how, int now) {
    if (how == now) kill(getpid(), SIGKILL);
    return 0;
}

static int failure(const char *verb, const char *path) {
    char text[128], wanted[64];
    int number = 0, file;
    ssize_t size;
    const char *control = getenv("SEAM_FAIL");
    if (control == NULL) return 0;
    file = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    size = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    text[size > 0 ? size : 0] = 0;
    if (sscanf(text, "%63s %d", wanted, &number) != 2) return 0;
    /* Where segments cannot be written, nor can the file with which the server finds that out. */
    return is(wanted, verb, ends(path, "/trial") ? "trial.seg" : path) ? number : 0;
}

static void note(char what, long long at, const struct iovec *data, int parts, size_t size, const char *path) {
    static int log = -1;
    static int owner;
    char line[PATH_MAX + 64];
    struct iovec all[1026];
    int n = 0, i;
    const char *name = getenv("SEAM_LOG");
    if (name == NULL || strcmp(kind(path), "shm") == 0) return;
    if (log < 0 || owner != getpid()) {
        log = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        owner = getpid();
    }
    all[n].iov_base = line;
    all[n++].iov_len = (size_t)sprintf(line, "%c %lld %zu %s\n", what, at, size, path);
    for (i = 0; i < parts && size > 0; i++) {
        all[n] = data[i];
        if (all[n].iov_len > size) all[n].iov_len = size;
        size -= all[n++].iov_len;
    }
    syscall(SYS_writev, log, all, n);
}

#define LOCKED(body)                       \
    pthread_mutex_lock(&mutex);            \
    body;                                  \
    {                                      \
        int saved = errno;                 \
        pthread_mutex_unlock(&mutex);      \
        errno = saved;                     \
    }

/* Writes: all of them end here. An offset of -1: where the file stands. */
static ssize_t put(int descriptor, const struct iovec *data, int parts, off_t at) {
    char buffer[PATH_MAX];
    const char *path = path_of(descriptor, buffer);
    ssize_t done = -1;
    size_t size = 0;
    int i, how, wrong;
    if (path == NULL)
        return at < 0 ? syscall(SYS_writev, descriptor, data, parts)
                      : syscall(SYS_pwritev, descriptor, data, parts, (long)at, 0L);
    for (i = 0; i < parts; i++) size += data[i].iov_len;
    LOCKED({
        if (at < 0) at = lseek(descriptor, 0, SEEK_CUR);
        how = fate("write", path);
        end(how, 'b');
        if (how == 'h' && parts > 0) {
            struct iovec half = data[0];
            half.iov_len = parts > 1 ? half.iov_len : half.iov_len / 2;
            done = syscall(SYS_pwritev, descriptor, &half, 1, (long)at, 0L);
            note('W', at, &half, 1, (size_t)done, path);
            end(how, 'h');
        }
        wrong = failure("write", path);
        if (wrong) {
            errno = wrong;
        } else {
            done = syscall(SYS_pwritev, descriptor, data, parts, (long)at, 0L);
            if (done > 0) {
                lseek(descriptor, at + done, SEEK_SET);
                note('W', at, data, parts, (size_t)done, path);
            }
        }
        end(how, 'a');
    })
    return done;
}

ssize_t write(int d, const void *data, size_t size) {
    struct iovec one = {(void *)data, size};
    char buffer[PATH_MAX];
    if (path_of(d, buffer) == NULL) return syscall(SYS_write, d, data, size);
    return put(d, &one, 1, -1);
}
ssize_t pwrite(int d, const void *data, size_t size, off_t at) {
    struct iovec one = {(void *)data, size};
    return put(d, &one, 1, at);
}
ssize_t pwrite64(int d, const void *data, size_t size, off64_t at) { return pwrite(d, data, size, at); }
ssize_t pwritev(int d, const struct iovec *data, int parts, off_t at) { return put(d, data, parts, at); }
ssize_t pwritev64(int d, const struct iovec *data, int parts, off64_t at) { return put(d, data, parts, at); }
ssize_t pwritev2(int d, const struct iovec *data, int parts, off_t at, int flags) {
    (void)flags;
    return put(d, data, parts, at);
}
ssize_t pwritev64v2(int d, const struct iovec *data, int parts, off64_t at, int flags) {
    (void)flags;
    return put(d, data, parts, at);
}

/* Everything else is one call with one path. */
#define AROUND(verb, path, what, at, size, more, call)                          \
    do {                                                                        \
        int how, wrong;                                                         \
        LOCKED({                                                                \
            how = fate(verb, path);                                             \
            end(how, 'b');                                                      \
            wrong = failure(verb, path);                                        \
            if (wrong) {                                                        \
                errno = wrong;                                                  \
                result = -1;                                                    \
            } else {                                                            \
                result = call;                                                  \
                if (result >= 0) note(what, at, more, (more) != NULL, size, path); \
            }                                                                   \
            end(how, 'a');                                                      \
        })                                                                      \
    } while (0)

static int synced(int d, const char *name) {
    char buffer[PATH_MAX];
    const char *path = path_of(d, buffer);
    int (*call)(int) = (int (*)(int))real(name);
    int result;
    if (path == NULL) return call(d);
    /* The tests keep the files' pages in memory anyway: asking the disk would only take time. */
    AROUND("sync", path, 'S', 0, 0, (struct iovec *)NULL, 0);
    return result;
}
int fsync(int d) { return synced(d, "fsync"); }
int fdatasync(int d) { return synced(d, "fdatasync"); }

static int cut(int d, off_t size, const char *name) {
    char buffer[PATH_MAX];
    const char *path = path_of(d, buffer);
    int (*call)(int, off_t) = (int (*)(int, off_t))real(name);
    int result;
    if (path == NULL) return call(d, size);
    AROUND("cut", path, 'T', size, 0, (struct iovec *)NULL, call(d, size));
    return result;
}
int ftruncate(int d, off_t size) { return cut(d, size, "ftruncate"); }
int ftruncate64(int d, off64_t size) { return cut(d, size, "ftruncate64"); }

int unlink(const char *name) {
    const char *path = below(name);
    int result;
    if (path == NULL) return REAL(unlink)(name);
    AROUND("unlink", path, 'U', 0, 0, (struct iovec *)NULL, REAL(unlink)(name));
    return result;
}
int rmdir(const char *name) {
    const char *path = below(name);
    int result;
    if (path == NULL) return REAL(rmdir)(name);
    AROUND("rmdir", path, 'X', 0, 0, (struct iovec *)NULL, REAL(rmdir)(name));
    return result;
}
int unlinkat(int d, const char *name, int flags) {
    char buffer[2 * PATH_MAX];
    const char *folder = d == AT_FDCWD ? NULL : path_of(d, buffer), *path;
    int result;
    if (folder == NULL) return REAL(unlinkat)(d, name, flags);
    strcat(strcat(buffer, "/"), name);
    path = below(buffer);
    if (flags & AT_REMOVEDIR)
        AROUND("rmdir", path, 'X', 0, 0, (struct iovec *)NULL, REAL(unlinkat)(d, name, flags));
    else
        AROUND("unlink", path, 'U', 0, 0, (struct iovec *)NULL, REAL(unlinkat)(d, name, flags));
    return result;
}
int mkdir(const char *name, mode_t mode) {
    const char *path = below(name);
    int result;
    if (path == NULL) return REAL(mkdir)(name, mode);
    AROUND("mkdir", path, 'M', 0, 0, (struct iovec *)NULL, REAL(mkdir)(name, mode));
    return result;
}
int rename(const char *name, const char *new) {
    const char *path = below(name);
    int result;
    if (path == NULL || below(new) == NULL) return REAL(rename)(name, new);
    {
        struct iovec to = {(void *)below(new), strlen(below(new))};
        AROUND("rename", path, 'R', 0, to.iov_len, &to, REAL(rename)(name, new));
    }
    return result;
}

static int opened(const char *name, int flags, mode_t mode) {
    const char *path = (flags & (O_CREAT | O_TRUNC)) ? below(name) : NULL;
    struct stat found;
    int result, there;
    if (path == NULL) return (int)syscall(SYS_openat, AT_FDCWD, name, flags, mode);
    there = stat(name, &found) == 0;
    if (there && !((flags & O_TRUNC) && found.st_size)) return (int)syscall(SYS_openat, AT_FDCWD, name, flags, mode);
    AROUND(there ? "cut" : "create", path, there ? 'T' : 'C', 0, 0, (struct iovec *)NULL,
           (int)syscall(SYS_openat, AT_FDCWD, name, flags, mode));
    return result;
}
#define OPEN(symbol)                                 \
    int symbol(const char *name, int flags, ...) {   \
        mode_t mode = 0;                             \
        if (flags & (O_CREAT | O_TMPFILE)) {         \
            va_list more;                            \
            va_start(more, flags);                   \
            mode = va_arg(more, mode_t);             \
            va_end(more);                            \
        }                                            \
        return opened(name, flags, mode);            \
    }
OPEN(open)
OPEN(open64)
