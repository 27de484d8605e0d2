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
#define AHEAD 32   /* inputs */
#define SLICE 128  /* inputs that one thread lays out at a time */
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

/* One product: panels (n / NR, k, NR) of a weight (n, k); bias, with room for whole panels, or NULL; a layer norm
 * of k numbers to begin with, or NULL; whether GELU follows.
 */
typedef struct {
    const float *panels, *bias, *norm_weight, *norm_bias;
    float eps;
    int k, n, gelu;
} linear;

/* One panel for `rows` <= MR rows, `width` outputs of it; y and the residual from output `first` of these rows.
 * xt (k, MR): the inputs of these rows side by side. ahead: so many inputs further on, weights are asked for
 * in advance; some processors wait for memory otherwise instead of computing meanwhile.
 */
static inline __attribute__((always_inline)) void block(
    int rows, int ahead, const float *xt, const float *panel, int first, size_t at, const float *residual,
    float *y, int width, const linear *l) {
    int k = l->k, n = l->n;
    vector sum[MR][PANEL];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < PANEL; v++) sum[r][v] = (vector){0};
    for (int i = 0; i < k; i++) {
        const float *w = panel + (size_t)i * NR;
        vector weights[PANEL];
        for (int v = 0; v < PANEL; v++) {
            weights[v] = *(const vector *)(w + v * LANES);
            if (ahead) __builtin_prefetch(w + ahead * NR + v * LANES, 0, 2);
        }
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < PANEL; v++) sum[r][v] += weights[v] * xt[i * MR + r];
    }
    for (int r = 0; r < rows; r++) {
        size_t to = at + (size_t)r * n + first;
        if (l->bias)
            for (int v = 0; v < PANEL; v++) sum[r][v] += *(const vector *)(l->bias + first + v * LANES);
        if (l->gelu)
            for (int v = 0; v < PANEL; v++) sum[r][v] = gelu(sum[r][v]);
        if (width == NR) {
            if (residual)
                for (int v = 0; v < PANEL; v++) sum[r][v] += *(const vector *)(residual + to + v * LANES);
            for (int v = 0; v < PANEL; v++) *(vector *)(y + to + v * LANES) = sum[r][v];
        } else
            for (int j = 0; j < width; j++)
                y[to + j] = ((float *)sum[r])[j] + (residual ? residual[to + j] : 0.0f);
    }
}

/* The first rows of a step read the panel from memory, the others from the second cache. */
#define CASE(R) \
    case R: \
        if (at) \
            block(R, 0, xt, panel, first, at, residual, y, width, l); \
        else \
            block(R, AHEAD, xt, panel, first, at, residual, y, width, l); \
        break;
static void rows_of(int rows, const float *xt, const float *panel, int first, size_t at, const float *residual,
                    float *y, int width, const linear *l) {
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4)
#if MR > 4
        CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
#endif
    }
}

/* Mean and 1 / standard deviation of k numbers. */
static void spread(const float *x, int k, float eps, float *out) {
    int whole = k - k % LANES;
    vector sums = {0}, squares = {0};
    float sum = 0.0f, square = 0.0f;
    for (int i = 0; i < whole; i += LANES) sums += *(const vector *)(x + i);
    for (int i = whole; i < k; i++) sum += x[i];
    for (int j = 0; j < LANES; j++) sum += sums[j];
    float mean = sum / k;
    for (int i = 0; i < whole; i += LANES) {
        vector off = *(const vector *)(x + i) - mean;
        squares += off * off;
    }
    for (int i = whole; i < k; i++) square += (x[i] - mean) * (x[i] - mean);
    for (int j = 0; j < LANES; j++) square += squares[j];
    out[0] = mean;
    out[1] = 1.0f / sqrtf(square / k + eps);
}

/* y (m, n) = x (m, k) W^T + bias, with what else `l` asks for, + residual (m, n) if there is one, which may be y.
 * x rows are x_stride floats apart. The rows are shared out evenly over as few blocks as there can be.
 */
void product(const linear *l, const float *x, long x_stride, const float *residual, float *y, int m) {
    if (!m) return;  /* a step without a row whose next token is due */
    int k = l->k, n = l->n, slices = (k + SLICE - 1) / SLICE, count = (n + NR - 1) / NR;
    int blocks = (m + MR - 1) / MR, rows = (m + blocks - 1) / blocks;
    float *xt = malloc(((size_t)blocks * k * MR + 2 * (size_t)m) * sizeof(float));
    float *spreads = xt + (size_t)blocks * k * MR;
#pragma omp parallel
    {
        if (l->norm_weight) {
#pragma omp for schedule(static)
            for (int r = 0; r < m; r++) spread(x + r * x_stride, k, l->eps, spreads + 2 * r);
        }
#pragma omp for schedule(static) collapse(2)
        for (int b = 0; b < blocks; b++)
            for (int slice = 0; slice < slices; slice++)
                for (int r = 0; r < rows && b * rows + r < m; r++) {
                    const float *row = x + (b * rows + r) * x_stride;
                    float *to = xt + (size_t)b * k * MR + r;
                    int from = slice * SLICE, end = from + SLICE < k ? from + SLICE : k;
                    if (l->norm_weight) {
                        float mean = spreads[2 * (b * rows + r)], by = spreads[2 * (b * rows + r) + 1];
                        for (int i = from; i < end; i++)
                            to[i * MR] = (row[i] - mean) * by * l->norm_weight[i] + l->norm_bias[i];
                    } else
                        for (int i = from; i < end; i++) to[i * MR] = row[i];
                }
#pragma omp for schedule(static)
        for (int p = 0; p < count; p++) {
            int width = p * NR + NR <= n ? NR : n - p * NR;
            const float *panel = l->panels + (size_t)p * k * NR;
            for (int b = 0; b * rows < m; b++)
                rows_of(m - b * rows < rows ? m - b * rows : rows, xt + (size_t)b * k * MR, panel, p * NR,
                        (size_t)b * rows * n, residual, y, width, l);
        }
    }
    free(xt);
}

