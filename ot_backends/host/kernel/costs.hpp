// Where costs come from. The simplex code sees them through these members:
//     n, m           the shape
//     at(i, j)       one cost, in float64
//     row(i)         the costs of row i, contiguous; valid until the next call of row()
//     Cell           the type of what row() points to: float or double
//     MATRIX         whether row i + 1 follows row i in memory, for good
//     CODED          whether costs may be anything, forbidden cells coded by huge numbers among them
// at(i, j) == row(i)[j] to the last bit, whatever the maker.
#pragma once
#include <cmath>
#include <cstddef>
#include <vector>

#include "rows.hpp"

namespace otb {

// The caller's C-contiguous matrix, read in place.
template <class T> struct MatrixCost {
    using Cell = T;
    static constexpr bool CODED = true, MATRIX = true;
    i32 n, m;
    const T* cells;

    double at(i32 i, i32 j) const { return cells[static_cast<std::size_t>(i) * m + j]; }
    const T* row(i32 i) const { return cells + static_cast<std::size_t>(i) * m; }
};

enum class Metric { sqeuclidean = 0, euclidean = 1, cityblock = 2 };

namespace costs_detail {

// out[j] = sum over k of |x_k - y_kj|^2 (or |x_k - y_kj|), k in order; the columns' coordinates are
// stored coordinate by coordinate (d, m), so that the loop over j is the vectorised one.
OTB_INLINE void distances(Metric metric, const double* x, const double* y, i32 d, i32 m,
                          double* out) {
    if (metric == Metric::cityblock) {
        for (i32 j = 0; j < m; j++) out[j] = std::fabs(x[0] - y[j]);
        for (i32 k = 1; k < d; k++) {
            const double *yk = y + static_cast<std::size_t>(k) * m, xk = x[k];
            for (i32 j = 0; j < m; j++) out[j] += std::fabs(xk - yk[j]);
        }
        return;
    }
    for (i32 j = 0; j < m; j++) {
        double t = x[0] - y[j];
        out[j] = t * t;
    }
    for (i32 k = 1; k < d; k++) {
        const double *yk = y + static_cast<std::size_t>(k) * m, xk = x[k];
        for (i32 j = 0; j < m; j++) {
            double t = xk - yk[j];
            out[j] += t * t;
        }
    }
    if (metric == Metric::euclidean)
        for (i32 j = 0; j < m; j++) out[j] = std::sqrt(out[j]);
}

using Distances = void (*)(Metric, const double*, const double*, i32, i32, double*);

struct PortableDistances {
    static void run(Metric metric, const double* x, const double* y, i32 d, i32 m, double* out) {
        distances(metric, x, y, d, m, out);
    }
};
#ifdef OTB_X86
struct Avx2Distances {
    OTB_AVX2 static void run(Metric metric, const double* x, const double* y, i32 d, i32 m,
                             double* out) {
        distances(metric, x, y, d, m, out);
    }
};
struct Avx512Distances {
    OTB_AVX512 static void run(Metric metric, const double* x, const double* y, i32 d, i32 m,
                               double* out) {
        distances(metric, x, y, d, m, out);
    }
};
#endif

inline Distances pick() {
#ifdef OTB_X86
    if (isa() == Isa::avx512) return Avx512Distances::run;
    if (isa() == Isa::avx2) return Avx2Distances::run;
#endif
    return PortableDistances::run;
}

}  // namespace costs_detail

// Distances between points, computed when asked for: O((n + m) d) memory, never n x m.
struct PointCost {
    using Cell = double;
    static constexpr bool CODED = false, MATRIX = false;
    i32 n, m;

    // x (n, d), y (m, d), both C-contiguous
    PointCost(Metric metric, i32 n, i32 m, i32 d, const double* x, const double* y)
        : n(n), m(m), metric_(metric), d_(d), x_(x), buffer_(m), run_(costs_detail::pick()) {
        y_.resize(static_cast<std::size_t>(d) * m);
        for (i32 j = 0; j < m; j++)
            for (i32 k = 0; k < d; k++)
                y_[static_cast<std::size_t>(k) * m + j] = y[static_cast<std::size_t>(j) * d + k];
    }

    double at(i32 i, i32 j) const {
        const double* x = x_ + static_cast<std::size_t>(i) * d_;
        double sum = 0;
        for (i32 k = 0; k < d_; k++) {
            double t = x[k] - y_[static_cast<std::size_t>(k) * m + j];
            double term = metric_ == Metric::cityblock ? std::fabs(t) : t * t;
            sum = k == 0 ? term : sum + term;
        }
        return metric_ == Metric::euclidean ? std::sqrt(sum) : sum;
    }

    const double* row(i32 i) const {
        run_(metric_, x_ + static_cast<std::size_t>(i) * d_, y_.data(), d_, m, buffer_.data());
        return buffer_.data();
    }

private:
    Metric metric_;
    i32 d_;
    const double* x_;
    std::vector<double> y_;  // (d, m)
    mutable std::vector<double> buffer_;
    costs_detail::Distances run_;
};

}  // namespace otb
