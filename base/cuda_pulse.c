/* Signs of life. A host that waits for the device for a whole step must tell a long step from a
 * peer that is gone: the first passes one point of its queues after the other. A queue keeps few
 * points; where more come in a step, every second one goes, and half as many are put from then on.
 */
#include "base/cuda.h"

static void put(struct occ_cuda_pulse *p, cudaStream_t s)
{
	cudaEvent_t *at = &p->at[p->n++];
	if (!*at)
		occ_cuda_must(cudaEventCreateWithFlags(at, cudaEventDisableTiming),
			      "cudaEventCreateWithFlags");
	occ_cuda_must(cudaEventRecord(*at, s), "cudaEventRecord");
}

static void thin(struct occ_cuda_pulse *p)
{
	for (int i = 0; i < OCC_CUDA_PULSES / 2; i++) {
		cudaEvent_t kept = p->at[2 * i + 1];
		p->at[2 * i + 1] = p->at[i];
		p->at[i] = kept;
	}
	p->n = OCC_CUDA_PULSES / 2;
	p->seen = 0;
	p->skips = 2 * p->skips + 1;
}

static void beat(struct occ_cuda *c)
{
	__atomic_fetch_add(&c->beats, 1, __ATOMIC_RELAXED);
}

int64_t occ_cuda_beats(const struct occ_device *d)
{
	return __atomic_load_n(&occ_cuda_of(d)->beats, __ATOMIC_RELAXED);
}

void occ_cuda_pulse(struct occ_device *d)
{
	struct occ_cuda_pulse *p = &occ_cuda_of(d)->now->pulse;
	beat(occ_cuda_of(d));
	if (!d->watch || occ_cuda_recording() || p->calls++ % (p->skips + 1))
		return;
	if (p->n == OCC_CUDA_PULSES)
		thin(p);
	put(p, occ_cuda_stream(d));
}

int occ_cuda_moved(struct occ_cuda *c)
{
	int moved = 0;
	beat(c);
	for (int q = 0; q < OCC_NQUEUES; q++) {
		struct occ_cuda_pulse *p = &c->queue[q].pulse;
		for (; p->seen < p->n && cudaEventQuery(p->at[p->seen]) == cudaSuccess; p->seen++)
			moved = 1;
	}
	return moved;
}

void occ_cuda_rested(struct occ_cuda *c)
{
	for (int q = 0; q < OCC_NQUEUES; q++) {
		struct occ_cuda_pulse *p = &c->queue[q].pulse;
		p->n = p->seen = 0;
		p->skips /= 2;
	}
}

void occ_cuda_pulse_close(struct occ_cuda_pulse *p)
{
	for (int i = 0; i < OCC_CUDA_PULSES && p->at[i]; i++)
		cudaEventDestroy(p->at[i]);
}
