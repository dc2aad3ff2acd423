// The loops over one row of costs: whether a c_j + q_j is under u, the smallest one, the two smallest, and
// v_j = min(v_j, c_j - u).
// Written once with the compilers' vector types and compiled for several instruction sets; the fastest
// that the processor has is chosen at run time. No sum is reordered and nothing is contracted, so that
// every instruction set gives the same bits. NaN never compares smaller, hence never wins.
#pragma once
#include <cstring>

#include "types.hpp"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define OTB_X86 1
#define OTB_AVX2 __attribute__((target("avx2")))
#define OTB_AVX512 __attribute__((target("avx512f,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
#define OTB_INLINE __attribute__((always_inline)) inline

namespace otb {

struct Best {
    double value = INF;  // +inf: the row has no finite c_j + q_j
    i32 index = -1;      // the first that attains it
};

struct TwoBest {
    Best best;
    double second = INF;
};

namespace rows_detail {

// Cells ahead to prefetch. Rows follow each other in memory, but hardware prefetching ends with the page.
inline constexpr int AHEAD = 512;

inline constexpr double LARGE = std::numeric_limits<double>::max();

template <int W> struct Vec {
    typedef double D __attribute__((vector_size(W * 8)));
    typedef i64 L __attribute__((vector_size(W * 8)));
    typedef float F __attribute__((vector_size(W * 4)));
};

template <int W> OTB_INLINE typename Vec<W>::D load(const double* x) {
    typename Vec<W>::D r;
    std::memcpy(&r, x, sizeof r);
    return r;
}
template <int W> OTB_INLINE typename Vec<W>::D load(const float* x) {
    typename Vec<W>::F r;
    std::memcpy(&r, x, sizeof r);
    return __builtin_convertvector(r, typename Vec<W>::D);
}

// Smaller value, or equal value and smaller index, of each lane. Only plain comparisons select:
// compilers take logic on masks apart into scalars.
template <class D, class L> OTB_INLINE void merge(D& low, L& at, const D& low2, const L& at2) {
    L smaller = at2 < at ? at2 : at;
    at = low2 == low ? smaller : at;
    at = low2 < low ? at2 : at;
    low = low2 < low ? low2 : low;
}

// The same over the lanes of one vector.
template <int W> OTB_INLINE Best reduce(const typename Vec<W>::D& low, const typename Vec<W>::L& at) {
    if constexpr (W > 2) {
        constexpr int H = W / 2;
        typename Vec<H>::D x[2];
        typename Vec<H>::L k[2];
        std::memcpy(x, &low, sizeof low);
        std::memcpy(k, &at, sizeof at);
        merge(x[0], k[0], x[1], k[1]);
        return reduce<H>(x[0], k[0]);
    } else {
        bool second = (low[1] < low[0]) | ((low[1] == low[0]) & (at[1] < at[0]));
        double x = second ? low[1] : low[0];
        i64 k = second ? at[1] : at[0];
        return {x, x < INF ? static_cast<i32>(k) : -1};
    }
}

template <int W> OTB_INLINE double sum(const typename Vec<W>::D& x) {
    if constexpr (W > 1) {
        typename Vec<W / 2>::D half[2];
        std::memcpy(half, &x, sizeof x);
        return sum<W / 2>(half[0] + half[1]);
    } else {
        return x[0];
    }
}

template <class T, int W, bool Check>
OTB_INLINE Best best(const T* c, const double* q, i32 m, bool* unordered) {
    using D = typename Vec<W>::D;
    using L = typename Vec<W>::L;
    Best r;
    i32 j = 0;
    bool bad = false;
    if (m >= 4 * W) {
        D low[4];
        L at[4], now;
        const D large = D{} + LARGE;
        D nan = {};  // 0, or NaN once there was one
        for (int l = 0; l < W; l++) now[l] = l;
        for (int k = 0; k < 4; k++) low[k] = D{} + INF, at[k] = now;
        for (; j + 4 * W <= m; j += 4 * W) {
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                __builtin_prefetch(c + j + k * W + AHEAD);
                D cost = load<W>(c + j + k * W);
                D x = cost + load<W>(q + j + k * W);
                L less = x < low[k];
                low[k] = less ? x : low[k];
                at[k] = less ? now : at[k];
                if (Check) {
                    D clipped = large < cost ? large : cost;  // +inf is allowed; NaN stays NaN
                    nan += clipped - clipped;
                }
            }
            now += 4 * W;
        }
        for (int k = 1; k < 4; k++) at[k] += k * W;
        merge(low[0], at[0], low[1], at[1]);
        merge(low[2], at[2], low[3], at[3]);
        merge(low[0], at[0], low[2], at[2]);
        r = reduce<W>(low[0], at[0]);
        if (Check) {
            double sum = 0;
            for (int l = 0; l < W; l++) sum += nan[l];
            bad = sum != sum;
        }
    }
    for (; j < m; j++) {
        double cost = c[j], x = cost + q[j];
        if (x < r.value) r.value = x, r.index = j;
        if (Check) bad |= cost != cost;
    }
    if (Check) *unordered = bad;
    return r;
}

// Whether any c_j + q_j is under u, or NaN. Most rows of most rounds have none, and then this is all that
// is asked of them: it needs no indices and no minimum over the lanes.
template <class T, int W> OTB_INLINE bool any_below(const T* c, const double* q, i32 m, double u) {
    using D = typename Vec<W>::D;
    i32 j = 0;
    double any = 0;
    if (m >= 4 * W) {
        const D bound = D{} + u, one = D{} + 1.0;
        D found[4] = {};
        for (; j + 4 * W <= m; j += 4 * W) {
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                __builtin_prefetch(c + j + k * W + AHEAD);
                D x = load<W>(c + j + k * W) + load<W>(q + j + k * W);
                found[k] = x >= bound ? found[k] : one;
            }
        }
        any = sum<W>((found[0] + found[1]) + (found[2] + found[3]));
    }
    bool rest = false;
    for (; j < m; j++) rest |= !(c[j] + q[j] >= u);
    return rest | (any > 0);
}

