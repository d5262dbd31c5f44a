/* Test-only NCCL on MPI: its types and reductions as MPI has them. A sum of bf16 is rounded at each
 * step, as NCCL does it too, in another order. */
#include "tests/cudaemu/emu_nccl.h"

#include <cuda_bf16.h>

namespace occ_emu
{
namespace
{
template <class F> void bf16_each(void *a, void *b, int n, F f)
{
	__nv_bfloat16 *x = (__nv_bfloat16 *)a, *y = (__nv_bfloat16 *)b;
	for (int i = 0; i < n; i++)
		y[i] = __float2bfloat16_rn(f(__bfloat162float(x[i]), __bfloat162float(y[i])));
}

void bf16_sum(void *a, void *b, int *n, MPI_Datatype *)
{
	bf16_each(a, b, *n, [](float x, float y) { return x + y; });
}

void bf16_max(void *a, void *b, int *n, MPI_Datatype *)
{
	bf16_each(a, b, *n, [](float x, float y) { return x > y ? x : y; });
}

void bf16_min(void *a, void *b, int *n, MPI_Datatype *)
{
	bf16_each(a, b, *n, [](float x, float y) { return x < y ? x : y; });
}
} // namespace

size_t nccl_size(ncclDataType_t t)
{
	switch (t) {
	case ncclInt8:
	case ncclUint8:
		return 1;
	case ncclBfloat16:
		return 2;
	case ncclInt32:
	case ncclUint32:
	case ncclFloat32:
		return 4;
	case ncclInt64:
	case ncclUint64:
	case ncclFloat64:
		return 8;
	default:
		return 0; /* not emulated */
	}
}

MPI_Datatype mpi_type(ncclDataType_t t)
{
	switch (t) {
	case ncclInt8:
		return MPI_INT8_T;
	case ncclUint8:
		return MPI_UINT8_T;
	case ncclInt32:
		return MPI_INT32_T;
	case ncclUint32:
		return MPI_UINT32_T;
	case ncclInt64:
		return MPI_INT64_T;
	case ncclUint64:
		return MPI_UINT64_T;
	case ncclFloat32:
		return MPI_FLOAT;
	case ncclFloat64:
		return MPI_DOUBLE;
	default:
		return MPI_UINT16_T;
	}
}

MPI_Op mpi_op(ncclRedOp_t op, ncclDataType_t type)
{
	static MPI_Op sum = MPI_OP_NULL, max, min;
	bool bf16 = type == ncclBfloat16;
	if (sum == MPI_OP_NULL) {
		MPI_Op_create(bf16_sum, 1, &sum);
		MPI_Op_create(bf16_max, 1, &max);
		MPI_Op_create(bf16_min, 1, &min);
	}
	switch (op) {
	case ncclMax:
		return bf16 ? max : MPI_MAX;
	case ncclMin:
		return bf16 ? min : MPI_MIN;
	case ncclProd:
		return MPI_PROD;
	default:
		return bf16 ? sum : MPI_SUM;
	}
}
} // namespace occ_emu
