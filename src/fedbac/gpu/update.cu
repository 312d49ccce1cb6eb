// A step of SGD of many clients, over all their weights at once: clipping, momentum, decay, and what pulls them.
//
// A block works on a CHUNK of one kind of weights of one client. Sums are taken in a fixed order.
// A header made by update.py comes before this text: CHUNK, THREADS, MOST (kinds of weights in a launch).

struct Kind {
    float *weight, *velocity;  // [client][size]
    const float *gradient;
    const float *anchor;       // what pulls, or null for zero
    const float *shift;        // what is added to the clipped gradient, or null for nothing
    int size, chunk;           // numbers of a client; its first chunk among those of all kinds
    int begin, end;            // the chunks over which the norm is taken that clips it
    float decay, penalty;
};

struct Kinds { Kind at[MOST]; };

// Visit the block's numbers four at a time, as far as they go: `work(kind, place, how many)`.
template <class Work>
__device__ void visit(const Kinds& kinds, int count, int client, int chunk, Work work) {
    int number = 0;
    while (number + 1 < count && kinds.at[number + 1].chunk <= chunk) ++number;
    const Kind& kind = kinds.at[number];
    int first = (chunk - kind.chunk) * CHUNK, last = min(first + CHUNK, kind.size);
    size_t row = (size_t)client * kind.size;
    for (int at = first + 4 * threadIdx.x; at < last; at += 4 * THREADS) work(kind, row + at, min(4, last - at));
}

__device__ void read(const float* from, int many, bool whole, float (&to)[4]) {
    if (whole) {
        float4 four = *(const float4*)from;
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
        return;
    }
    for (int i = 0; i < many; ++i) to[i] = from[i];
}

__device__ void write(float* to, int many, bool whole, const float (&from)[4]) {
    if (whole) {
        *(float4*)to = {from[0], from[1], from[2], from[3]};
        return;
    }
    for (int i = 0; i < many; ++i) to[i] = from[i];
}

// What the loss and the penalty pull by.
__device__ void pull(const Kind& kind, size_t at, int many, bool whole, const float (&weight)[4], float (&out)[4]) {
    read(kind.gradient + at, many, whole, out);
    if (!kind.penalty) return;
    float anchor[4] = {};
    if (kind.anchor) read(kind.anchor + at, many, whole, anchor);
    for (int i = 0; i < many; ++i) out[i] += kind.penalty * (weight[i] - anchor[i]);
}

__device__ float over_block(float value, float* room) {
    for (int other = 16; other; other /= 2) value += __shfl_xor_sync(~0u, value, other);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
    for (int warp = 0; warp < THREADS / 32; ++warp) sum += room[warp];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) squares(Kinds kinds, int count, int chunk0, int chunks, float* partial) {
    __shared__ float room[THREADS / 32];
    int client = blockIdx.x, chunk = chunk0 + blockIdx.y;
    float sum = 0;
    visit(kinds, count, client, chunk, [&](const Kind& kind, size_t at, int many) {
        bool whole = kind.size % 4 == 0;
        float weight[4] = {}, out[4] = {};
        if (kind.penalty) read(kind.weight + at, many, whole, weight);
        pull(kind, at, many, whole, weight, out);
        for (int i = 0; i < 4; ++i) sum += out[i] * out[i];
    });
    sum = over_block(sum, room);
    if (threadIdx.x == 0) partial[(size_t)client * chunks + chunk] = sum;
}

// `counts` are the examples of the clients' batches: those without any have finished, and stay as they are.
extern "C" __global__ void __launch_bounds__(THREADS) update(Kinds kinds, int count, int chunk0, int chunks, const float* partial, const long long* counts, const float* rates, float momentum, float max_norm) {
    __shared__ float room[THREADS / 32];
    int client = blockIdx.x, chunk = chunk0 + blockIdx.y;
    if (counts[client] <= 0) return;
    float scale = 1, rate = rates[client];
    if (max_norm > 0) {
        int number = 0;
        while (number + 1 < count && kinds.at[number + 1].chunk <= chunk) ++number;
        float sum = 0;
        for (int i = kinds.at[number].begin + threadIdx.x; i < kinds.at[number].end; i += THREADS)
            sum += partial[(size_t)client * chunks + i];
        scale = max_norm / (sqrtf(over_block(sum, room)) + 1e-6f);
        scale = scale > 1 ? 1 : scale;  // NaN stays
    }
    visit(kinds, count, client, chunk, [&](const Kind& kind, size_t at, int many) {
        bool whole = kind.size % 4 == 0;
        float weight[4] = {}, velocity[4] = {}, out[4] = {};
        read(kind.weight + at, many, whole, weight);
        read(kind.velocity + at, many, whole, velocity);
        pull(kind, at, many, whole, weight, out);
        float by = scale;
        if (kind.shift) {
            float shift[4] = {};
            read(kind.shift + at, many, whole, shift);
            for (int i = 0; i < 4; ++i) out[i] = scale * out[i] + shift[i];
            by = 1;
        }
        for (int i = 0; i < 4; ++i) {
            velocity[i] = momentum * velocity[i] + by * out[i] + kind.decay * weight[i];
            weight[i] -= rate * velocity[i];
        }
        write(kind.weight + at, many, whole, weight);
        write(kind.velocity + at, many, whole, velocity);
    });
}
