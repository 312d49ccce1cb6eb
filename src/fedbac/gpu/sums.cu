// What normalizations share: numbers of SIZE pixels side by side, as float32 or, with HALF, bf16; and sums over a block of
// WARPS, in a fixed order.

#if HALF
typedef unsigned short number;
__device__ float as_float(number value) { return __int_as_float((unsigned)value << 16); }
__device__ number as_number(float value) { return (number)pack_bf16(value, 0); }
#else
typedef float number;
__device__ float as_float(number value) { return value; }
__device__ number as_number(float value) { return value; }
#endif

enum { N = SIZE % 4 == 0 ? 4 : SIZE % 2 == 0 ? 2 : 1 };  // numbers that are read at once

struct alignas(N * sizeof(number)) Numbers { number at[N]; };

__device__ float over_warp(float value) {
    for (int other = 16; other; other /= 2) value += __shfl_xor_sync(~0u, value, other);
    return value;
}

__device__ float over_block(float value, float* room) {
    value = over_warp(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
    for (int warp = 0; warp < WARPS; ++warp) sum += room[warp];
    return sum;
}
