// Batch normalization of many clients, by the examples that count; compiled at run time for one size of images.
//
// A block works for one channel of one client, over all examples of its batch. Sums are taken in a fixed order.
//
// A header made by batch_norm.py comes before this text and that of sums.cu: SIZE of an image, WARPS of a block, and HALF
// (bf16).

// Visit the thread's numbers: `work(example, place)`.
template <class Work>
__device__ void visit(int batch, Work work) {
    for (int at = threadIdx.x; at < batch * (SIZE / N); at += 32 * WARPS) {
        int example = at / (SIZE / N), pixel = at % (SIZE / N) * N;
        work(example, ((size_t)example * gridDim.x + blockIdx.x) * SIZE + pixel);
    }
}

// `share` is what an example counts for in the mean of its client: [batch, clients]. Those that count for nothing are
// normalized as the others are. Differences from a number among them lose no digits to a large mean.
extern "C" __global__ void __launch_bounds__(32 * WARPS) normalize_batch(const number* in, const float* share, const float* scale, const float* shift, number* out, float* moments, float eps, int batch, int clients) {
    __shared__ float room[WARPS];
    int channel = blockIdx.x, channels = gridDim.x, client = channel / (channels / clients);
    float middle = as_float(in[(size_t)channel * SIZE]), sum = 0, squares = 0;
    visit(batch, [&](int example, size_t place) {
        float part = share[example * clients + client];
        if (part == 0) return;
        Numbers read = *(const Numbers*)(in + place);
        UNROLL for (int i = 0; i < N; ++i) {
            float away = as_float(read.at[i]) - middle;
            sum += part * away, squares += part * away * away;
        }
    });
    sum = over_block(sum, room) / SIZE, squares = over_block(squares, room) / SIZE;
    float mean = middle + sum, variance = fmaxf(squares - sum * sum, 0.0f), factor = 1 / sqrtf(variance + eps);
    float slope = factor * (scale ? scale[channel] : 1), base = shift ? shift[channel] : 0;
    visit(batch, [&](int example, size_t place) {
        Numbers read = *(const Numbers*)(in + place), found;
        UNROLL for (int i = 0; i < N; ++i) found.at[i] = as_number((as_float(read.at[i]) - mean) * slope + base);
        *(Numbers*)(out + place) = found;
    });
    if (threadIdx.x == 0) moments[channel] = mean, moments[channels + channel] = variance, moments[2 * channels + channel] = factor;
}

// The gradient of the input, and those of scale and shift.
extern "C" __global__ void __launch_bounds__(32 * WARPS) normalize_batch_back(const number* in, const float* share, const float* scale, const float* moments, const number* back, number* out, float* to_scale, float* to_shift, int batch, int clients) {
    __shared__ float room[WARPS];
    int channel = blockIdx.x, channels = gridDim.x, client = channel / (channels / clients);
    float mean = moments[channel], factor = moments[2 * channels + channel], slope = factor * (scale ? scale[channel] : 1);
    float along = 0, level = 0;
    visit(batch, [&](int example, size_t place) {
        Numbers seen = *(const Numbers*)(in + place), pulled = *(const Numbers*)(back + place);
        UNROLL for (int i = 0; i < N; ++i) {
            float pull = as_float(pulled.at[i]);
            along += pull * (as_float(seen.at[i]) - mean), level += pull;
        }
    });
    along = over_block(along, room) * factor, level = over_block(level, room);
    visit(batch, [&](int example, size_t place) {
        float part = share[example * clients + client] / SIZE;
        Numbers seen = *(const Numbers*)(in + place), pulled = *(const Numbers*)(back + place), found;
        UNROLL for (int i = 0; i < N; ++i) {
            float normal = (as_float(seen.at[i]) - mean) * factor;
            found.at[i] = as_number(slope * (as_float(pulled.at[i]) - part * (level + normal * along)));
        }
        *(Numbers*)(out + place) = found;
    });
    if (threadIdx.x == 0) to_scale[channel] = along, to_shift[channel] = level;
}
