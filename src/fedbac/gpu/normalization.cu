// Group normalization of many clients; compiled at run time for one layer.
//
// A block works for one group of channels of one image, whose numbers lie side by side, and reads them once: its threads
// hold them. A warp has channels of its own, or several share one. Sums are taken in a fixed order.
//
// A header made by normalization.py comes before this text and that of sums.cu: CHANNELS of a group, their SIZE, WARPS
// of a block, SHARING (warps for a channel), and HALF (bf16).

enum {
    LANES = 32 * SHARING,
    TEAMS = WARPS / SHARING,
    OWN = (CHANNELS + TEAMS - 1) / TEAMS,  // channels of a warp
    TURNS = (SIZE + LANES * N - 1) / (LANES * N)
};

// Visit the thread's numbers: `work(channel, turn, place among the group's numbers)`, for channels j of its own.
template <class Work>
__device__ void visit(Work work) {
    int team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    UNROLL for (int j = 0; j < OWN; ++j)
        UNROLL for (int turn = 0; turn < TURNS; ++turn) {
            int channel = team + j * TEAMS, at = (turn * LANES + lane) * N;
            if (channel < CHANNELS && at < SIZE) work(j, channel, turn, channel * SIZE + at);
        }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) normalize(const number* in, const float* scale, const float* shift, number* out, float* moments, float eps) {
    __shared__ float room[WARPS];
    int group = blockIdx.x, groups = gridDim.x;
    size_t begin = ((size_t)blockIdx.y * groups + group) * (CHANNELS * SIZE);
    float held[OWN][TURNS][N] = {}, sum = 0, squares = 0;
    visit([&](int j, int channel, int turn, int at) {
        Numbers read = *(const Numbers*)(in + begin + at);
        UNROLL for (int i = 0; i < N; ++i) sum += held[j][turn][i] = as_float(read.at[i]);
    });
    float mean = over_block(sum, room) / (CHANNELS * SIZE);
    visit([&](int j, int channel, int turn, int at) {
        UNROLL for (int i = 0; i < N; ++i) {
            float away = held[j][turn][i] - mean;
            squares += away * away;
        }
    });
    float factor = 1 / sqrtf(over_block(squares, room) / (CHANNELS * SIZE) + eps);
    visit([&](int j, int channel, int turn, int at) {
        float slope = factor * (scale ? scale[group * CHANNELS + channel] : 1), base = shift ? shift[group * CHANNELS + channel] : 0;
        Numbers found;
        UNROLL for (int i = 0; i < N; ++i) found.at[i] = as_number((held[j][turn][i] - mean) * slope + base);
        *(Numbers*)(out + begin + at) = found;
    });
    if (threadIdx.x == 0) {
        float* to = moments + 2 * ((size_t)blockIdx.y * groups + group);
        to[0] = mean, to[1] = factor;
    }
}

// The gradient of the input, and for every image and channel those of scale and shift.
extern "C" __global__ void __launch_bounds__(32 * WARPS) normalize_back(const number* in, const float* scale, const float* moments, const number* back, number* out, float* to_scale, float* to_shift) {
    __shared__ float sums[2][CHANNELS][SHARING];
    int group = blockIdx.x, groups = gridDim.x, lane = threadIdx.x % 32, team = threadIdx.x / LANES;
    size_t place = (size_t)blockIdx.y * groups + group, begin = place * (CHANNELS * SIZE);
    float mean = moments[2 * place], factor = moments[2 * place + 1];
    float normal[OWN][TURNS][N] = {}, pull[OWN][TURNS][N] = {};
    visit([&](int j, int channel, int turn, int at) {
        Numbers seen = *(const Numbers*)(in + begin + at), pulled = *(const Numbers*)(back + begin + at);
        UNROLL for (int i = 0; i < N; ++i) {
            normal[j][turn][i] = (as_float(seen.at[i]) - mean) * factor;
            pull[j][turn][i] = as_float(pulled.at[i]);
        }
    });
    UNROLL for (int j = 0; j < OWN; ++j) {
        float product = 0, sum = 0;
        UNROLL for (int turn = 0; turn < TURNS; ++turn)
            UNROLL for (int i = 0; i < N; ++i) product += normal[j][turn][i] * pull[j][turn][i], sum += pull[j][turn][i];
        product = over_warp(product), sum = over_warp(sum);
        int channel = team + j * TEAMS;
        if (lane == 0 && channel < CHANNELS) {
            sums[0][channel][threadIdx.x / 32 % SHARING] = product;
            sums[1][channel][threadIdx.x / 32 % SHARING] = sum;
        }
    }
    __syncthreads();
    float along = 0, level = 0;
    for (int channel = lane; channel < CHANNELS; channel += 32) {
        float product = 0, sum = 0;
        for (int warp = 0; warp < SHARING; ++warp) product += sums[0][channel][warp], sum += sums[1][channel][warp];
        if (threadIdx.x < 32) to_scale[place * CHANNELS + channel] = product, to_shift[place * CHANNELS + channel] = sum;
        float slope = scale ? scale[group * CHANNELS + channel] : 1;
        along += slope * product, level += slope * sum;
    }
    along = over_warp(along) / (CHANNELS * SIZE), level = over_warp(level) / (CHANNELS * SIZE);
    visit([&](int j, int channel, int turn, int at) {
        float slope = scale ? scale[group * CHANNELS + channel] : 1;
        Numbers found;
        UNROLL for (int i = 0; i < N; ++i)
            found.at[i] = as_number(factor * (slope * pull[j][turn][i] - level - normal[j][turn][i] * along));
        *(Numbers*)(out + begin + at) = found;
    });
}
