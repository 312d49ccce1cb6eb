// Local training of many small networks at once on a GPU; compiled at run time for one network and batch size.
//
// A step of SGD of all active clients is ten launches. Every block works for one network of one client ("row"), so that
// clients of any number and size fill the device together. Sums are taken in a fixed order: the same bits every time.
//
// A header made by network.py comes before this text. It gives BATCH, CLASSES, WEIGHTS (numbers per network), CONV_WEIGHTS
// (those of its convolutions), LINEAR_INPUT, the sizes of tiles, and the layers as lists of macros.
//
// Every layer is one matrix of (inputs + 1) rows, the last one its bias, and columns padded to a multiple of four floats.
// Rows of a convolution are (channel, tap row, tap column). A block (convolution, ReLU, 2x2 max pooling) keeps only its
// pooled output and which of the four won; a backward pass visits the winners with a gradient and no others.

typedef unsigned char u8;
typedef signed char i8;

struct Buffers {
    const void* pixels;        // uint8 images, or floats when there is no normalization
    const int* labels;
    const float2* seen;        // per channel, factor and offset that make of a uint8 value what the network sees
    const int* visits;         // examples of all jobs in order of visit
    const i8* crop;            // (row, column) shift of every visit, or null
    const u8* flip;
    const int4* jobs;          // first visit, visits per epoch (evaluation: where logits go), those used, batches per epoch
    const int* slots;          // which row of `weights` a (job, part) uses
    const float* rates;        // [job] learning rates
    const float* anchors;      // [anchor][WEIGHTS] networks to which the penalty pulls
    const int* anchor;         // which of them pulls a (job, part), negative for zero; null where none does
    const float* shift;        // [row][WEIGHTS] what is added to the clipped gradient; null where nothing is
    float* weights;            // [row][WEIGHTS]
    float* velocity;
    float* gradient;
    float* partial;            // [row][CHUNKS][CONV_WEIGHTS]
    float* squares;            // [row][SLICES] sums of squared gradients
    double* loss;              // [job][GROUPS]
    double* square;            // the same of squared losses, or null
    double* epoch_loss;        // [job][num_epochs][GROUPS], or null
    float* logits;             // evaluation: [example][CLASSES]
    float* out[MAX_LEVELS];    // outputs of every layer but the last: [row][BATCH][size]
    float* back[MAX_LEVELS];   // gradients of the same, and of the logits
    u8* winner[MAX_LEVELS];    // which of four positions won; 4 where the ReLU let nothing through
    int parts;
    int batch;                 // examples per step; buffers have room for BATCH
    int num_epochs;            // of all phases
    int first_epoch;           // of this phase
};

// How weights move in a phase.
struct Rule {
    float momentum, max_norm;
    int joint;                                   // one gradient norm over all moving parts, or one each
    float decay[MAX_PARTS], penalty[MAX_PARTS];  // the penalty pulls to the anchor, or to zero where there is none
    int begin[MAX_PARTS], end[MAX_PARTS];        // the weights that move, whole layers; none where both are equal

    __device__ bool moves(int part) const { return begin[part] < end[part]; }
    __device__ bool moves(int part, int from, int size) const { return from < end[part] && from + size > begin[part]; }
};

struct Window { int first, count; };

__device__ Window window(const Buffers& b, int job, int step) {
    int4 j = b.jobs[job];  // evaluation has one batch and no second epoch
    int epoch = step / j.w, batch = step - epoch * j.w;
    return {j.x + epoch * j.y + batch * b.batch, min(b.batch, j.z - batch * b.batch)};
}

// ------------------------------------------------------------------------------------------------------------- input

// The value at (channel, y, x) of the visit's image as the network sees it.
__device__ float pixel(const Buffers& b, int visit, int channel, int y, int x) {
    if (b.crop) {
        if (b.flip[visit]) x = IMAGE_WIDTH - 1 - x;
        y += b.crop[2 * visit];
        x += b.crop[2 * visit + 1];
        if (y < 0 || y >= IMAGE_HEIGHT || x < 0 || x >= IMAGE_WIDTH) return FLOAT_PIXELS ? 0 : b.seen[channel].y;
    }
    size_t at = (((size_t)b.visits[visit] * IMAGE_CHANNELS + channel) * IMAGE_HEIGHT + y) * IMAGE_WIDTH + x;
#if FLOAT_PIXELS
    return ((const float*)b.pixels)[at];
#else
    float2 line = b.seen[channel];
    return ((const u8*)b.pixels)[at] * line.x + line.y;
#endif
}

// The threads of a block fetch and put items of a range; a thread fetches COUNT before it puts the first, so that it waits
// for memory once. No branch is around a fetch: what is beyond the range is the last item again, and is not put.
template <int COUNT, class Fetch, class Put>
__device__ void carry(int items, Fetch fetch, Put put) {
    for (int begin = threadIdx.x; begin < items; begin += COUNT * blockDim.x) {
        decltype(fetch(0)) held[COUNT];
        UNROLL for (int n = 0; n < COUNT; ++n) held[n] = fetch(min(begin + n * (int)blockDim.x, items - 1));
        UNROLL for (int n = 0; n < COUNT; ++n)
            if (begin + n * (int)blockDim.x < items) put(begin + n * (int)blockDim.x, held[n]);
    }
}

