/* Makes an MPI that polls wait instead, when it has nothing to do. For LD_PRELOAD.
 *
 * Debian's MPICH, over UCX, asks epoll_wait in a loop without ever waiting, and Open MPI does so through libevent. Sixteen
 * ranks on two processors then take these from each other, and small messages take 100 times as long as they should. Here a
 * rank that was told several times in a row that nothing has happened waits until something does, but at most 1 ms: there may
 * be other work than that of sockets. That is event-driven, so it costs no latency to speak of.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/epoll.h>

enum { PATIENCE_POLLS = 3, WAIT_MS = 1 };

typedef int epoll_wait_function(int, struct epoll_event *, int, int);

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout_ms) {
    static epoll_wait_function *real;
    static _Thread_local int in_vain;
    if (real == NULL) real = (epoll_wait_function *)dlsym(RTLD_NEXT, "epoll_wait");
    int wait_ms = timeout_ms == 0 && in_vain >= PATIENCE_POLLS ? WAIT_MS : timeout_ms;
    int count = real(fd, events, most, wait_ms);
    in_vain = count > 0 ? 0 : in_vain + 1;
    return count;
}
