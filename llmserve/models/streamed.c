/* Weight products and decode attention for a few rows in float32, on cores that wait for memory.
 *
 * A decode step reads every weight once and does little with each. So the weights lie in the order in
 * which they are read, in panels of NR outputs: panel p holds, input by input, the weights of the outputs
 * NR p ... NR p + NR - 1. A panel is read once for MR rows at a time, and stays in the second cache for
 * the next MR. Vectors are GCC's and Clang's own (vector_size), so this is plain C on any machine.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __AVX512F__
#define MR 14
#define NR 32
#else
#define MR 4
#define NR 16
#endif
#define LANES 16
#define PANEL (NR / LANES)

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4)));

int panel_width(void) { return NR; }

/* weight (n, k) by rows -> panels (ceil(n / NR), k, NR), outputs past n are zeros. */
void pack(const float *weight, float *panels, int n, int k) {
    int count = (n + NR - 1) / NR;
#pragma omp parallel for schedule(static)
    for (int p = 0; p < count; p++)
        for (int i = 0; i < k; i++)
            for (int j = 0; j < NR; j++) {
                int out = p * NR + j;
                panels[((size_t)p * k + i) * NR + j] = out < n ? weight[(size_t)out * k + i] : 0.0f;
            }
}

static inline vector choose(integers which, vector yes, vector no) {
    return (vector)(((integers)yes & which) | ((integers)no & ~which));
}

static inline vector all(float x) { return (vector){0} + x; }

/* e^x to the last bit or two (as in Cephes' expf); NaN stays NaN. */
static inline vector exponential(vector x) {
    x = choose(x < all(-87.0f), all(-87.0f), x);
    x = choose(x > all(88.0f), all(88.0f), x);
    integers n = __builtin_convertvector(x * 1.44269504f + choose(x < all(0), all(-0.5f), all(0.5f)), integers);
    vector whole = __builtin_convertvector(n, vector);
    vector r = x - whole * 0.693359375f + whole * 2.12194440e-4f, p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return (p * r * r + r + 1.0f) * (vector)((n + 127) << 23);
}

/* GELU in its tanh form, x / (1 + exp(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). */
static inline vector gelu(vector x) {
    vector u = 0.7978845608f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exponential(-2.0f * u));
}

/* What a product needs beside its rows: see product(). */
typedef struct {
    const float *bias;
    int k, n, gelu;
} task;

/* One panel for `rows` <= MR rows, `width` outputs of it. xt (k, MR): the inputs of these rows side by side. */
static inline __attribute__((always_inline)) void block(
    int rows, const float *xt, const float *panel, int first, float *y, int width, task t) {
    const float *bias = t.bias;
    int k = t.k, n = t.n;
    vector sum[MR][PANEL];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < PANEL; v++) sum[r][v] = (vector){0};
    for (int i = 0; i < k; i++) {
        const float *w = panel + (size_t)i * NR;
        vector weights[PANEL];
        for (int v = 0; v < PANEL; v++) weights[v] = *(const vector *)(w + v * LANES);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < PANEL; v++) sum[r][v] += weights[v] * xt[i * MR + r];
    }
    for (int r = 0; r < rows; r++) {
        float *out = y + (size_t)r * n;
        if (bias)
            for (int v = 0; v < PANEL; v++) sum[r][v] += *(const vector *)(bias + first + v * LANES);
        if (t.gelu)
            for (int v = 0; v < PANEL; v++) sum[r][v] = gelu(sum[r][v]);
        if (width == NR)
            for (int v = 0; v < PANEL; v++) *(vector *)(out + v * LANES) = sum[r][v];
        else
            memcpy(out, sum[r], width * sizeof(float));
    }
}

#define CASE(R) \
    case R: \
        block(R, xt, panel, first, y, width, t); \
        break;
static void rows_of(int rows, const float *xt, const float *panel, int first, float *y, int width, task t) {
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4)
#if MR > 4
        CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
#endif
    }
}

/* y (m, n) = x (m, k) W^T + bias, then GELU if asked. x rows are x_stride floats apart. bias has room for
 * whole panels, or is NULL. The rows are shared out evenly over as few blocks as there can be.
 */