// Copy inputs of `samples` examples into shared memory [sample][channel][H][STRIDE]; examples beyond the batch are zero.
template <int LEVEL, int C, int H, int W, int STRIDE, int COUNT>
__device__ void stage(const Buffers& b, Window win, int row, int first, int samples, float* to) {
    constexpr int SIZE = C * H * W;
    int last = win.count - 1 - first, full = min(samples, last + 1);
    const float* from = LEVEL < 0 ? nullptr : b.out[LEVEL < 0 ? 0 : LEVEL] + ((size_t)row * BATCH + first) * SIZE;
    if (LEVEL < 0 && !FLOAT_PIXELS && W % 4 == 0 && !b.crop) {  // four pixels at a time
        carry<COUNT>(samples * (SIZE / 4), [&](int i) {
            int sample = i / (SIZE / 4), visit = b.visits[win.first + first + min(sample, last)];
            return ((const uchar4*)b.pixels)[(size_t)visit * (SIZE / 4) + (i - sample * (SIZE / 4))];
        }, [&](int i, uchar4 raw) {
            float* at = to + i / (W / 4) * STRIDE + i % (W / 4) * 4;
            float2 seen = b.seen[i / (H * W / 4) % C];
            if (i >= full * (SIZE / 4)) seen.x = seen.y = 0;
            at[0] = raw.x * seen.x + seen.y, at[1] = raw.y * seen.x + seen.y;
            at[2] = raw.z * seen.x + seen.y, at[3] = raw.w * seen.x + seen.y;
        });
    } else if (LEVEL >= 0 && STRIDE == W && SIZE % 4 == 0) {  // as it lies in memory
        carry<COUNT>(samples * (SIZE / 4), [&](int i) { return ((const float4*)from)[min(i, full * (SIZE / 4) - 1)]; },
            [&](int i, float4 four) { ((float4*)to)[i] = i < full * (SIZE / 4) ? four : make_float4(0, 0, 0, 0); });
    } else {
        carry<COUNT>(samples * SIZE, [&](int i) {
            i = min(i, full * SIZE - 1);
            if (LEVEL >= 0) return from[i];
            int sample = i / SIZE, line = i / W, y = line % H;
            return pixel(b, win.first + first + sample, line / H % C, y, i - line * W);
        }, [&](int i, float value) { to[i / W * STRIDE + i % W] = i < full * SIZE ? value : 0.0f; });
    }
}

// -------------------------------------------------------------------------------------------------------- convolution

constexpr __device__ int even(int n) { return n + n % 2; }

// LEVEL of its output, input channels, height and width, output channels, kernel, padded outputs, offset in WEIGHTS,
// channels per thread, examples per block; in the backward passes a row stride of the
// input at which the taps of a window lie in different banks of shared memory.
template <int LEVEL, int C, int H, int W, int O, int K, int OP, int AT, int TILE, int SAMPLES>
__device__ void convolve(const Buffers& b, int step) {
    constexpr int PH = (H - K + 1) / 2, PW = (W - K + 1) / 2, POSITIONS = PH * PW, FAN = C * K * K, STRIDE = even(W);
    constexpr int PAIRS = SAMPLES / 2, TILES = (O + TILE - 1) / TILE, COLUMNS = even(K + 1);
    extern __shared__ float4 shared[];
    float* weights = (float*)shared;
    float* input = weights + (FAN + 1) * OP;
    int row = blockIdx.x, first = blockIdx.y * SAMPLES;
    Window win = window(b, row / b.parts, step);
    if (first >= win.count) return;
    const float4* from = (const float4*)(b.weights + (size_t)b.slots[row] * WEIGHTS + AT);
    carry<4>((FAN + 1) * OP / 4, [&](int i) { return from[i]; }, [&](int i, float4 four) { shared[i] = four; });
    stage<LEVEL - 1, C, H, W, STRIDE, 8>(b, win, row, first, SAMPLES, input);
    __syncthreads();
    for (int item = threadIdx.x; item < TILES * PAIRS * POSITIONS; item += blockDim.x) {
        int tile = item / (PAIRS * POSITIONS), rest = item - tile * (PAIRS * POSITIONS);
        int pair = rest / POSITIONS, at = rest - pair * POSITIONS, py = at / PW, px = at - py * PW;
        if (first + 2 * pair >= win.count) continue;
        float sum[2][4][TILE];
        UNROLL for (int c = 0; c < TILE; ++c) {
            float bias = weights[FAN * OP + tile * TILE + c];
            UNROLL for (int q = 0; q < 4; ++q) sum[0][q][c] = sum[1][q][c] = bias;
        }
        #pragma unroll 1
        for (int channel = 0; channel < C; ++channel) {
            const float* x[2];
            x[0] = input + ((pair * 2 * C + channel) * H + 2 * py) * STRIDE + 2 * px;
            x[1] = x[0] + C * H * STRIDE;
            float line[2][2][COLUMNS];  // of two examples, two image lines
            auto read = [&](int y) {
                UNROLL for (int s = 0; s < 2; ++s)
                    UNROLL for (int i = 0; i < COLUMNS; i += 2) {
                        float2 two = *(const float2*)(x[s] + y * STRIDE + i);
                        line[s][y % 2][i] = two.x;
                        line[s][y % 2][i + 1] = two.y;
                    }
            };
            read(0);
            UNROLL for (int ky = 0; ky < K; ++ky) {
                read(ky + 1);
                UNROLL for (int kx = 0; kx < K; ++kx) {
                    const float* w = weights + ((channel * K + ky) * K + kx) * OP + tile * TILE;
                    float tap[TILE];
                    UNROLL for (int c = 0; c < TILE; c += 2) {
                        if (TILE % 4 == 0 && c % 4 == 0) {
                            float4 four = *(const float4*)(w + c);
                            tap[c] = four.x, tap[c + 1] = four.y, tap[c + 2] = four.z, tap[c + 3] = four.w;
                        } else if (TILE % 4 != 0) {
                            float2 two = *(const float2*)(w + c);
                            tap[c] = two.x, tap[c + 1] = two.y;
                        }
                    }
                    UNROLL for (int s = 0; s < 2; ++s)
                        UNROLL for (int c = 0; c < TILE; ++c) {
                            sum[s][0][c] += tap[c] * line[s][ky % 2][kx];
                            sum[s][1][c] += tap[c] * line[s][ky % 2][kx + 1];
                            sum[s][2][c] += tap[c] * line[s][(ky + 1) % 2][kx];
                            sum[s][3][c] += tap[c] * line[s][(ky + 1) % 2][kx + 1];
                        }
                }
            }
        }
        UNROLL for (int s = 0; s < 2; ++s) {
            int sample = first + 2 * pair + s;
            if (sample >= win.count) continue;
            UNROLL for (int c = 0; c < TILE; ++c) {
                int channel = tile * TILE + c;
                if (channel >= O) continue;
                float best = sum[s][0][c];
                int winner = 0;
                UNROLL for (int q = 1; q < 4; ++q)
                    if (sum[s][q][c] > best || sum[s][q][c] != sum[s][q][c]) best = sum[s][q][c], winner = q;
                bool dead = best <= 0;
                size_t to = ((size_t)row * BATCH + sample) * (O * POSITIONS) + channel * POSITIONS + at;
                b.out[LEVEL][to] = dead ? 0.0f : best;
                b.winner[LEVEL][to] = dead ? 4 : winner;
            }
        }
    }
}

