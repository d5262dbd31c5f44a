/* The version that --version and the start event name. */
#ifndef OCC_TRAINER_VERSION_H
#define OCC_TRAINER_VERSION_H

#define OCC_VERSION "0.1.0"

#endif
