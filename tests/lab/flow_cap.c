// A preloaded library that paces each TCP connection of a program: a network that caps single flows.
//
// The lab compiles it with HOPLITE_FLOW_CAP_BYTES_S, the cap in bytes per second. The kernel paces a
// socket with SO_MAX_PACING_RATE by itself, whatever the queueing discipline of the interface.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

static void cap(int fd) {
    int domain = 0, saved = errno;
    socklen_t length = sizeof domain;
    unsigned long rate = HOPLITE_FLOW_CAP_BYTES_S;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && (domain == AF_INET || domain == AF_INET6))
        setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
    errno = saved;
}

static int capped(int fd) {
    if (fd >= 0)
        cap(fd);
    return fd;
}

int socket(int domain, int type, int protocol) {
    int (*next)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    return capped(next(domain, type, protocol));
}

int accept(int fd, struct sockaddr *restrict address, socklen_t *restrict length) {
    int (*next)(int, struct sockaddr *, socklen_t *) =
        (int (*)(int, struct sockaddr *, socklen_t *))dlsym(RTLD_NEXT, "accept");
    return capped(next(fd, address, length));
}

int accept4(int fd, struct sockaddr *restrict address, socklen_t *restrict length, int flags) {
    int (*next)(int, struct sockaddr *, socklen_t *, int) =
        (int (*)(int, struct sockaddr *, socklen_t *, int))dlsym(RTLD_NEXT, "accept4");
    return capped(next(fd, address, length, flags));
}