constexpr int TOGETHER = 4;  // winners that a loop takes at once, so that their loads do not wait for one another
constexpr __device__ int list_room(int positions) { return (positions + TOGETHER - 1) / TOGETHER * TOGETHER; }

// A warp lists the winners with a gradient among SHARE positions of one channel of one example, in order: the gradient,
// and at which byte of an input of row stride STRIDE the window's corner lies. Entries of no gradient fill the last
// TOGETHER.
template <int LEVEL, int W, int O, int K, int POSITIONS, int STRIDE, int SHARE>
__device__ int winners(const Buffers& b, int row, int sample, int channel, int from, int2* list) {
    constexpr int PW = (W - K + 1) / 2, AHEAD = SHARE > 96 ? 4 : (SHARE + 31) / 32;  // loads in flight
    size_t base = ((size_t)row * BATCH + sample) * (O * POSITIONS) + channel * POSITIONS;
    int lane = threadIdx.x % 32, count = 0, to = min(from + SHARE, POSITIONS);
    for (int begin = from; begin < to; begin += 32 * AHEAD) {
        float g[AHEAD];
        int winner[AHEAD];
        UNROLL for (int n = 0; n < AHEAD; ++n) {
            int at = begin + 32 * n + lane;
            g[n] = at < to ? b.back[LEVEL][base + at] : 0;
            winner[n] = at < to ? b.winner[LEVEL][base + at] : 4;
        }
        UNROLL for (int n = 0; n < AHEAD; ++n) {
            bool counts = winner[n] < 4 && g[n] != 0;
            unsigned who = __ballot_sync(~0u, counts);
            if (counts) {
                int at = begin + 32 * n + lane, py = at / PW, px = at - py * PW;
                int corner = (2 * py + winner[n] / 2) * STRIDE + 2 * px + winner[n] % 2;
                list[count + __popc(who & ((1u << lane) - 1))] = make_int2(__float_as_int(g[n]), 4 * corner);
            }
            count += __popc(who);
        }
    }
    if (lane < list_room(count) - count) list[count + lane] = make_int2(0, 0);
    __syncwarp();
    return count;
}

// Gradient of the weights over a chunk of the batch. A warp holds all taps of one output channel and INPUTS input
// channels in its registers, a tap per lane; SPLIT warps share the positions.
template <int LEVEL, int C, int H, int W, int O, int K, int OP, int AT, int STRIDE, int INPUTS, int SPLIT, int WARPS>
__device__ void convolve_weights(const Buffers& b, const Rule& rule, int step) {
    constexpr int PH = (H - K + 1) / 2, PW = (W - K + 1) / 2, POSITIONS = PH * PW;
    constexpr int TAPS = K * K, PER_LANE = (TAPS + 31) / 32, INPUT_TILES = (C + INPUTS - 1) / INPUTS;
    constexpr int SHARE = (POSITIONS + SPLIT - 1) / SPLIT, FAN = C * TAPS;
    extern __shared__ float4 shared[];
    float* input = (float*)shared;
    int2* lists = (int2*)(input + (C * H * STRIDE + 3) / 4 * 4);
    int row = blockIdx.x, part = row % b.parts, first = blockIdx.y * CHUNK;
    Window win = window(b, row / b.parts, step);
    if (first >= win.count || !rule.moves(part, AT, (FAN + 1) * OP)) return;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int unit = (blockIdx.z * WARPS + warp) / SPLIT, split = warp % SPLIT;
    bool works = unit < O * INPUT_TILES;
    int channel = unit / INPUT_TILES, c0 = unit % INPUT_TILES * INPUTS;
    int2* list = lists + warp * list_room(SHARE);
    float sum[PER_LANE][INPUTS] = {}, bias = 0;
    const float* tap[PER_LANE];  // where it lies for a window at the origin
    UNROLL for (int t = 0; t < PER_LANE; ++t) {
        int k = min(lane + 32 * t, TAPS - 1);
        tap[t] = input + k / K * STRIDE + k % K + c0 * H * STRIDE;
    }
    for (int sample = first; sample < min(first + CHUNK, win.count); ++sample) {
        int count = 0;
        if (works)  // a warp's list is its own: it need not wait for the others
            count = winners<LEVEL, W, O, K, POSITIONS, STRIDE, SHARE>(b, row, sample, channel, split * SHARE, list);
        __syncthreads();
        stage<LEVEL - 1, C, H, W, STRIDE, 3>(b, win, row, sample, 1, input);
        __syncthreads();
        for (int i = lane; i < count; i += 32) bias += __int_as_float(list[i].x);
        #pragma unroll 2
        for (int i = 0; i < count; i += TOGETHER) {
            int4 two[TOGETHER / 2];
            UNROLL for (int n = 0; n < TOGETHER / 2; ++n) two[n] = *(const int4*)(list + i + 2 * n);
            UNROLL for (int n = 0; n < TOGETHER; ++n) {
                float g = __int_as_float(n % 2 ? two[n / 2].z : two[n / 2].x);
                int corner = n % 2 ? two[n / 2].w : two[n / 2].y;
                const float* x[PER_LANE];
                UNROLL for (int t = 0; t < PER_LANE; ++t) x[t] = (const float*)((const char*)tap[t] + corner);
                UNROLL for (int t = 0; t < PER_LANE; ++t)
                    UNROLL for (int c = 0; c < INPUTS; ++c)
                        if (C % INPUTS == 0 || c0 + c < C) sum[t][c] += g * x[t][c * H * STRIDE];
            }
        }
    }
    for (int half = 16; half; half /= 2) bias += __shfl_xor_sync(~0u, bias, half);
    // The warps that shared the positions of a unit add up in order.
    float* totals = input;  // [warp][PER_LANE * INPUTS + 1][32]
    constexpr int NUMBERS = PER_LANE * INPUTS + 1;
    if (SPLIT > 1) {
        __syncthreads();
        if (split > 0) {
            #pragma unroll
            for (int i = 0; i < NUMBERS - 1; ++i) totals[(warp * NUMBERS + i) * 32 + lane] = sum[i / INPUTS][i % INPUTS];
            totals[(warp * NUMBERS + NUMBERS - 1) * 32 + lane] = bias;
        }
        __syncthreads();
        if (split == 0)
            for (int other = 1; other < SPLIT; ++other) {
                UNROLL for (int i = 0; i < NUMBERS - 1; ++i)
                    sum[i / INPUTS][i % INPUTS] += totals[((warp + other) * NUMBERS + i) * 32 + lane];
                bias += totals[((warp + other) * NUMBERS + NUMBERS - 1) * 32 + lane];
            }
    }
    if (!works || split > 0) return;
    float* to = b.partial + ((size_t)row * CHUNKS + blockIdx.y) * CONV_WEIGHTS + AT + channel;
    UNROLL for (int t = 0; t < PER_LANE; ++t)
        UNROLL for (int c = 0; c < INPUTS; ++c)
            if (lane + 32 * t < TAPS && c0 + c < C) to[((c0 + c) * TAPS + lane + 32 * t) * OP] = sum[t][c];
    if (lane == 0 && c0 == 0) to[FAN * OP] = bias;
}

