/* The one clock that times what a run does. */
#ifndef OCC_BASE_CLOCK_H
#define OCC_BASE_CLOCK_H

double occ_clock_ms(void); /* monotonic */

#endif
