/* A thread that calls a function again and again while its owner does something else. */
#ifndef OCC_PARALLEL_TICKER_H
#define OCC_PARALLEL_TICKER_H

struct occ_ticker;

/* Calls tick() every `us` microseconds, or later, until closed; on a thread of its own that hears
 * no signals. NULL where no thread can be had. */
struct occ_ticker *occ_ticker_open(void (*tick)(void), long us);
void occ_ticker_close(struct occ_ticker *t); /* waits for the last call; NULL allowed */

#endif