// Gradient of the input: a warp adds up one example's, in shared memory that is its own.
template <int LEVEL, int C, int H, int W, int O, int K, int OP, int AT, int STRIDE, int INPUTS, int WARPS>
__device__ void convolve_back(const Buffers& b, const Rule& rule, int step) {
    constexpr int PH = (H - K + 1) / 2, PW = (W - K + 1) / 2, POSITIONS = PH * PW;
    constexpr int TAPS = K * K, PER_LANE = (TAPS + 31) / 32, PLANE = H * STRIDE;
    extern __shared__ float4 shared[];
    float* weights = (float*)shared;  // [O][C][TAPS]
    int2* lists = (int2*)(weights + even(O * C * TAPS));
    constexpr int ROOM = list_room(POSITIONS);
    int row = blockIdx.x, part = row % b.parts;
    Window win = window(b, row / b.parts, step);
    if (blockIdx.y * WARPS >= win.count || !rule.moves(part, 0, AT)) return;  // nothing below it moves
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, sample = blockIdx.y * WARPS + warp;
    int2* list = lists + warp * ROOM;
    float* sums = (float*)(lists + WARPS * ROOM) + warp * C * PLANE;
    const float* from = b.weights + (size_t)b.slots[row] * WEIGHTS + AT;
    for (int i = threadIdx.x; i < C * TAPS * O; i += blockDim.x) {
        int tap = i / O, channel = i - tap * O;
        weights[channel * (C * TAPS) + tap] = from[tap * OP + channel];
    }
    for (int i = lane; i < C * PLANE; i += 32) sums[i] = 0;
    __syncthreads();
    if (sample >= win.count) return;
    int tap[PER_LANE], at[PER_LANE];
    UNROLL for (int t = 0; t < PER_LANE; ++t) {
        tap[t] = min(lane + 32 * t, TAPS - 1);  // lanes that are left over do the same as the last, without a branch
        at[t] = tap[t] / K * STRIDE + tap[t] % K;
    }
    for (int channel = 0; channel < O; ++channel) {
        int count = winners<LEVEL, W, O, K, POSITIONS, STRIDE, POSITIONS>(b, row, sample, channel, 0, list);
        #pragma unroll 1
        for (int c0 = 0; c0 < C; c0 += INPUTS) {
            float w[PER_LANE][INPUTS];
            UNROLL for (int t = 0; t < PER_LANE; ++t)
                UNROLL for (int c = 0; c < INPUTS; ++c)
                    w[t][c] = c0 + c < C ? weights[(channel * C + c0 + c) * TAPS + tap[t]] : 0;
            int2 next = list[0];
            for (int i = 0; i < count; ++i) {
                int2 one = next;
                next = list[min(i + 1, count - 1)];
                float g = __int_as_float(one.x);
                float* to[PER_LANE];
                float old[PER_LANE][INPUTS];
                UNROLL for (int t = 0; t < PER_LANE; ++t) {
                    to[t] = (float*)((char*)(sums + c0 * PLANE + at[t]) + one.y);
                    UNROLL for (int c = 0; c < INPUTS; ++c)
                        if (C % INPUTS == 0 || c0 + c < C) old[t][c] = to[t][c * PLANE];
                }
                __syncwarp();  // all have read before the first writes
                UNROLL for (int t = 0; t < PER_LANE; ++t)
                    UNROLL for (int c = 0; c < INPUTS; ++c)
                        if (C % INPUTS == 0 || c0 + c < C) to[t][c * PLANE] = old[t][c] + g * w[t][c];
                __syncwarp();
            }
        }
    }
    float* to = b.back[LEVEL - 1] + ((size_t)row * BATCH + sample) * (C * H * W);
    for (int i = lane; i < C * H * W; i += 32) {
        int y = i / W, x = i - y * W;  // y counts on through the channels
        to[i] = sums[y * STRIDE + x];
    }
}

// ------------------------------------------------------------------------------------------------------------- linear

constexpr int GROUP = 16, PITCH = GROUP + 4;  // examples of a block of the head, and their stride in shared memory
constexpr int AHEAD = 4;                      // rows of weights that a thread of the head loads before it needs them

// How many threads share the sum of an output; they add up in order.
constexpr __device__ int shares(int outputs) {
    int most = HEAD_THREADS / (outputs * GROUP / 16);
    return most < 1 ? 1 : most > 8 ? 8 : most;
}

