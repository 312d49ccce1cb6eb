// Convolutions of many clients, each with filters of its own; compiled at run time for one layer.
//
// Images lie as [example][client][channel][row][column]. A block works for one client. It keeps a tile of the input in
// shared memory, one plane per channel, and visits it once per tap of the filter. Sums are taken in a fixed order.
//
// A header made by convolution.py comes before this text: MODE, and a struct of sizes per kernel ("G", "F"). A word of a
// tile is one number; with bf16 it is two, of channels side by side (of examples side by side in `filters`), as the
// tensor cores take them.

#define FLOAT32 0
#define TF32 1
#define BF16 2

// How images lie in memory, how filters do, and a word of a tile.
#if MODE == FLOAT32
typedef float number, stored, word;
__device__ word as_word(stored value) { return value; }
#elif MODE == TF32
typedef float number, stored;
typedef unsigned word;
__device__ word as_word(stored value) { return round_tf32(value); }
#else
typedef unsigned short number;
typedef unsigned stored, word;
__device__ word as_word(stored value) { return value; }
#endif

template <int N> struct alignas(N * sizeof(number)) Numbers { number at[N]; };
template <int N> struct alignas(N * sizeof(word)) Words { word at[N]; };

// Read N words: of `first`, and with bf16 of `second` too, which may be null.
template <int N>
__device__ void read(const number* first, const number* second, Words<N>& out) {
    Numbers<N> low = *(const Numbers<N>*)first;
#if MODE == BF16
    Numbers<N> high = {};
    if (second) high = *(const Numbers<N>*)second;
    UNROLL for (int i = 0; i < N; ++i) out.at[i] = low.at[i] | (unsigned)high.at[i] << 16;
#else
    UNROLL for (int i = 0; i < N; ++i) out.at[i] = as_word(low.at[i]);
#endif
}

// Fill a tile of planes [PLANES][ROWS][STRIDE], PLANE words apart, from images whose row y0 is the first; what lies
// outside is zero. `source(plane, first, second)` says where a plane comes from, if from anywhere.
template <int THREADS, int PLANES, int ROWS, int HEIGHT, int WIDTH, int STRIDE, int PLANE, int LEFT, class Source>
__device__ void stage(word* tile, int y0, Source source) {
    constexpr int N = WIDTH % 4 == 0 ? 4 : WIDTH % 2 == 0 ? 2 : 1, PER_ROW = WIDTH / N;
    #pragma unroll 4
    for (int i = threadIdx.x; i < PLANES * ROWS * PER_ROW; i += THREADS) {
        int line = i / PER_ROW, x = (i - line * PER_ROW) * N, plane = line / ROWS, row = line - plane * ROWS, y = y0 + row;
        const number *first = nullptr, *second = nullptr;
        Words<N> values = {};
        if (y >= 0 && y < HEIGHT) source(plane, first, second);
        if (first) read(first + y * WIDTH + x, second ? second + y * WIDTH + x : nullptr, values);
        *(Words<N>*)(tile + plane * PLANE + row * STRIDE + LEFT + x) = values;
    }
}

template <int THREADS>
__device__ void clear(word* tile, int size) {
    for (int i = threadIdx.x; i < size / 4; i += THREADS) ((float4*)tile)[i] = {0, 0, 0, 0};
}

__device__ void store(number* to, float value) {
#if MODE == BF16
    *to = (number)pack_bf16(value, 0);
#else
    *to = value;
#endif
}

__device__ void store_two(number* to, float first, float second) {
#if MODE == BF16
    *(unsigned*)to = pack_bf16(first, second);
#else
    *(float2*)to = {first, second};
#endif
}

// ------------------------------------------------------------------------------------------- forwards, and to the input
//
// Output pixels are those of a grid q: row OUT_STEP · q + OUT_Y sees TAPS_Y rows of the input from IN_STEP · q + DY on.
// Forwards OUT_STEP is 1. The gradient of the input of a convolution that strides has another grid for every remainder
// of a pixel, with the taps that meet there: a block works on those of one row, for all remainders x of a column. They
// see the input from DX on, and have taps from begin(x) to end(x) of REACH.

