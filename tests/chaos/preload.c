// A preloaded library that damages bytes that a program sends over TCP, and shifts its wall clock.
//
// The environment variable HOPLITE_FAULTS names a file with a `struct faults`. The campaign maps
// the file too: it writes the settings, and reads the counts.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define COPIED_BYTES 65536
#define UNCHANGED (-2)
#define NEXT(name)                                                                                 \
    static __typeof__(name) *next;                                                                 \
    next = next ? next : (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

struct faults {
    // One of so many sends is damaged; zero for none.
    _Atomic int64_t flip_odds, truncate_odds;
    _Atomic int64_t clock_shift_s;
    _Atomic int64_t flips, truncations, shifted_reads;
};

static struct faults none, *faults = &none;

__attribute__((constructor)) static void map_faults(void) {
    const char *path = getenv("HOPLITE_FAULTS");
    int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *mapped = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED)
        faults = mapped;
    srandom((unsigned)getpid());
}

static int is_drawn(int64_t odds) { return odds > 0 && random() % odds == 0; }

static int is_tcp(int fd) {
    int protocol = 0, saved = errno;
    socklen_t length = sizeof protocol;
    int known = getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0;
    errno = saved;
    return known && protocol == IPPROTO_TCP;
}

static ssize_t send_next(int fd, const void *bytes, size_t size, int flags) {
    NEXT(send);
    return next(fd, bytes, size, flags);
}

// Sends damaged bytes, or returns UNCHANGED for the caller to send its own bytes.
static ssize_t send_damaged(int fd, const struct iovec *parts, size_t count, int flags) {
    int flips = is_drawn(faults->flip_odds), truncates = is_drawn(faults->truncate_odds);
    if ((!flips && !truncates) || !is_tcp(fd))
        return UNCHANGED;
    unsigned char copy[COPIED_BYTES];
    size_t size = 0;
    for (size_t part = 0; part < count; part++) {
        size_t room = sizeof copy - size;
        size_t taken = parts[part].iov_len < room ? parts[part].iov_len : room;
        memcpy(copy + size, parts[part].iov_base, taken);
        size += taken;
    }
    if (size < 2)
        return UNCHANGED;
    size /= truncates ? 2 : 1;
    size_t place = (size_t)random() % size;
    if (flips)
        copy[place] ^= (unsigned char)(1 << random() % 8);
    ssize_t sent = send_next(fd, copy, size, flags | MSG_NOSIGNAL);
    if (flips && sent > (ssize_t)place)
        faults->flips++;
    if (truncates && sent > 0) {
        shutdown(fd, SHUT_RDWR);
        faults->truncations++;
    }
    return sent;
}

ssize_t send(int fd, const void *bytes, size_t size, int flags) {
    ssize_t sent = send_damaged(fd, &(struct iovec){(void *)bytes, size}, 1, flags);
    return sent == UNCHANGED ? send_next(fd, bytes, size, flags) : sent;
}

ssize_t sendto(int fd, const void *bytes, size_t size, int flags, const struct sockaddr *to,
               socklen_t length) {
    NEXT(sendto);
    ssize_t sent = send_damaged(fd, &(struct iovec){(void *)bytes, size}, 1, flags);
    return sent == UNCHANGED ? next(fd, bytes, size, flags, to, length) : sent;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    NEXT(sendmsg);
    ssize_t sent = send_damaged(fd, message->msg_iov, message->msg_iovlen, flags);
    return sent == UNCHANGED ? next(fd, message, flags) : sent;
}

ssize_t write(int fd, const void *bytes, size_t size) {
    NEXT(write);
    ssize_t sent = send_damaged(fd, &(struct iovec){(void *)bytes, size}, 1, 0);
    return sent == UNCHANGED ? next(fd, bytes, size) : sent;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    NEXT(writev);
    ssize_t sent = send_damaged(fd, parts, (size_t)count, 0);
    return sent == UNCHANGED ? next(fd, parts, count) : sent;
}

static int64_t clock_shift_s(void) {
    int64_t shift_s = faults->clock_shift_s;
    if (shift_s != 0)
        faults->shifted_reads++;
    return shift_s;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    NEXT(clock_gettime);
    int result = next(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += clock_shift_s();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    NEXT(gettimeofday);
    int result = next(now, zone);
    now->tv_sec += clock_shift_s();
    return result;
}

time_t time(time_t *stored) {
    NEXT(time);
    time_t now = next(NULL) + clock_shift_s();
    return stored == NULL ? now : (*stored = now);
}