// The output of a layer. A thread sums a share of the inputs for four outputs of four examples: two vector loads serve
// sixteen products. The shares lie in `work`, which may be where the input is.
template <int I, int OP, bool RELU>
__device__ void linear(const float* weights, const float* from, float* to, float4* work) {
    constexpr int QUADS = OP / 4, UNITS = QUADS * (GROUP / 4), SHARES = shares(OP);
    constexpr int STEP = 2 * AHEAD, SHARE = (I + SHARES * STEP - 1) / (SHARES * STEP) * STEP;
    constexpr int ROUNDS = SHARES > 1 ? 1 : (UNITS + HEAD_THREADS - 1) / HEAD_THREADS;  // shared sums need only one
    for (int round = 0; round < ROUNDS; ++round) {
        int unit = threadIdx.x + round * HEAD_THREADS, share = unit / UNITS;
        unit -= share * UNITS;
        int o = unit % QUADS * 4, s = unit / QUADS * 4;
        bool works = share < SHARES;
        float sum[4][4] = {};
        if (works) {
            int end = min(I, (share + 1) * SHARE);
            float4 one[AHEAD], other[AHEAD];
            auto load = [&](float4 (&into)[AHEAD], int i) {
                UNROLL for (int n = 0; n < AHEAD; ++n) {  // never past the row of biases
                    int at = I % STEP ? min(i + n, I) : min(i, I + 1 - AHEAD) + n;
                    into[n] = *(const float4*)(weights + at * OP + o);
                }
            };
            auto add = [&](const float4 (&w)[AHEAD], int i) {
                UNROLL for (int n = 0; n < AHEAD; ++n) {
                    if (I % STEP != 0 && i + n >= I) break;
                    float4 x = *(const float4*)(from + (i + n) * PITCH + s);
                    float a[4] = {w[n].x, w[n].y, w[n].z, w[n].w}, c[4] = {x.x, x.y, x.z, x.w};
                    UNROLL for (int p = 0; p < 4; ++p)
                        UNROLL for (int q = 0; q < 4; ++q) sum[p][q] += a[p] * c[q];
                }
            };
            load(one, share * SHARE);
            #pragma unroll 1
            for (int i = share * SHARE; i < end; i += STEP) {
                load(other, i + AHEAD);
                add(one, i);
                load(one, i + STEP);
                add(other, i + AHEAD);
            }
        }
        auto finish = [&](int output, int example, float4 value) {
            float bias = weights[I * OP + output];
            value.x += bias, value.y += bias, value.z += bias, value.w += bias;
            if (RELU) {
                value.x = value.x <= 0 ? 0 : value.x, value.y = value.y <= 0 ? 0 : value.y;
                value.z = value.z <= 0 ? 0 : value.z, value.w = value.w <= 0 ? 0 : value.w;
            }
            *(float4*)(to + output * PITCH + example) = value;
        };
        if (SHARES == 1) {
            UNROLL for (int p = 0; p < 4; ++p)
                if (works) finish(o + p, s, make_float4(sum[p][0], sum[p][1], sum[p][2], sum[p][3]));
            continue;
        }
        __syncthreads();  // nobody needs the input any more
        UNROLL for (int p = 0; p < 4; ++p)
            if (works) work[(share * 4 + p) * UNITS + unit] = make_float4(sum[p][0], sum[p][1], sum[p][2], sum[p][3]);
        __syncthreads();
        for (int i = threadIdx.x; i < 4 * UNITS; i += HEAD_THREADS) {
            float4 total = work[i];
            UNROLL for (int n = 1; n < SHARES; ++n) {
                float4 more = work[n * 4 * UNITS + i];
                total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
            }
            int mine = i % UNITS;
            finish(mine % QUADS * 4 + i / UNITS, mine / QUADS * 4, total);
        }
    }
    __syncthreads();
}

constexpr __device__ int columns(int inputs) { return inputs < SPAN ? (inputs + 15) / 16 * 16 : SPAN; }