template <class G>
__device__ int tap(int ty, int x, int d) {
    return (G::TAP_Y + G::TAP_STEP * ty) * G::KERNEL_X + G::tap_x(x) + G::TAP_STEP * (d - G::begin(x));
}

template <class G>
__device__ void stage_inputs(word* tile, word* filters, const number* in, const stored* weights, int client, int clients,
                             int first, int batch, int q0, int o0, int c0) {
    constexpr int PER_WORD = MODE == BF16 ? 2 : 1, SIZE = G::IN_Y * G::IN_X;
    stage<G::THREADS, G::SAMPLES * G::CHUNK, G::ROWS, G::IN_Y, G::IN_X, G::STRIDE, G::PLANE, G::LEFT>(
        tile, G::IN_STEP * q0 + G::DY, [&](int plane, const number*& one, const number*& two) {
            int sample = first + plane / G::CHUNK, channel = (c0 + plane % G::CHUNK) * PER_WORD;
            if (sample >= batch || channel >= G::IN) return;
            one = in + ((size_t)sample * clients + client) * G::IN * SIZE + channel * SIZE;
            two = channel + 1 < G::IN ? one + SIZE : nullptr;
        });
    constexpr int LINES = G::CHUNK * G::KERNEL_Y * G::KERNEL_X;
    const stored* from = weights + ((size_t)client * G::IN_WORDS + c0) * G::KERNEL_Y * G::KERNEL_X * G::OUT;
    int known = (G::IN_WORDS - c0) * G::KERNEL_Y * G::KERNEL_X;
    #pragma unroll 4
    for (int i = threadIdx.x; i < LINES * G::OUT_BLOCK; i += G::THREADS) {
        int line = i / G::OUT_BLOCK, o = i - line * G::OUT_BLOCK;
        filters[line * G::OUT_STRIDE + o] = line < known && o0 + o < G::OUT ? as_word(from[line * G::OUT + o0 + o]) : 0;
    }
}

#if MODE == FLOAT32

// Read N numbers from a row, whose place is OFFSET more than a multiple of four; four at a time where they lie so.
template <int OFFSET, int N>
__device__ void read_row(const float* from, float (&out)[N]) {
    UNROLL for (int j = 0; j < N; ++j) {
        int quad = j - (OFFSET + j) % 4;
        if (quad >= 0 && quad + 3 < N) {
            if (quad == j) {
                float4 four = *(const float4*)(from + j);
                out[j] = four.x, out[j + 1] = four.y, out[j + 2] = four.z, out[j + 3] = four.w;
            }
        } else {
            out[j] = from[j];
        }
    }
}

