// What the kernels ask of the tensor cores; tests put an emulation in its place.

// Round to the 10 bits of tf32.
__device__ unsigned round_tf32(float value) {
    unsigned out;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(value));
    return out;
}

// Round two numbers to bf16, the first in the low half.
__device__ unsigned pack_bf16(float low, float high) {
    unsigned out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

// sum[16][8] += a[16][k] · b[k][8] by a warp; k is 8 words, each a tf32 number or two of bf16. Lane l holds of a the rows
// l / 4 and 8 more, words l % 4 and 4 more; of b words l % 4 and 4 more, column l / 4; of the sum the rows of a, columns
// 2 (l % 4) and 1 more.
template <bool BF16>
__device__ void multiply(float (&sum)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if (BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