// The gradient of a layer's input from that of its output; where the input was a ReLU's, only what it let through.
// Weights come in strips of SPAN inputs and STRIP outputs, which `strip` holds with the inputs side by side. A thread
// sums for four inputs of eight examples: three vector loads serve 32 products. While a strip is added up, the next one
// is fetched.
template <int I, int IP, int OP, bool RELU>
__device__ void linear_back(
    const float* weights, const float* from, float* to, const float* out, float* back, int count, float* strip) {
    constexpr int COLUMNS = columns(IP), STRIDE = COLUMNS + 4, QUADS = COLUMNS / 4;
    constexpr int FETCHES = (COLUMNS * (STRIP / 4) + BACK_THREADS - 1) / BACK_THREADS;
    int quad = threadIdx.x % QUADS, half = threadIdx.x / QUADS * 8;
    for (int i0 = 0; i0 < IP; i0 += SPAN) {
        int i = i0 + 4 * quad;
        bool works = half < GROUP && i < IP;
        float sum[4][8] = {};
        float4 held[FETCHES];
        auto fetch = [&](int o0) {  // a warp takes 16 outputs of eight inputs
            UNROLL for (int n = 0; n < FETCHES; ++n) {
                int at = threadIdx.x + n * BACK_THREADS, input = i0 + at / 4, o = o0 + at % 4 * 4;
                bool there = at / 4 < COLUMNS && input < I && o < OP;
                held[n] = there ? *(const float4*)(weights + input * OP + o) : make_float4(0, 0, 0, 0);
            }
        };
        fetch(0);
        #pragma unroll 1
        for (int o0 = 0; o0 < OP; o0 += STRIP) {
            __syncthreads();  // nobody needs the previous strip any more
            UNROLL for (int n = 0; n < FETCHES; ++n) {
                int at = threadIdx.x + n * BACK_THREADS, four = at % 4;
                if (at / 4 >= COLUMNS) continue;
                float* put = strip + 4 * four * STRIDE + (at / 4 ^ four / 2 * 8);  // so that 32 lanes meet 32 banks
                put[0] = held[n].x, put[STRIDE] = held[n].y, put[2 * STRIDE] = held[n].z, put[3 * STRIDE] = held[n].w;
            }
            __syncthreads();
            fetch(o0 + STRIP);
            if (!works) continue;
            UNROLL for (int o = 0; o < STRIP; ++o) {
                if (OP % STRIP != 0 && o0 + o >= OP) break;
                const float* g = from + (o0 + o) * PITCH + half;
                float4 w = *(const float4*)(strip + o * STRIDE + 4 * (quad ^ o / 8 * 2));
                float4 x = *(const float4*)g, y = *(const float4*)(g + 4);
                float a[4] = {w.x, w.y, w.z, w.w}, c[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
                UNROLL for (int p = 0; p < 4; ++p)
                    UNROLL for (int q = 0; q < 8; ++q) sum[p][q] += a[p] * c[q];
            }
        }
        if (!works) continue;
        UNROLL for (int q = 0; q < 8; ++q) {
            int sample = half + q;
            UNROLL for (int p = 0; p < 4; ++p) {
                if (IP % 4 != 0 && i + p >= IP) break;
                if (RELU && sample < count && out[sample * IP + i + p] <= 0) sum[p][q] = 0;
                if (to) to[(i + p) * PITCH + sample] = sum[p][q];
            }
            if (sample >= count) continue;
            float* put = back + sample * IP + i;
            if (IP % 4 == 0) *(float4*)put = make_float4(sum[0][q], sum[1][q], sum[2][q], sum[3][q]);
            else
                UNROLL for (int p = 0; p < 4; ++p)
                    if (i + p < IP) put[p] = sum[p][q];
        }
    }
    __syncthreads();
}

__device__ float linear_input(const Buffers& b, Window win, int row, int sample, int i) {
#if CONVOLUTIONS == 0
    int channel = i / (IMAGE_HEIGHT * IMAGE_WIDTH), at = i - channel * (IMAGE_HEIGHT * IMAGE_WIDTH);
    return pixel(b, win.first + sample, channel, at / IMAGE_WIDTH, at % IMAGE_WIDTH);
#else
    return b.out[CONVOLUTIONS - 1][((size_t)row * BATCH + sample) * LINEAR_INPUT + i];
#endif
}

// All linear layers forwards; training keeps what the way back needs.
__device__ void head(const Buffers& b, int step, bool learns) {
    extern __shared__ float4 shared[];
    float* wide = (float*)shared;                  // the first layer's input, and shares of sums
    float* even_ = wide + HEAD_WIDE * PITCH;       // outputs of the layers, in turn
    float* odd_ = even_ + WIDEST * PITCH;
    int row = blockIdx.x, job = row / b.parts, first = blockIdx.y * GROUP;
    Window win = window(b, job, step);
    if (first >= win.count) return;
    int count = min(GROUP, win.count - first);
    size_t example = (size_t)row * BATCH + first;
    const float* weights = b.weights + (size_t)b.slots[row] * WEIGHTS;
    #pragma unroll 2
    for (int i = threadIdx.x; i < GROUP / 4 * LINEAR_INPUT; i += HEAD_THREADS) {
        int s = i / LINEAR_INPUT * 4, at = i - s / 4 * LINEAR_INPUT;
        float x[4];
        UNROLL for (int q = 0; q < 4; ++q) x[q] = s + q < count ? linear_input(b, win, row, first + s + q, at) : 0.0f;
        *(float4*)(wide + at * PITCH + s) = make_float4(x[0], x[1], x[2], x[3]);
    }
    __syncthreads();
    const float* from = wide;
    float* to = even_;
#define FORWARD(NUMBER, LEVEL, I, OP, AT, RELU)                                                        \
    linear<I, OP, RELU>(weights + AT, from, to, shared);                                               \
    if (learns)                                                                                        \
        for (int i = threadIdx.x; i < count * OP; i += blockDim.x)                                     \
            b.out[LEVEL][example * OP + i] = to[i % OP * PITCH + i / OP];                              \
    from = to;                                                                                         \
    to = to == even_ ? odd_ : even_;
    LINEARS(FORWARD)
    if (!learns) {
        size_t at = (size_t)b.jobs[job].y + first;
        for (int i = threadIdx.x; i < count * CLASSES; i += blockDim.x)
            b.logits[at * CLASSES + i] = from[i % CLASSES * PITCH + i / CLASSES];
    }
}

// The loss of the parts' summed logits, and all linear layers backwards.
__device__ void descend(const Buffers& b, const Rule& rule, int step) {
    extern __shared__ float4 shared[];
    float* total = (float*)shared;                 // summed logits, then their gradient
    float* even_ = total + CLASSES_PADDED * PITCH; // gradients of the layers' inputs, in turn
    float* odd_ = even_ + WIDEST * PITCH;
    float* lost = odd_ + WIDEST * PITCH;
    float* strip = lost + GROUP;
    int row = blockIdx.x, job = row / b.parts, part = row - job * b.parts, first = blockIdx.y * GROUP;
    Window win = window(b, job, step);
    if (first >= win.count || (part > 0 && !rule.moves(part))) return;
    int count = min(GROUP, win.count - first);
    size_t example = (size_t)row * BATCH + first;
    for (int i = threadIdx.x; i < GROUP * CLASSES_PADDED; i += blockDim.x) {
        int sample = i / CLASSES_PADDED, c = i - sample * CLASSES_PADDED;
        float sum = 0;
        if (sample < count)
            for (int p = 0; p < b.parts; ++p)
                sum += b.out[LAST_LEVEL][((size_t)(job * b.parts + p) * BATCH + first) * CLASSES_PADDED + i];
        total[c * PITCH + sample] = sum;
    }
    __syncthreads();
    if (threadIdx.x < GROUP) {
        int s = threadIdx.x;
        float loss = 0;
        if (s < count) {
            int label = b.labels[b.visits[win.first + first + s]];
            float top = total[s], sum = 0;
            for (int c = 1; c < CLASSES; ++c) top = fmaxf(top, total[c * PITCH + s]);
            for (int c = 0; c < CLASSES; ++c) sum += expf(total[c * PITCH + s] - top);
            loss = logf(sum) - (total[label * PITCH + s] - top);
            for (int c = 0; c < CLASSES; ++c) {
                float p = expf(total[c * PITCH + s] - top) / sum;
                total[c * PITCH + s] = (p - (c == label)) / win.count;
            }
        }
        for (int c = s < count ? CLASSES : 0; c < CLASSES_PADDED; ++c) total[c * PITCH + s] = 0;
        lost[s] = loss;
    }
    __syncthreads();
    if (part == 0 && threadIdx.x == 0) {
        double sum = 0;
        for (int s = 0; s < count; ++s) sum += lost[s];
        b.loss[job * GROUPS + blockIdx.y] += sum;
        if (b.epoch_loss) {
            int epoch = b.first_epoch + step / b.jobs[job].w;
            b.epoch_loss[((size_t)job * b.num_epochs + epoch) * GROUPS + blockIdx.y] += sum;
        }
        if (b.square) {
            double square = 0;
            for (int s = 0; s < count; ++s) square += (double)lost[s] * lost[s];
            b.square[job * GROUPS + blockIdx.y] += square;
        }
    }
    if (!rule.moves(part)) return;
    const float* weights = b.weights + (size_t)b.slots[row] * WEIGHTS;
    for (int i = threadIdx.x; i < count * CLASSES_PADDED; i += blockDim.x)
        b.back[LAST_LEVEL][example * CLASSES_PADDED + i] = total[i % CLASSES_PADDED * PITCH + i / CLASSES_PADDED];
    const float* from = total;
    float* to = even_;
#define BACKWARD(LEVEL, I, IP, OP, AT, RELU)                                                           \
    linear_back<I, IP, OP, RELU>(weights + AT, from, RELU ? to : nullptr,                              \
        b.out[LEVEL] + example * IP, b.back[LEVEL] + example * IP, count, strip);                      \
    from = to;                                                                                         \
    to = to == even_ ? odd_ : even_;
    LINEARS_BACK(BACKWARD)
}

constexpr int DEPTH = 16, WIDTH = 68;  // examples of a tile, 16 threads each; stride of their 64 inputs or outputs

// Gradient of one linear layer's weights over the batch: tiles of 64 inputs by 64 outputs, 4 x 4 per thread.
template <int NUMBER, int LEVEL, int I, int OP, int AT>
__device__ void linear_weights(const Buffers& b, Window win, int row, int tile, float* x, float* g) {
    constexpr int ACROSS = (OP + 63) / 64;
    int i0 = tile / ACROSS * 64, o0 = tile % ACROSS * 64;
    int ti = threadIdx.x / 16 * 4, to = threadIdx.x % 16 * 4;
    float sum[4][4] = {}, in[4], out[4];
    int mine = threadIdx.x / 16, i = i0 + to, o = o0 + to;  // the example, inputs and outputs that this thread loads
    auto load = [&](int sample) {
        bool there = sample < win.count;
        size_t example = (size_t)row * BATCH + sample;
        auto four = [&](float (&into)[4], bool any, const float* from) {
            float4 value = any ? *(const float4*)from : make_float4(0, 0, 0, 0);
            into[0] = value.x, into[1] = value.y, into[2] = value.z, into[3] = value.w;
        };
        four(out, there && o < OP, b.back[LEVEL] + example * OP + o);
        if (NUMBER > 0 || (CONVOLUTIONS > 0 && I % 4 == 0))
            four(in, there && i < I, b.out[LEVEL > 0 ? LEVEL - 1 : 0] + example * ((I + 3) / 4 * 4) + i);
        else
            UNROLL for (int q = 0; q < 4; ++q) in[q] = there && i + q < I ? linear_input(b, win, row, sample, i + q) : 0;
        UNROLL for (int q = 0; q < 4; ++q)
            if (i + q >= I) in[q] = there && i + q == I;  // the input of the bias
    };
    load(mine);
    for (int first = 0; first < win.count; first += DEPTH) {
        __syncthreads();
        *(float4*)(x + mine * WIDTH + to) = make_float4(in[0], in[1], in[2], in[3]);
        *(float4*)(g + mine * WIDTH + to) = make_float4(out[0], out[1], out[2], out[3]);
        __syncthreads();
        load(first + DEPTH + mine);  // while this tile is added up
        UNROLL for (int s = 0; s < DEPTH; ++s) {
            float4 u = *(const float4*)(x + s * WIDTH + ti), v = *(const float4*)(g + s * WIDTH + to);
            float a[4] = {u.x, u.y, u.z, u.w}, c[4] = {v.x, v.y, v.z, v.w};
            UNROLL for (int p = 0; p < 4; ++p)
                UNROLL for (int q = 0; q < 4; ++q) sum[p][q] += a[p] * c[q];
        }
    }
    if (o0 + to >= OP) return;
    for (int p = 0; p < 4; ++p)
        if (i0 + ti + p <= I) {
            float4 value = make_float4(sum[p][0], sum[p][1], sum[p][2], sum[p][3]);
            *(float4*)(b.gradient + (size_t)row * WEIGHTS + AT + (i0 + ti + p) * OP + o0 + to) = value;
        }
}

// ------------------------------------------------------------------------------------------------------------ kernels

#define CONVOLUTION(LEVEL, C, H, W, O, K, OP, AT, TILE, SAMPLES, THREADS, BLOCKS, STRIDE, INPUTS, SPLIT, WARPS)                      \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) convolve_##LEVEL(Buffers b, Rule rule, int step) {            \
        convolve<LEVEL, C, H, W, O, K, OP, AT, TILE, SAMPLES>(b, step);                                                \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) convolve_weights_##LEVEL(Buffers b, Rule rule, int step) { \
        convolve_weights<LEVEL, C, H, W, O, K, OP, AT, STRIDE, INPUTS, SPLIT, WARPS>(b, rule, step);                            \
    }
