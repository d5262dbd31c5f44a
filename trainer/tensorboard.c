/* A frame is length, masked crc of the length, payload, masked crc of the payload; the payload is
 * an Event in protobuf wire format: 1 wall_time double, 2 step int64, 3 file_version string, 5
 * summary { 1 value { 1 tag string, 2 simple_value float } }. */
#include "trainer/tensorboard.h"

#include <errno.h>
#include <string.h>
#include <time.h>

uint32_t occ_crc32c(const void *data, size_t n)
{
	const unsigned char *p = data;
	uint32_t crc = ~0u;
	for (size_t i = 0; i < n; i++) {
		crc ^= p[i];
		for (int k = 0; k < 8; k++)
			crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1u)));
	}
	return ~crc;
}

static uint32_t masked(const void *data, size_t n)
{
	uint32_t crc = occ_crc32c(data, n);
	return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

struct buf {
	unsigned char at[512];
	size_t n;
};

static void put_bytes(struct buf *b, const void *x, size_t n)
{
	occ_check(b->n + n <= sizeof(b->at), "a TensorBoard record of more than %zu bytes",
		  sizeof(b->at));
	memcpy(b->at + b->n, x, n);
	b->n += n;
}

static void put_varint(struct buf *b, uint64_t v)
{
	do {
		unsigned char c = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
		put_bytes(b, &c, 1);
		v >>= 7;
	} while (v);
}

enum wire { VARINT = 0, FIXED64 = 1, LENGTH = 2, FIXED32 = 5 };

static void put_key(struct buf *b, unsigned field, enum wire wire)
{
	put_varint(b, field << 3 | wire);
}

static void put_block(struct buf *b, unsigned field, const void *x, size_t n)
{
	put_key(b, field, LENGTH);
	put_varint(b, n);
	put_bytes(b, x, n);
}

static void put_time(struct buf *b)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	double wall = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
	put_key(b, 1, FIXED64);
	put_bytes(b, &wall, sizeof(wall));
}

static int write_frame(FILE *f, const struct buf *b)
{
	uint64_t n = b->n;
	uint32_t head = masked(&n, sizeof(n)), tail = masked(b->at, b->n);
	return fwrite(&n, sizeof(n), 1, f) == 1 && fwrite(&head, sizeof(head), 1, f) == 1 &&
	       fwrite(b->at, b->n, 1, f) == 1 && fwrite(&tail, sizeof(tail), 1, f) == 1 &&
	       !fflush(f);
}

FILE *occ_tensorboard_open(const char *dir, struct occ_err *e)
{
	char path[4200];
	static const char version[] = "brain.Event:2";
	struct buf b = {.n = 0};
	snprintf(path, sizeof(path), "%s/events.out.tfevents.%lld.occ-train", dir,
		 (long long)time(NULL));
	FILE *f = fopen(path, "w");
	put_time(&b);
	put_block(&b, 3, version, sizeof(version) - 1);
	if (f && write_frame(f, &b))
		return f;
	occ_fail(e, OCC_E_CKPT, "%s: cannot be written: %s", path, strerror(errno));
	if (f)
		fclose(f);
	return NULL;
}

void occ_tensorboard_scalar(FILE *f, const char *tag, int64_t step, float value)
{
	struct buf event = {.n = 0}, scalar = {.n = 0}, summary = {.n = 0};
	put_block(&scalar, 1, tag, strlen(tag));
	put_key(&scalar, 2, FIXED32);
	put_bytes(&scalar, &value, sizeof(value));
	put_block(&summary, 1, scalar.at, scalar.n);
	put_time(&event);
	put_key(&event, 2, VARINT);
	put_varint(&event, (uint64_t)step);
	put_block(&event, 5, summary.at, summary.n);
	if (!write_frame(f, &event))
		occ_die(OCC_E_CKPT, "TensorBoard event file: cannot be written: %s",
			strerror(errno));
}