/* Who attends to what. K and V lie in pieces of `length` tokens each: a sequence's slot is one piece, or its blocks
 * are many. Row r is of the pieces pieces[r * width] ... and has ends[r] tokens with its own, at most `longest`;
 * where live[r] = 0 its k and v are in the cache already. keys, values (layers, pieces, heads, length, dim). dim is a
 * multiple of LANES, at most 8 of them.
 */
typedef struct {
    float *keys, *values;
    const int64_t *pieces, *ends;
    const uint8_t *live;
    long layer, length, width, longest;
    int rows, heads, dim;
} attention;

/* Attention of new tokens, each to its own pieces, read no further than its own position. q, k, v (rows, heads, dim),
 * rows `stride` floats apart. All k and v are written before any is read, so a row may need those of rows before
 * it. out (rows, heads, dim).
 */
void attend(const attention *a, int layer, const float *q, const float *k, const float *v, long stride,
            float *out) {
    int rows = a->rows, heads = a->heads, dim = a->dim;
    long length = a->length;
    float *keys = a->keys + layer * a->layer, *values = a->values + layer * a->layer;
    float scale = 1.0f / sqrtf((float)dim);
#pragma omp parallel
    {
        float *score = malloc((a->longest + LANES) * sizeof(float));
#pragma omp for schedule(static, 1)
        for (int item = 0; item < rows * heads; item++) {
            int r = item / heads, h = item % heads;
            long last = a->ends[r] - 1;
            size_t from = (size_t)r * stride + (size_t)h * dim;
            size_t piece = a->pieces[r * a->width + last / length];
            size_t to = ((piece * heads + h) * length + last % length) * dim;
            if (a->live[r]) {
                memcpy(keys + to, k + from, dim * sizeof(float));
                memcpy(values + to, v + from, dim * sizeof(float));
            }
        }
#pragma omp for schedule(static, 1)
        for (int item = 0; item < rows * heads; item++) {
            int r = item / heads, h = item % heads, end = (int)a->ends[r];
            const int64_t *pieces = a->pieces + r * a->width;
            size_t from = (size_t)r * stride + (size_t)h * dim;
            float best = -INFINITY, total = 0.0f;
            for (int first = 0; first < end; first += length) {
                const float *K = keys + ((size_t)*pieces++ * heads + h) * length * dim;
                int here = end - first < length ? end - first : (int)length;
                for (int t = 0; t < here; t++) {
                    vector sum = {0};
                    for (int d = 0; d < dim; d += LANES)
                        sum += *(const vector *)(q + from + d) * *(const vector *)(K + (size_t)t * dim + d);
                    float s = 0.0f;
#pragma omp simd reduction(+ : s)
                    for (int d = 0; d < LANES; d++) s += sum[d];
                    score[first + t] = s * scale;
                    best = score[first + t] > best ? score[first + t] : best;
                }
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
            pieces = a->pieces + r * a->width;
            for (int first = 0; first < end; first += length) {
                const float *V = values + ((size_t)*pieces++ * heads + h) * length * dim;
                int here = end - first < length ? end - first : (int)length;
                for (int t = 0; t < here; t++)
                    for (int d = 0; d < dim / LANES; d++)
                        sum[d] += *(const vector *)(V + (size_t)t * dim + d * LANES) * score[first + t];
            }
            float *to = out + ((size_t)r * heads + h) * dim;
            for (int d = 0; d < dim / LANES; d++) *(vector *)(to + d * LANES) = sum[d] / total;
        }
        free(score);
    }
}

/* x (rows, hidden) through `layers` layers of a transformer, in place: norm, q k v, attention, out, norm, up, GELU,
 * down. products: these four of each layer. One call, so that between two products nothing is run that has to be
 * fetched from memory first, as an interpreter would have to be.
 */
void through(const linear *products, int layers, const attention *a, float *x) {
    int rows = a->rows, hidden = products[0].k;
    float *qkv = malloc((size_t)rows * (products[0].n + hidden + products[2].n) * sizeof(float));
    float *attended = qkv + (size_t)rows * products[0].n, *up = attended + (size_t)rows * hidden;
    for (int layer = 0; layer < layers; layer++) {
        const linear *l = products + 4 * layer;
        product(l, x, hidden, NULL, qkv, rows);
        attend(a, layer, qkv, qkv + hidden, qkv + 2 * hidden, l->n, attended);
        product(l + 1, attended, hidden, x, x, rows);
        product(l + 2, x, hidden, NULL, up, rows);
        product(l + 3, up, l[3].k, x, x, rows);
    }
    free(qkv);
}