CONVOLUTION_LIST(CONVOLUTION)

#define CONVOLUTION_BACK(LEVEL, C, H, W, O, K, OP, AT, STRIDE, INPUTS, WARPS)                                                \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) convolve_back_##LEVEL(Buffers b, Rule rule, int step) {    \
        convolve_back<LEVEL, C, H, W, O, K, OP, AT, STRIDE, INPUTS, WARPS>(b, rule, step);                                      \
    }
CONVOLUTION_BACK_LIST(CONVOLUTION_BACK)

extern "C" __global__ void __launch_bounds__(HEAD_THREADS, 2) head_train(Buffers b, Rule rule, int step) { head(b, step, true); }
extern "C" __global__ void __launch_bounds__(HEAD_THREADS, 2) head_score(Buffers b, Rule rule, int step) { head(b, step, false); }
extern "C" __global__ void __launch_bounds__(BACK_THREADS) head_back(Buffers b, Rule rule, int step) { descend(b, rule, step); }

extern "C" __global__ void __launch_bounds__(256, 4) linear_gradient(Buffers b, Rule rule, int step) {
    int row = blockIdx.x, part = row % b.parts, tile = blockIdx.y;
    if (!rule.moves(part)) return;
    Window win = window(b, row / b.parts, step);
    __shared__ float4 left[DEPTH * WIDTH / 4], right[DEPTH * WIDTH / 4];
#define TILES_OF(NUMBER, LEVEL, I, OP, AT, RELU)                                                                       \
    {                                                                                                                  \
        constexpr int TILES = ((I + 1 + 63) / 64) * ((OP + 63) / 64);                                                  \
        if (tile >= 0 && tile < TILES && rule.moves(part, AT, (I + 1) * OP))                                           \
            linear_weights<NUMBER, LEVEL, I, OP, AT>(b, win, row, tile, (float*)left, (float*)right);                  \
        tile -= TILES;                                                                                                 \
    }
    LINEARS(TILES_OF)
}

