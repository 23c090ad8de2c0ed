/* The floor: launches in a C loop in which one argument, and the grid with it, moves. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      void *, void **, void **);

/* Nanoseconds for `count` launches, with `rows` at `offset` of the argument segment. */
uint64_t c_loop(Launch launch, void *function, uint8_t *kernarg, size_t size, size_t offset,
                unsigned block, unsigned count) {
    struct timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (unsigned rows = 1; rows <= count; rows++) {
        memcpy(kernarg + offset, &rows, sizeof rows);
        void *extra[] = {(void *)1, kernarg, (void *)2, &size, (void *)3};
        if (launch(function, rows, 1, 1, block, 1, 1, 0, NULL, NULL, extra) != 0) {
            return 0;
        }
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    return (uint64_t)(end.tv_sec - begin.tv_sec) * 1000000000u + (uint64_t)end.tv_nsec -
           (uint64_t)begin.tv_nsec;
}