// A thread has OUT_TILE channels of PIXELS pixels side by side.
template <class G>
__device__ void convolve(const float* in, const float* weights, float* out, int batch, int clients) {
    constexpr int TAPS = G::KERNEL_Y * G::KERNEL_X, PLACES = G::SAMPLES * G::Q_ROWS * G::Q_GROUPS;
    constexpr int SPAN = G::IN_STEP * (G::PIXELS - 1) + G::REACH, BEGIN = G::LEFT + G::DX;
    extern __shared__ float4 shared[];
    float *tile = (float*)shared, *filters = tile + G::TILE;
    int blocks = (batch + G::SAMPLES - 1) / G::SAMPLES, client = blockIdx.x / blocks;
    int first = (blockIdx.x - client * blocks) * G::SAMPLES, q0 = blockIdx.y * G::Q_ROWS;
    int o0 = blockIdx.z / G::GRIDS * G::OUT_BLOCK;
    int og = threadIdx.x / PLACES, place = threadIdx.x - og * PLACES, sample = place / (G::Q_ROWS * G::Q_GROUPS);
    int rest = place - sample * (G::Q_ROWS * G::Q_GROUPS), row = rest / G::Q_GROUPS, group = rest - row * G::Q_GROUPS;
    bool working = og * G::OUT_TILE < G::OUT_BLOCK;
    float sum[G::OUT_STEP][G::OUT_TILE][G::PIXELS] = {};
    if (G::TAPS_Y * G::REACH > 0) {
        clear<G::THREADS>(tile, G::TILE);
        for (int c0 = 0; c0 < G::IN; c0 += G::CHUNK) {
            __syncthreads();
            stage_inputs<G>(tile, filters, in, weights, client, clients, first, batch, q0, o0, c0);
            __syncthreads();
            if (!working) continue;
            int from = sample * G::CHUNK * G::PLANE + G::IN_STEP * (row * G::STRIDE + group * G::PIXELS) + BEGIN;
            #pragma unroll 1
            for (int c = 0; c < G::CHUNK; ++c, from += G::PLANE) {
                const float* own = filters + c * TAPS * G::OUT_STRIDE + og * G::OUT_TILE;
                UNROLL for (int ty = 0; ty < G::TAPS_Y; ++ty) {
                    float seen[SPAN > 0 ? SPAN : 1];
                    read_row<BEGIN % 4>(tile + from + ty * G::STRIDE, seen);
                    UNROLL for (int d = 0; d < G::REACH; ++d)
                        UNROLL for (int rest = 0; rest < G::OUT_STEP; ++rest) {
                            if (d < G::begin(rest) || d >= G::end(rest)) continue;
                            float filter[G::OUT_TILE];
                            read_row<0>(own + tap<G>(ty, rest, d) * G::OUT_STRIDE, filter);
                            UNROLL for (int o = 0; o < G::OUT_TILE; ++o)
                                UNROLL for (int p = 0; p < G::PIXELS; ++p)
                                    sum[rest][o][p] += filter[o] * seen[G::IN_STEP * p + d];
                        }
                }
            }
        }
    }
    int y = G::OUT_STEP * (q0 + row) + G::OUT_Y, x = G::OUT_STEP * group * G::PIXELS;
    if (!working || first + sample >= batch || y >= G::OUT_HEIGHT) return;
    UNROLL for (int o = 0; o < G::OUT_TILE; ++o) {
        int channel = o0 + og * G::OUT_TILE + o;
        if (channel >= G::OUT) return;
        size_t image = ((size_t)(first + sample) * clients + client) * G::OUT + channel;
        float* to = out + (image * G::OUT_HEIGHT + y) * G::OUT_WIDTH + x;
        constexpr int ALL = G::OUT_STEP * G::PIXELS;
        float found[ALL];
        UNROLL for (int p = 0; p < ALL; ++p) found[p] = sum[p % G::OUT_STEP][o][p / G::OUT_STEP];
        if (ALL % 4 == 0 && G::OUT_WIDTH % 4 == 0) {
            UNROLL for (int p = 0; p + 3 < ALL; p += 4)
                if (x + p < G::OUT_WIDTH) *(float4*)(to + p) = {found[p], found[p + 1], found[p + 2], found[p + 3]};
        } else {
            UNROLL for (int p = 0; p < ALL; ++p)
                if (x + p < G::OUT_WIDTH) to[p] = found[p];
        }
    }
}

#else

