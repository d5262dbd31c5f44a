/* Scalars as a TensorBoard event file: TFRecord frames of Event messages (log.tensorboard). */
#ifndef OCC_TRAINER_TENSORBOARD_H
#define OCC_TRAINER_TENSORBOARD_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

/* Opens DIR/events.out.tfevents.SECONDS.occ-train and writes its version record. NULL on refusal
 * (4). */
FILE *occ_tensorboard_open(const char *dir, struct occ_err *e);
/* One scalar; dies (4) if it cannot be written. */
void occ_tensorboard_scalar(FILE *f, const char *tag, int64_t step, float value);
uint32_t occ_crc32c(const void *data, size_t n); /* Castagnoli, as the format asks for */

#endif