__device__ float block_sum(float value) {
    __shared__ float warps[32];
    for (int half = 16; half; half /= 2) value += __shfl_xor_sync(~0u, value, half);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
    for (int w = 0; w < blockDim.x / 32; ++w) sum += warps[w];
    return sum;
}

// Bring the gradient together: chunks of convolutions, and the penalty that counts as part of the loss; its square.
extern "C" __global__ void __launch_bounds__(256) gather(Buffers b, Rule rule, int step) {
    int row = blockIdx.x, part = row % b.parts;
    int from = max((int)blockIdx.y * SLICE, rule.begin[part]), end = min(((int)blockIdx.y + 1) * SLICE, rule.end[part]);
    if (!rule.moves(part)) return;
    Window win = window(b, row / b.parts, step);
    int chunks = (win.count + CHUNK - 1) / CHUNK, anchor = b.anchor ? b.anchor[row] : -1;
    float penalty = rule.penalty[part], sum = 0;
    for (int i = from + 4 * threadIdx.x; i < end; i += 4 * blockDim.x) {  // layers begin at multiples of four
        float4* at = (float4*)(b.gradient + (size_t)row * WEIGHTS + i);
        float4 g = make_float4(0, 0, 0, 0);
        if (i < CONV_WEIGHTS) {
            const float* chunk = b.partial + (size_t)row * CHUNKS * CONV_WEIGHTS + i;
            #pragma unroll 8
            for (int c = 0; c < chunks; ++c) {
                float4 more = *(const float4*)(chunk + c * CONV_WEIGHTS);
                g.x += more.x, g.y += more.y, g.z += more.z, g.w += more.w;
            }
        } else g = *at;
        if (penalty != 0) {
            float4 w = *(const float4*)(b.weights + (size_t)row * WEIGHTS + i), to = make_float4(0, 0, 0, 0);
            if (anchor >= 0) to = *(const float4*)(b.anchors + (size_t)anchor * WEIGHTS + i);
            g.x += penalty * (w.x - to.x), g.y += penalty * (w.y - to.y);
            g.z += penalty * (w.z - to.z), g.w += penalty * (w.w - to.w);
        }
        if (i < CONV_WEIGHTS || penalty != 0) *at = g;
        sum += g.x * g.x + g.y * g.y + g.z * g.z + g.w * g.w;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) b.squares[row * SLICES + blockIdx.y] = sum;
}

// v <- momentum v + clipped gradient + shift + decay w;  w <- w - rate v.
extern "C" __global__ void __launch_bounds__(256) update(Buffers b, Rule rule, int step) {
    int row = blockIdx.x, part = row % b.parts;
    int from = max((int)blockIdx.y * SLICE, rule.begin[part]), end = min(((int)blockIdx.y + 1) * SLICE, rule.end[part]);
    if (from >= end) return;
    float scale = 1, rate = b.rates[row / b.parts], decay = rule.decay[part];
    if (rule.max_norm > 0) {
        float sum = 0;
        for (int p = 0; p < b.parts; ++p)
            if (rule.moves(p) && (rule.joint || p == part))
                for (int s = 0; s < SLICES; ++s) sum += b.squares[(row - part + p) * SLICES + s];
        scale = rule.max_norm / (sqrtf(sum) + 1e-6f);
        if (scale > 1) scale = 1;
    }
    float clip = scale;
    if (b.shift) scale = 1;
    size_t base = (size_t)row * WEIGHTS;
    for (int i = from + 4 * threadIdx.x; i < end; i += 4 * blockDim.x) {
        float4 g = *(float4*)(b.gradient + base + i), v = *(float4*)(b.velocity + base + i), w = *(float4*)(b.weights + base + i);
        if (b.shift) {
            float4 s = *(const float4*)(b.shift + base + i);
            g = {clip * g.x + s.x, clip * g.y + s.y, clip * g.z + s.z, clip * g.w + s.w};
        }
#define MOVE(X) v.X = rule.momentum * v.X + (scale * g.X + decay * w.X), w.X -= rate * v.X;
        MOVE(x) MOVE(y) MOVE(z) MOVE(w)
        *(float4*)(b.velocity + base + i) = v;
        *(float4*)(b.weights + base + i) = w;
    }
}

// Loss and correct answers of one model on one group of examples. pairs: first example in `visits`, how many, and for
// each part where the logits of these examples begin.
extern "C" __global__ void __launch_bounds__(128) judge(
    const float* logits, const int* examples, const int* labels, const long long* pairs, int parts, double* loss, int* correct) {
    __shared__ double lost[128];
    __shared__ int right[128];
    const long long* pair = pairs + (size_t)blockIdx.x * (2 + parts);
    double sum = 0;
    int hits = 0;
    for (long long e = threadIdx.x; e < pair[1]; e += blockDim.x) {
        float score[CLASSES];
        for (int c = 0; c < CLASSES; ++c) {
            score[c] = 0;
            for (int p = 0; p < parts; ++p) score[c] += logits[(pair[2 + p] + e) * CLASSES + c];
        }
        int label = labels[examples[pair[0] + e]], best = 0;
        float total = 0, own = 0;
        for (int c = 1; c < CLASSES; ++c)
            if (score[c] > score[best] || score[c] != score[c]) best = c;
        for (int c = 0; c < CLASSES; ++c) {
            total += expf(score[c] - score[best]);
            if (c == label) own = score[c];
        }
        sum += logf(total) - (own - score[best]);
        hits += best == label;
    }
    lost[threadIdx.x] = sum;
    right[threadIdx.x] = hits;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < blockDim.x; ++i) sum += lost[i], hits += right[i];
        loss[blockIdx.x] = sum;
        correct[blockIdx.x] = hits;
    }
}