// A warp has OUT_TILE · 16 channels of PIXELS groups, each of 8 pixels side by side.
template <class G>
__device__ void convolve(const number* in, const stored* weights, number* out, int batch, int clients) {
    constexpr int TAPS = G::KERNEL_Y * G::KERNEL_X, PER_SAMPLE = G::Q_ROWS * G::Q_GROUPS;
    extern __shared__ float4 shared[];
    word *tile = (word*)shared, *filters = tile + G::TILE;
    int blocks = (batch + G::SAMPLES - 1) / G::SAMPLES, client = blockIdx.x / blocks;
    int first = (blockIdx.x - client * blocks) * G::SAMPLES, q0 = blockIdx.y * G::Q_ROWS;
    int o0 = blockIdx.z / G::GRIDS * G::OUT_BLOCK;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, high = lane / 4, low = lane % 4;
    float sum[G::OUT_STEP][G::OUT_TILE][G::PIXELS][4] = {};
    if (G::TAPS_Y * G::REACH > 0) {
        int from[G::PIXELS];
        UNROLL for (int p = 0; p < G::PIXELS; ++p) {
            int place = min(warp * G::PIXELS + p, G::SAMPLES * PER_SAMPLE - 1), sample = place / PER_SAMPLE;
            int rest = place - sample * PER_SAMPLE, row = rest / G::Q_GROUPS, group = rest - row * G::Q_GROUPS;
            from[p] = (sample * G::CHUNK + low) * G::PLANE + G::IN_STEP * (row * G::STRIDE + 8 * group + high) + G::LEFT + G::DX;
        }
        clear<G::THREADS>(tile, G::TILE);
        for (int c0 = 0; c0 < G::IN_WORDS; c0 += G::CHUNK) {
            __syncthreads();
            stage_inputs<G>(tile, filters, in, weights, client, clients, first, batch, q0, o0, c0);
            __syncthreads();
            #pragma unroll 1
            for (int c = 0; c < G::CHUNK; c += 8) {
                const word* own = filters + (c + low) * TAPS * G::OUT_STRIDE + high;
                const word* seen = tile + c * G::PLANE;
                UNROLL for (int ty = 0; ty < G::TAPS_Y; ++ty)
                    UNROLL for (int d = 0; d < G::REACH; ++d) {
                        unsigned b[G::PIXELS][2];
                        UNROLL for (int p = 0; p < G::PIXELS; ++p) {
                            const word* at = seen + from[p] + ty * G::STRIDE + d;
                            b[p][0] = at[0], b[p][1] = at[4 * G::PLANE];
                        }
                        UNROLL for (int rest = 0; rest < G::OUT_STEP; ++rest) {
                            if (d < G::begin(rest) || d >= G::end(rest)) continue;
                            UNROLL for (int o = 0; o < G::OUT_TILE; ++o) {
                                unsigned a[4];
                                UNROLL for (int i = 0; i < 4; ++i)
                                    a[i] = own[(i / 2 * 4 * TAPS + tap<G>(ty, rest, d)) * G::OUT_STRIDE + 16 * o + i % 2 * 8];
                                #pragma unroll
                                for (int p = 0; p < G::PIXELS; ++p) multiply<MODE == BF16>(sum[rest][o][p], a, b[p]);
                            }
                        }
                    }
            }
        }
    }
    UNROLL for (int p = 0; p < G::PIXELS; ++p) {
        int place = warp * G::PIXELS + p, sample = place / PER_SAMPLE, rest = place - sample * PER_SAMPLE;
        int row = rest / G::Q_GROUPS, group = rest - row * G::Q_GROUPS;
        int y = G::OUT_STEP * (q0 + row) + G::OUT_Y, x = G::OUT_STEP * (8 * group + 2 * low);
        if (sample >= G::SAMPLES || first + sample >= batch || y >= G::OUT_HEIGHT) continue;
        UNROLL for (int i = 0; i < 2 * G::OUT_TILE; ++i) {
            int channel = o0 + 8 * i + high;
            if (channel >= G::OUT) continue;
            size_t image = ((size_t)(first + sample) * clients + client) * G::OUT + channel;
            number* to = out + (image * G::OUT_HEIGHT + y) * G::OUT_WIDTH + x;
            float found[2 * G::OUT_STEP];
            UNROLL for (int j = 0; j < 2 * G::OUT_STEP; ++j)
                found[j] = sum[j % G::OUT_STEP][i / 2][p][i % 2 * 2 + j / G::OUT_STEP];
            UNROLL for (int j = 0; j < 2 * G::OUT_STEP; j += 2) {
                if (G::OUT_WIDTH % 2 == 0) {
                    if (x + j < G::OUT_WIDTH) store_two(to + j, found[j], found[j + 1]);
                } else {
                    if (x + j < G::OUT_WIDTH) store(to + j, found[j]);
                    if (x + j + 1 < G::OUT_WIDTH) store(to + j + 1, found[j + 1]);
                }
            }
        }
    }
}

#endif

// ---------------------------------------------------------------------------------------------------- to the filters
//
// A block sums over CHUNK words of examples, some rows of pixels at a time, for OUT_BLOCK × IN_BLOCK of the filters. Its
// threads (warps, with tensor cores) hold tiles of them, all taps; several share a tile and divide the pixels.

