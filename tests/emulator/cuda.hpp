// As much of CUDA as the kernels use, on one thread of a CPU: the threads of a block are fibers that take turns and wait
// for one another at barriers. Blocks run one after another. Slow, and the same arithmetic.

#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(4) uchar4 { unsigned char x, y, z, w; };
struct dim3 { unsigned x, y, z; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __float_as_int(float v) { int out; std::memcpy(&out, &v, 4); return out; }
inline float __int_as_float(int v) { float out; std::memcpy(&out, &v, 4); return out; }

#define __global__
#define __device__
#define __launch_bounds__(...)

static dim3 threadIdx, blockIdx, blockDim, gridDim;
static const size_t SHARED = 256 * 1024, STACK = 128 * 1024;
float4 shared[SHARED / sizeof(float4)];

namespace emulator {

enum State { READY, AT_WARP, AT_BLOCK, DONE };

struct Fiber {
    ucontext_t context;
    jmp_buf here;
    std::vector<char> stack;
    State state;
    bool begun;
};

static std::vector<Fiber> fibers;
static std::function<void()> body;
static jmp_buf scheduler;
static ucontext_t main_context;
static unsigned current;
static unsigned slots[1024];

static void enter() {
    body();
    fibers[current].state = DONE;
    _longjmp(scheduler, 1);
}

static void wait(State state) {
    Fiber& me = fibers[current];
    me.state = state;
    if (_setjmp(me.here) == 0) _longjmp(scheduler, 1);
}

static void resume(unsigned thread) {
    current = thread;
    threadIdx = {thread, 0, 0};
    Fiber& fiber = fibers[thread];
    if (_setjmp(scheduler) != 0) return;
    if (fiber.begun) _longjmp(fiber.here, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
}

// Let all fibers of a range that wait at this barrier go on, if none of the range is still on its way.
static bool release(unsigned from, unsigned to, State barrier) {
    bool any = false;
    for (unsigned t = from; t < to; ++t) {
        if (fibers[t].state == DONE) continue;
        if (fibers[t].state != barrier) return false;
        any = true;
    }
    for (unsigned t = from; t < to; ++t)
        if (fibers[t].state == barrier) fibers[t].state = READY;
    return any;
}

static void block(unsigned threads, const std::function<void()>& work) {
    body = work;
    if (fibers.size() < threads) fibers.resize(threads);
    for (unsigned t = 0; t < threads; ++t) {
        Fiber& fiber = fibers[t];
        fiber.stack.resize(STACK);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = &main_context;
        makecontext(&fiber.context, enter, 0);
        fiber.state = READY, fiber.begun = false;
    }
    for (;;) {
        bool done = true, moved = false;
        for (unsigned t = 0; t < threads; ++t) {
            if (fibers[t].state == READY) resume(t), moved = true;
            done = done && fibers[t].state == DONE;
        }
        if (done) return;
        for (unsigned t = 0; t < threads; t += 32) moved |= release(t, t + 32 < threads ? t + 32 : threads, AT_WARP);
        moved |= release(0, threads, AT_BLOCK);
        if (!moved) std::fprintf(stderr, "a block waits for ever: threads are at different barriers\n"), std::abort();
    }
}

}  // namespace emulator

inline void __syncthreads() { emulator::wait(emulator::AT_BLOCK); }
inline void __syncwarp() { emulator::wait(emulator::AT_WARP); }

inline unsigned __ballot_sync(unsigned, bool flag) {
    unsigned base = threadIdx.x / 32 * 32, me = threadIdx.x, mask = 0;
    emulator::slots[me] = flag;
    __syncwarp();
    for (unsigned lane = 0; lane < 32; ++lane) mask |= emulator::slots[base + lane] << lane;
    __syncwarp();
    return mask;
}

inline float __shfl_xor_sync(unsigned, float value, int other) {
    unsigned me = threadIdx.x;
    std::memcpy(&emulator::slots[me], &value, 4);
    __syncwarp();
    float out;
    std::memcpy(&out, &emulator::slots[me ^ other], 4);
    __syncwarp();
    return out;
}

inline unsigned round_tf32(float value) { return (unsigned)(__float_as_int(value) + 0x1000) & ~0x1fffu; }

inline unsigned pack_bf16(float low, float high) {
    auto round = [](float value) {
        unsigned bits = __float_as_int(value);
        return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    };
    return round(low) | round(high) << 16;
}

namespace emulator {
struct Operands { unsigned a[4], b[2]; };
static Operands operands[1024];
}

// All lanes lay their operands down, and each adds up its own sums.
template <bool BF16>
void multiply(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    unsigned me = threadIdx.x, base = me / 32 * 32, lane = me % 32;
    std::memcpy(emulator::operands[me].a, a, sizeof a), std::memcpy(emulator::operands[me].b, b, sizeof b);
    __syncwarp();
    for (int i = 0; i < 4; ++i)
        for (unsigned k = 0; k < 8; ++k) {
            unsigned row = lane / 4, column = lane % 4 * 2 + i % 2;
            unsigned one = emulator::operands[base + row * 4 + k % 4].a[i / 2 + k / 4 * 2];
            unsigned two = emulator::operands[base + column * 4 + k % 4].b[k / 4];
            if (BF16) {
                sum[i] += __int_as_float(one << 16) * __int_as_float(two << 16);
                sum[i] += __int_as_float(one & 0xffff0000u) * __int_as_float(two & 0xffff0000u);
            } else {
                sum[i] += __int_as_float(one) * __int_as_float(two);
            }
        }
    __syncwarp();
}

// Every launch begins with unknown values in shared memory, as on a device.
#define LAUNCH(NAME, ...)                                                                                      \
    std::memset(shared, 0xff, sizeof shared);                                                                  \
    for (unsigned z = 0; z < grid[2]; ++z)                                                                     \
        for (unsigned y = 0; y < grid[1]; ++y)                                                                 \
            for (unsigned x = 0; x < grid[0]; ++x) {                                                           \
                blockIdx = {x, y, z}, blockDim = {threads, 1, 1}, gridDim = {grid[0], grid[1], grid[2]};                                           \
                emulator::block(threads, [&] { NAME(__VA_ARGS__); });                                          \
            }