// How many rows, from the first on, have none; u_k is the bound of the k-th of `rows` rows of a matrix.
template <class T, int W>
OTB_INLINE i32 quiet_rows(const T* c, const double* q, i32 m, const double* u, i32 rows) {
    for (i32 k = 0; k < rows; k++, c += m)
        if (any_below<T, W>(c, q, m, u[k])) return k;
    return rows;
}

template <class T, int W> OTB_INLINE TwoBest two_best(const T* c, const double* q, i32 m) {
    using D = typename Vec<W>::D;
    using L = typename Vec<W>::L;
    TwoBest r;
    i32 j = 0;
    if (m >= 2 * W) {
        D low[2], low2[2];
        L at[2], now;
        for (int l = 0; l < W; l++) now[l] = l;
        for (int k = 0; k < 2; k++) low[k] = low2[k] = D{} + INF, at[k] = now;
        for (; j + 2 * W <= m; j += 2 * W) {
#pragma GCC unroll 2
            for (int k = 0; k < 2; k++) {
                D x = load<W>(c + j + k * W) + load<W>(q + j + k * W);
                L less = x < low[k];
                D loser = less ? low[k] : x;  // the larger of the two, or NaN
                low[k] = less ? x : low[k];
                at[k] = less ? now : at[k];
                low2[k] = loser < low2[k] ? loser : low2[k];
            }
            now += 2 * W;
        }
        at[1] += W;
        D loser = low[1] < low[0] ? low[0] : low[1], second = low2[0] < low2[1] ? low2[0] : low2[1];
        second = loser < second ? loser : second;
        merge(low[0], at[0], low[1], at[1]);
        r.best = reduce<W>(low[0], at[0]);
        for (int l = 0; l < W; l++) {
            double x = at[0][l] == r.best.index ? second[l] : low[0][l];
            r.second = x < r.second ? x : r.second;
        }
    }
    for (; j < m; j++) {
        double x = static_cast<double>(c[j]) + q[j];
        if (x < r.best.value) {
            r.second = r.best.value;
            r.best.value = x, r.best.index = j;
        } else if (x < r.second) {
            r.second = x;
        }
    }
    return r;
}

template <class T, int W> OTB_INLINE void lower(const T* c, double u, double* v, i32 m) {
    using D = typename Vec<W>::D;
    i32 j = 0;
    for (; j + W <= m; j += W) {
        D x = load<W>(c + j) - u, y = load<W>(v + j);
        y = x < y ? x : y;
        std::memcpy(v + j, &y, sizeof y);
    }
    for (; j < m; j++) {
        double x = static_cast<double>(c[j]) - u;
        if (x < v[j]) v[j] = x;
    }
}

}  // namespace rows_detail

// The loops (and the first with a check for NaN) for one instruction set.
template <class T> struct RowLoops {
    Best (*best)(const T* c, const double* q, i32 m);
    Best (*best_checked)(const T* c, const double* q, i32 m, bool* unordered);
    i32 (*quiet_rows)(const T* c, const double* q, i32 m, const double* u, i32 rows);
    TwoBest (*two_best)(const T* c, const double* q, i32 m);
    void (*lower)(const T* c, double u, double* v, i32 m);
};

#define OTB_ROW_LOOPS(NAME, TARGET, WIDTH)                                                        \
    template <class T> struct NAME {                                                              \
        TARGET static Best best(const T* c, const double* q, i32 m) {                             \
            return rows_detail::best<T, WIDTH, false>(c, q, m, nullptr);                          \
        }                                                                                         \
        TARGET static Best best_checked(const T* c, const double* q, i32 m, bool* unordered) {    \
            return rows_detail::best<T, WIDTH, true>(c, q, m, unordered);                         \
        }                                                                                         \
        TARGET static i32 quiet_rows(const T* c, const double* q, i32 m, const double* u, i32 rows) { \
            return rows_detail::quiet_rows<T, WIDTH>(c, q, m, u, rows);                           \
        }                                                                                         \
        TARGET static TwoBest two_best(const T* c, const double* q, i32 m) {                      \
            return rows_detail::two_best<T, WIDTH>(c, q, m);                                      \
        }                                                                                         \
        TARGET static void lower(const T* c, double u, double* v, i32 m) {                        \
            rows_detail::lower<T, WIDTH>(c, u, v, m);                                             \
        }                                                                                         \
        static RowLoops<T> all() { return {best, best_checked, quiet_rows, two_best, lower}; }     \
    };

OTB_ROW_LOOPS(PortableRows, , 2)
#ifdef OTB_X86
OTB_ROW_LOOPS(Avx2Rows, OTB_AVX2, 4)
OTB_ROW_LOOPS(Avx512Rows, OTB_AVX512, 8)
#endif
#undef OTB_ROW_LOOPS

enum class Isa { portable, avx2, avx512 };

inline Isa detect_isa() {
#ifdef OTB_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return Isa::avx512;
    if (__builtin_cpu_supports("avx2")) return Isa::avx2;
#endif
    return Isa::portable;
}

// The instruction set in use; tests set it to a lesser one to compare.
inline Isa& isa() {
    static Isa chosen = detect_isa();
    return chosen;
}

template <class T> inline RowLoops<T> row_loops() {
#ifdef OTB_X86
    if (isa() == Isa::avx512) return Avx512Rows<T>::all();
    if (isa() == Isa::avx2) return Avx2Rows<T>::all();
#endif
    return PortableRows<T>::all();
}

}  // namespace otb