template <class F>
__device__ void stage_pixels(word* inputs, word* gradients, const number* in, const number* back, int client, int clients,
                             int sample, int batch, int row0, int o0, int c0) {
    constexpr int SIZE = F::HEIGHT * F::WIDTH, OUT_SIZE = F::OUT_HEIGHT * F::OUT_WIDTH;
    stage<F::THREADS, F::IN_BLOCK, F::ROWS, F::HEIGHT, F::WIDTH, F::STRIDE, F::PLANE, F::LEFT>(
        inputs, F::STEP * row0 - F::PAD_Y, [&](int plane, const number*& one, const number*& two) {
            if (c0 + plane >= F::IN) return;
            one = in + (((size_t)sample * clients + client) * F::IN + c0 + plane) * SIZE;
            two = sample + 1 < batch ? one + (size_t)clients * F::IN * SIZE : nullptr;
        });
    stage<F::THREADS, F::OUT_BLOCK, F::OUT_ROWS, F::OUT_HEIGHT, F::OUT_WIDTH, F::OUT_STRIDE, F::OUT_PLANE, 0>(
        gradients, row0, [&](int plane, const number*& one, const number*& two) {
            if (o0 + plane >= F::OUT) return;
            one = back + (((size_t)sample * clients + client) * F::OUT + o0 + plane) * OUT_SIZE;
            two = sample + 1 < batch ? one + (size_t)clients * F::OUT * OUT_SIZE : nullptr;
        });
}

// Add up what the SLICES found, one after another, in memory that tiles no longer need.
template <class F, int N>
__device__ void add_up(float (&sum)[N], float* total, int unit, int slice) {
    constexpr int THREADS = F::THREADS / F::SLICES;
    if (F::SLICES == 1) return;
    for (int turn = 0; turn < F::SLICES; ++turn) {
        __syncthreads();
        if (slice == turn) {
            #pragma unroll
            for (int i = 0; i < N; ++i) total[i * THREADS + unit] = turn ? total[i * THREADS + unit] + sum[i] : sum[i];
        }
    }
    __syncthreads();
    UNROLL for (int i = 0; i < N; ++i) sum[i] = total[i * THREADS + unit];
}

// Where the block's piece of the filters' gradient goes, of channel o and channel c.
template <class F>
__device__ float* piece(float* partial, int client, int clients, int chunk, int o, int c) {
    return partial + ((((size_t)chunk * clients + client) * F::OUT + o) * F::IN + c) * (F::KERNEL_Y * F::KERNEL_X);
}

