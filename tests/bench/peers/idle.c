/* Makes an MPI that polls wait instead, when it has nothing to do. For LD_PRELOAD.
 *
 * Debian's MPICH, over UCX, calls epoll_wait in a loop without ever waiting, and Open MPI calls poll through libevent. Sixteen
 * ranks on two processors then take these from each other, and small messages take 100 times as long as they should. Here a
 * thread that was told several times in a row that nothing has happened waits until something does, but at most 1 ms: there may
 * be other work than that of sockets. Since what happens ends the wait at once, it costs no latency to speak of.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stddef.h>
#include <sys/epoll.h>

enum { PATIENCE_POLLS = 3, WAIT_MS = 1 };

typedef int epoll_wait_function(int, struct epoll_event *, int, int);
typedef int poll_function(struct pollfd *, nfds_t, int);

static _Thread_local int in_vain;

static int wait_ms(int asked_ms) { return asked_ms == 0 && in_vain >= PATIENCE_POLLS ? WAIT_MS : asked_ms; }

static int counted(int found) {
    in_vain = found > 0 ? 0 : in_vain + 1;
    return found;
}

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout_ms) {
    static epoll_wait_function *real;
    if (real == NULL) real = (epoll_wait_function *)dlsym(RTLD_NEXT, "epoll_wait");
    return counted(real(fd, events, most, wait_ms(timeout_ms)));
}

int poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
    static poll_function *real;
    if (real == NULL) real = (poll_function *)dlsym(RTLD_NEXT, "poll");
    return counted(real(fds, count, wait_ms(timeout_ms)));
}

/* What poll is called where a program is compiled with _FORTIFY_SOURCE. */
int __poll_chk(struct pollfd *fds, nfds_t count, int timeout_ms, size_t size_bytes) {
    (void)size_bytes;
    return poll(fds, count, timeout_ms);
}
