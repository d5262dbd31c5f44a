/* A stream: a codec, what it keeps, and error feedback, which is written once, here, for all
 * codecs and all sites.
 *
 * With feedback the residual E holds what earlier messages of this stream lost: a message encodes
 * X + E, and E becomes what the wire did not carry (lazy error propagation on links, Optimus-CC
 * section 4; error feedback of weight gradients). Only messages that go through a stream read or
 * renew E; it outlives micro-batches and steps.
 *
 * A step's messages count only when the step does: occ_stream_end(s, 0) restores E, the codec's
 * state and its counter as they were when the step began. */
#ifndef OCC_COMPRESS_STREAM_H
#define OCC_COMPRESS_STREAM_H

#include "compress/codec.h"

struct occ_stream_conf {
	struct occ_knobs knobs;
	int feedback; /* keeps a residual */
	float forget; /* part of the residual that is dropped before a message; 0: nothing is lost
		       */
	int decodes;  /* only decodes: no state, no residual */
	int undo;     /* occ_stream_end(s, 0) will be wanted: a second copy of E and state */
	uint64_t key; /* randomness */
	uint32_t id;
};

struct occ_stream {
	struct occ_codec codec;
	int feedback, undo, frozen, measure;
	float forget;
	float *d_e;             /* (n, m) residual; owned; NULL without feedback */
	float *d_x;             /* (n, m) fp32 work, owned; NULL where none is needed */
	void *d_half;           /* (n, m) of a type narrower than fp32: what the receiver gets */
	float *d_e0, *d_state0; /* copies for undoing; owned */
	int64_t calls0, x_count0;
	double x_norm20;
	int touched; /* a message of this step has changed something */
	/* With `measure`: ||X + E||^2 of messages, summed over x_count of them since their owner
	 * took them, and of the last one. The newest ones wait on the device (occ_stream_settle).
	 */
	double x_norm2, x_last2;
	int64_t x_count;
	double *d_squares; /* owned */
	int nsquares;
	double encode_ms, decode_ms; /* since the owner took them */
};

/* (n, m), values of `type` outside and on the wire. E starts at zero. */
void occ_stream_init(struct occ_stream *s, struct occ_device *dev,
		     const struct occ_stream_conf *conf, int64_t n, int64_t m, enum occ_type type);
void occ_stream_release(struct occ_stream *s);

/* d_x (n, m) of the stream's type -> wire; returns its length in bytes. */
size_t occ_stream_encode(struct occ_stream *s, const void *d_x, void *d_wire);
/* Wire -> d_y (n, m) of the stream's type. Touches no state. */
void occ_stream_decode(struct occ_stream *s, const void *d_wire, size_t bytes, void *d_y);
/* The same on the support of an earlier wire (codec->support), values only. */
size_t occ_stream_follow(struct occ_stream *s, const void *d_support, const void *d_x,
			 void *d_wire);
void occ_stream_decode_follow(struct occ_stream *s, const void *d_support, const void *d_wire,
			      void *d_y);

/* x_norm2, x_last2 and x_count are complete; waits where some were not. */
void occ_stream_settle(struct occ_stream *s);

/* Sums over ranks (codecs with rounds; type fp32). begin: what the codec sees, X + E, is made in
 * place and returned; finish: E becomes X + E - own, and d_x the sum of all. */
const float *occ_stream_sum_begin(struct occ_stream *s, const float *d_x);
void occ_stream_sum_own(struct occ_stream *s);
void occ_stream_sum_finish(struct occ_stream *s, float *d_x);

/* `frozen` (evaluation): messages go through the codec, but neither read nor renew E. Only for
 * codecs that keep nothing themselves. */

void occ_stream_end(struct occ_stream *s, int keep); /* the step is over */
double occ_stream_residual2(struct occ_stream *s);   /* ||E||^2; waits */

#endif
