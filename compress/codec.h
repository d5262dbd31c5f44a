/* Codecs: a matrix becomes a wire and back. A codec never communicates and knows no error
 * feedback (compress/stream.h). docs/adding-a-codec.md says how to write one.
 *
 * Matrices are fp32 device arrays (n, m), row-major; wires are bytes of device memory. Encoding
 * and decoding enqueue; encoders whose wires vary in length wait for the length. */
#ifndef OCC_COMPRESS_CODEC_H
#define OCC_COMPRESS_CODEC_H

#include "base/device.h"

struct occ_codec_ops;

/* How strongly to compress: the keys of one site in the configuration. */
struct occ_knobs {
	const struct occ_codec_ops *codec; /* NULL: the site is not compressed */
	int adaptive;                      /* codec "auto": the rank follows the measured gain */
	int fp16;                          /* cast: fp16 with a scale instead of bf16 */
	int bits;                          /* quant: 2, 4, 8 */
	int64_t group;                     /* quant: values that share a scale */
	double fraction;                   /* topk, dct: of values kept */
	int64_t period;                    /* dct: encodings that a threshold lives */
	int64_t rank, iterations;          /* powersgd */
	double epsilon;                    /* errbound */
};

/* One matrix and what its codec keeps from call to call. Embedded in its owner. */
struct occ_codec {
	const struct occ_codec_ops *ops;
	struct occ_knobs knobs;
	struct occ_device *dev; /* borrowed */
	int64_t n, m;
	enum occ_type type; /* of values on the wire, where the codec sends values as they are */
	uint64_t key;       /* of its random numbers */
	uint32_t id;
	float *d_state;   /* owned; saved with checkpoints; ops->state elements */
	int64_t calls;    /* encodings so far; saved with checkpoints */
	float *d_scratch; /* owned; ops->scratch elements, of no value between calls */
};

struct occ_codec_ops {
	const char *name;
	int varies;      /* 1: wires are of any length up to the bound; else always the bound */
	double expected; /* where they vary: part of the bound to reckon with; 0: not known before
			  */
	/* Pure functions of n, m, type and knobs. */
	size_t (*bound)(const struct occ_codec *c);    /* bytes of the longest wire */
	int64_t (*state)(const struct occ_codec *c);   /* NULL: none */
	int64_t (*scratch)(const struct occ_codec *c); /* NULL: none */
	void (*start)(struct occ_codec *c);            /* fills a new state; NULL with state NULL */
	/* From now on at another rank, at most that of init; what is kept goes on. NULL: none. */
	void (*resize)(struct occ_codec *c, int64_t rank);
	/* Returns the wire's length. x is left as it is. */
	size_t (*encode)(struct occ_codec *c, const float *d_x, void *d_wire);
	/* Needs no state: any codec of the same shape and knobs decodes a wire of that length.
	 * y =, += or -= . */
	void (*decode)(struct occ_codec *c, const void *d_wire, size_t bytes, enum occ_how how,
		       float *d_y);

	/* Sums over ranks without a wire for each: in round k every rank offers `part` elements of
	 * x, the parts are summed, and all ranks take the same sum. After the last round decode_sum
	 * gives the sum of all x, decode_own what this rank's x contributed. NULL: wires are
	 * gathered and decoded one after the other. */
	int (*rounds)(const struct occ_codec *c);
	int64_t (*part)(const struct occ_codec *c, int round);
	void (*offer)(struct occ_codec *c, int round, const float *d_x, float *d_part);
	void (*take)(struct occ_codec *c, int round, const float *d_sum);
	void (*decode_sum)(struct occ_codec *c, enum occ_how how, float *d_y);
	void (*decode_own)(struct occ_codec *c, enum occ_how how, float *d_y);

	/* A wire's support: which elements it carries. A later message may follow it, and then
	 * sends values only. NULL: wires have none. Bytes; the support is where a wire begins. */
	size_t (*support)(const struct occ_codec *c);
	size_t (*follow_bound)(const struct occ_codec *c);
	void (*follow_encode)(struct occ_codec *c, const void *d_support, const float *d_x,
			      void *d_wire);
	void (*follow_decode)(struct occ_codec *c, const void *d_support, const void *d_wire,
			      enum occ_how how, float *d_y);
};

extern const struct occ_codec_ops occ_codec_none, occ_codec_cast, occ_codec_quant, occ_codec_topk,
	occ_codec_dct, occ_codec_dct_rows, occ_codec_powersgd, occ_codec_errbound;

/* Where a codec is used: gradients of weights, or activations and their gradients. */
enum occ_use { OCC_USE_WEIGHTS, OCC_USE_TOKENS };

/* By the configuration's name; NULL for "none" and for a name that is not known. `dct` drops by a
 * threshold that lives for many steps on weights, and keeps the largest of each row (token) on
 * activations (DCT, sections 3.1 and 3.2). "auto" is powersgd. */
const struct occ_codec_ops *occ_codec_find(const char *name, enum occ_use use);

/* The wire's longest length in bytes for a matrix. Pure. */
size_t occ_codec_bound(const struct occ_knobs *k, int64_t n, int64_t m, enum occ_type type);
/* Rank that powersgd uses: min(n, m, rank). Pure. */
int64_t occ_codec_rank(const struct occ_knobs *k, int64_t n, int64_t m);
/* Elements that a fraction keeps of n: round(fraction * n), at least 1 and at most n. Pure. */
int64_t occ_codec_kept(double fraction, int64_t n);

/* n, m >= 1. Fit to decode; the codec owns its device memory. */
void occ_codec_init(struct occ_codec *c, struct occ_device *dev, const struct occ_knobs *k,
		    int64_t n, int64_t m, enum occ_type type);
/* Makes a new state, random numbers by (key, id): before the first encoding. */
void occ_codec_start(struct occ_codec *c, uint64_t key, uint32_t id);
void occ_codec_release(struct occ_codec *c);
int64_t occ_codec_state(const struct occ_codec *c); /* elements of d_state */

#endif