void product(const float *x, long x_stride, const float *panels, const float *bias, float *y, int m, int n,
             int k, int gelu) {
    if (!m) return;  /* a step without a row whose next token is due */
    int blocks = (m + MR - 1) / MR, rows = (m + blocks - 1) / blocks, count = (n + NR - 1) / NR;
    task t = {bias, k, n, gelu};
    float *xt = malloc((size_t)blocks * k * MR * sizeof(float));
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int b = 0; b < blocks; b++)
            for (int r = 0; r < rows && b * rows + r < m; r++) {
                const float *row = x + (b * rows + r) * x_stride;
                float *to = xt + (size_t)b * k * MR + r;
                for (int i = 0; i < k; i++) to[i * MR] = row[i];
            }
#pragma omp for schedule(static)
        for (int p = 0; p < count; p++) {
            int width = p * NR + NR <= n ? NR : n - p * NR;
            for (int b = 0; b * rows < m; b++)
                rows_of(m - b * rows < rows ? m - b * rows : rows, xt + (size_t)b * k * MR,
                        panels + (size_t)p * k * NR, p * NR, y + (size_t)b * rows * n + p * NR, width, t);
        }
    }
    free(xt);
}

/* Attention of new tokens, each to its own slot, read no further than its own position.
 *
 * q, k, v (rows, heads, dim), rows `stride` floats apart. keys, values (slots, heads, length, dim) of one
 * layer. Row r is of slot slots[r] and has ends[r] tokens with its own; where live[r] = 0 its k and v are
 * there already. All are written before any is read, so a row may need those of rows before it.
 * out (rows, heads, dim). dim is a multiple of LANES, at most 8 of them.
 */
void attend(const float *q, const float *k, const float *v, long stride, float *keys, float *values,
            const int64_t *slots, const int64_t *ends, const uint8_t *live, float *out, int rows, int heads,
            int dim, long length) {
    float scale = 1.0f / sqrtf((float)dim);
#pragma omp parallel
    {
        float *score = malloc((length + LANES) * sizeof(float));
#pragma omp for schedule(static, 1)
        for (int item = 0; item < rows * heads; item++) {
            int r = item / heads, h = item % heads;
            size_t from = (size_t)r * stride + (size_t)h * dim;
            size_t to = (((size_t)slots[r] * heads + h) * length + ends[r] - 1) * dim;
            if (live[r]) {
                memcpy(keys + to, k + from, dim * sizeof(float));
                memcpy(values + to, v + from, dim * sizeof(float));
            }
        }
#pragma omp for schedule(static, 1)
        for (int item = 0; item < rows * heads; item++) {
            int r = item / heads, h = item % heads, end = (int)ends[r];
            size_t from = (size_t)r * stride + (size_t)h * dim;
            const float *K = keys + ((size_t)slots[r] * heads + h) * length * dim;
            const float *V = values + ((size_t)slots[r] * heads + h) * length * dim;
            float best = -INFINITY, total = 0.0f;
            for (int t = 0; t < end; t++) {
                vector sum = {0};
                for (int d = 0; d < dim; d += LANES)
                    sum += *(const vector *)(q + from + d) * *(const vector *)(K + (size_t)t * dim + d);
                float s = 0.0f;
#pragma omp simd reduction(+ : s)
                for (int d = 0; d < LANES; d++) s += sum[d];
                score[t] = s * scale;
                best = score[t] > best ? score[t] : best;
            }
            for (int t = end; t < end + LANES; t++) score[t] = -INFINITY;
            vector totals = {0};
            for (int t = 0; t < end; t += LANES) {
                vector *some = (vector *)(score + t);
                *some = exponential(*some - best);
                totals += *some;
            }
            for (int d = 0; d < LANES; d++) total += totals[d];
            vector sum[8] = {{0}};
            for (int t = 0; t < end; t++)
                for (int d = 0; d < dim / LANES; d++)
                    sum[d] += *(const vector *)(V + (size_t)t * dim + d * LANES) * score[t];
            float *to = out + ((size_t)r * heads + h) * dim;
            for (int d = 0; d < dim / LANES; d++) *(vector *)(to + d * LANES) = sum[d] / total;
        }
        free(score);
    }
}
