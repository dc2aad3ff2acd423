// Float64 weights -> int64 masses with exactly equal totals on both sides, so that flows, ties and the
// test for degeneracy are exact and never drift.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "types.hpp"

namespace otb {

inline constexpr i64 TOTAL_MASS = i64{1} << 60;  // the ratio test's 2 * flow must fit into an int64

// Neumaier's compensated sum. Weights are nonnegative and finite here.
inline double compensated_sum(const double* x, i32 n) {
    double sum = 0, lost = 0;
    for (i32 k = 0; k < n; k++) {
        double t = sum + x[k];
        lost += sum >= x[k] ? (sum - t) + x[k] : (x[k] - t) + sum;
        sum = t;
    }
    return sum + lost;
}

// Whether all positive weights are the same number; count: how many there are.
inline bool uniform(const double* x, i32 n, i32* count) {
    double first = 0;
    bool same = true;
    i32 c = 0;
    for (i32 k = 0; k < n; k++)
        if (x[k] > 0) {
            if (c++ == 0) first = x[k];
            same &= x[k] == first;
        }
    *count = c;
    return same;
}

// Largest remainder: out_k = floor(x_k * total / sum), and one unit more where the cut-off part was
// largest, until the sum is `total`. A positive weight gets at least one unit, a zero weight none.
inline void round_masses(const double* x, i32 n, double sum, i64* out, std::vector<i32>& index,
                         std::vector<double>& rest) {
    const double total = static_cast<double>(TOTAL_MASS);
    index.clear();
    rest.resize(n);
    i64 left = TOTAL_MASS;
    i32 heaviest = 0;
    for (i32 k = 0; k < n; k++) {
        out[k] = 0;
        if (!(x[k] > 0)) continue;
        double exact = x[k] / sum * total, whole = std::floor(exact);
        out[k] = std::max<i64>(static_cast<i64>(whole), 1);
        rest[k] = exact - whole;
        left -= out[k];
        index.push_back(k);
        if (x[k] > x[heaviest]) heaviest = k;
    }
    i64 count = static_cast<i64>(index.size());
    if (left > 0 && left < count) {
        auto larger = [&](i32 s, i32 t) {
            return rest[s] != rest[t] ? rest[s] > rest[t] : s < t;
        };
        std::nth_element(index.begin(), index.begin() + left, index.end(), larger);
        for (i64 k = 0; k < left; k++) out[index[k]]++;
        left = 0;
    }
    // What remains is of the order of n units: from rounding of the sum, and from the units given to
    // weights under half a unit. Spread over the heavier weights in proportion, the rest on the heaviest.
    if (left != 0) {
        for (i32 k : index) {
            i64 part = static_cast<i64>(static_cast<double>(left) * (x[k] / sum));
            if (out[k] + part >= 1) out[k] += part, left -= part;
        }
        out[heaviest] += left;
    }
}

// Both sides. Equal weights stay exactly equal on each side (total n m k), which keeps the ties of
// assignment problems.
inline void integer_masses(const double* a, i32 n, double sum_a, const double* b, i32 m, double sum_b,
                           i64* mass_a, i64* mass_b, std::vector<i32>& index,
                           std::vector<double>& rest) {
    i32 rows, cols;
    if (uniform(a, n, &rows) & uniform(b, m, &cols)) {
        i64 unit = TOTAL_MASS / (static_cast<i64>(rows) * cols);
        for (i32 i = 0; i < n; i++) mass_a[i] = a[i] > 0 ? unit * cols : 0;
        for (i32 j = 0; j < m; j++) mass_b[j] = b[j] > 0 ? unit * rows : 0;
        return;
    }
    round_masses(a, n, sum_a, mass_a, index, rest);
    round_masses(b, m, sum_b, mass_b, index, rest);
}

}  // namespace otb