template <class F>
__device__ void filters(const number* in, const number* back, float* partial, int batch, int clients) {
    constexpr int TAPS = F::KERNEL_Y * F::KERNEL_X, PER_WORD = MODE == BF16 ? 2 : 1, BEGIN = F::LEFT - F::PAD_X;
    extern __shared__ float4 shared[];
    word *inputs = (word*)shared, *gradients = inputs + F::TILE;
    int client = blockIdx.x % clients, chunk = blockIdx.x / clients, first = chunk * F::CHUNK * PER_WORD;
    int last = min(batch, first + F::CHUNK * PER_WORD), c0 = blockIdx.y * F::IN_BLOCK, o0 = blockIdx.z * F::OUT_BLOCK;
    constexpr int UNITS = F::THREADS / F::SLICES;  // threads, of which each (a warp, with tensor cores) has its tile
    int slice = threadIdx.x / UNITS, unit = threadIdx.x - slice * UNITS;
    float sum[F::OUT_TILE * F::IN_TILE * TAPS * F::HELD] = {};
    clear<F::THREADS>(inputs, F::TILE + F::OUT_TILE_WORDS);
    for (int sample = first; sample < last; sample += PER_WORD)
        for (int row0 = 0; row0 < F::OUT_HEIGHT; row0 += F::OUT_ROWS) {
            __syncthreads();
            stage_pixels<F>(inputs, gradients, in, back, client, clients, sample, batch, row0, o0, c0);
            __syncthreads();
#if MODE == FLOAT32
            constexpr int SPAN = F::STEP * 3 + F::KERNEL_X, OS = F::OUT_BLOCK / F::OUT_TILE, CS = F::IN_BLOCK / F::IN_TILE;
            int o = unit / CS, c = unit - o * CS;
            #pragma unroll 1
            for (int step = slice; step < F::OUT_ROWS * F::GROUPS; step += F::SLICES) {
                int row = step / F::GROUPS, x = (step - row * F::GROUPS) * 4;
                float pulls[F::OUT_TILE][4];
                UNROLL for (int i = 0; i < F::OUT_TILE; ++i)
                    read_row<0>(gradients + (o + i * OS) * F::OUT_PLANE + row * F::OUT_STRIDE + x, pulls[i]);
                UNROLL for (int ty = 0; ty < F::KERNEL_Y; ++ty)
                    UNROLL for (int j = 0; j < F::IN_TILE; ++j) {
                        float seen[SPAN];
                        int line = (c + j * CS) * F::PLANE + (F::STEP * row + ty) * F::STRIDE;
                        read_row<BEGIN % 4>(inputs + line + F::STEP * x + BEGIN, seen);
                        UNROLL for (int tx = 0; tx < F::KERNEL_X; ++tx)
                            UNROLL for (int i = 0; i < F::OUT_TILE; ++i)
                                UNROLL for (int p = 0; p < 4; ++p)
                                    sum[(i * F::IN_TILE + j) * TAPS + ty * F::KERNEL_X + tx] +=
                                        pulls[i][p] * seen[F::STEP * p + tx];
                    }
            }
#else
            constexpr int CS = F::IN_BLOCK / (8 * F::IN_TILE);
            int lane = unit % 32, high = lane / 4, low = lane % 4, o = unit / 32 / CS, c = unit / 32 - o * CS;
            #pragma unroll 1
            for (int step = slice; step < F::OUT_ROWS * F::GROUPS; step += F::SLICES) {
                int row = step / F::GROUPS, x = (step - row * F::GROUPS) * 8 + low;
                unsigned a[F::OUT_TILE][4];
                UNROLL for (int i = 0; i < F::OUT_TILE; ++i)
                    UNROLL for (int k = 0; k < 4; ++k)
                        a[i][k] = gradients[((o * F::OUT_TILE + i) * 16 + k % 2 * 8 + high) * F::OUT_PLANE +
                                            row * F::OUT_STRIDE + x + k / 2 * 4];
                const word* seen = inputs + (c * F::IN_TILE * 8 + high) * F::PLANE + F::STEP * (row * F::STRIDE + x) + BEGIN;
                UNROLL for (int j = 0; j < F::IN_TILE; ++j)
                    UNROLL for (int t = 0; t < TAPS; ++t) {
                        const word* at = seen + j * 8 * F::PLANE + t / F::KERNEL_X * F::STRIDE + t % F::KERNEL_X;
                        unsigned b[2] = {at[0], at[4 * F::STEP]};
                        UNROLL for (int i = 0; i < F::OUT_TILE; ++i)
                            multiply<MODE == BF16>(*(float(*)[4])(sum + ((i * F::IN_TILE + j) * TAPS + t) * 4), a[i], b);
                    }
            }
#endif
        }
    add_up<F>(sum, (float*)shared, unit, slice);
    if (slice) return;
#if MODE == FLOAT32
    constexpr int OS = F::OUT_BLOCK / F::OUT_TILE, CS = F::IN_BLOCK / F::IN_TILE;
    UNROLL for (int i = 0; i < F::OUT_TILE * F::IN_TILE; ++i) {
        int own = unit / CS, o = o0 + own + i / F::IN_TILE * OS, c = c0 + unit - own * CS + i % F::IN_TILE * CS;
        if (o >= F::OUT || c >= F::IN) continue;
        float* to = piece<F>(partial, client, clients, chunk, o, c);
        UNROLL for (int t = 0; t < TAPS; ++t) to[t] = sum[i * TAPS + t];
    }
#else
    constexpr int CS = F::IN_BLOCK / (8 * F::IN_TILE);
    int lane = unit % 32, own = unit / 32 / CS;
    UNROLL for (int i = 0; i < F::OUT_TILE * F::IN_TILE * 4; ++i) {
        int o = o0 + (own * F::OUT_TILE + i / (4 * F::IN_TILE)) * 16 + i % 4 / 2 * 8 + lane / 4;
        int c = c0 + ((unit / 32 - own * CS) * F::IN_TILE + i / 4 % F::IN_TILE) * 8 + lane % 4 * 2 + i % 2;
        if (o >= F::OUT || c >= F::IN) continue;
        float* to = piece<F>(partial, client, clients, chunk, o, c);
        UNROLL for (int t = 0; t < TAPS; ++t) to[t] = sum[(i / 4 * TAPS + t) * 4 + i % 4];
    }
#endif
}
