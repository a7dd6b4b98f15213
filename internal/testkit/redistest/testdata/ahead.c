/* Makes the clock of a process go CLOCK_AHEAD_US microseconds ahead, or behind if that is below 0:
   to be loaded before the C library (LD_PRELOAD). Waiting, and the monotonic clock, are as ever. It
   needs no memory: what allocates it may ask for the time before it can. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long ahead;

__attribute__((constructor)) static void read_ahead(void)
{
	const char *us = getenv("CLOCK_AHEAD_US");
	if (us)
		ahead = atoll(us);
}

int clock_gettime(clockid_t id, struct timespec *t)
{
	int r = syscall(SYS_clock_gettime, id, t);
	if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
		long long ns = t->tv_sec * 1000000000LL + t->tv_nsec + ahead * 1000;
		t->tv_sec = ns / 1000000000;
		t->tv_nsec = ns % 1000000000;
	}
	return r;
}

int gettimeofday(struct timeval *t, void *zone)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}
