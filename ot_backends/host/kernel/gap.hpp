// Gaps in the sizes of costs: 1e14 beside costs of about 1 is a code for "forbidden", and drowns every
// difference that decides the plan. Sizes are binary exponents; zeros and infinities have none.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "layout.hpp"

namespace otb {

inline constexpr int GAP = 20;  // binary orders, a factor of 1e6

class Sizes {
public:
    void add(double x) {
        i64 bits;
        std::memcpy(&bits, &x, sizeof bits);
        seen_[bits >> 52 & 2047] = 1;  // without branches: this sees whole matrices
    }

    // A size between the highest two that have a gap between them; 0: no gap. Exponent 0 is that of
    // zeros (and of denormal numbers, which count as such), 2047 that of infinities and NaN.
    double gap() const {
        int above = 4096;
        for (int e = 2046; e > 0; e--) {
            if (!seen_[e]) continue;
            if (above < 2047 && above - e > GAP) return std::ldexp(1.0, e - 1022);  // numbers with e are below
            above = e;
        }
        return 0;
    }

private:
    std::array<char, 2048> seen_{};
};

// Whether the finished tree leaves a doubt. Without a gap in the sizes of its own edges its potentials
// are as clean as its costs, and then the last round of pricing has settled all other cells.
inline bool tree_has_gap(const Workspace& w) {
    const Tree& t = w.tree;
    double low = INF, high = 0;
    bool zeros = false;
    for (i32 x = 0; x < t.R; x++) {
        if (t.node[x].parent < 0 || t.node[x].parent == t.R) continue;
        double c = std::fabs(t.cost[x]);
        zeros |= c == 0;
        high = std::max(high, c);
        low = std::min(low, c == 0 ? INF : c);
    }
    if (high == 0) return false;
    if (zeros) return true;  // what else is small may not be in the tree
    if (high * 0x1p-20 <= low) return false;
    Sizes sizes;
    for (i32 x = 0; x < t.R; x++)
        if (t.node[x].parent >= 0 && t.node[x].parent != t.R) sizes.add(t.cost[x]);
    return sizes.gap() > 0;
}

// The size that separates huge cells from small ones, among the cells with mass; 0: none are huge.
template <class Cost> double size_gap(const Workspace& w, const Cost& cost) {
    Sizes sizes;
    const i64* mass = w.mass_b.data();
    const bool full = std::find(w.mass_b.begin(), w.mass_b.end(), 0) == w.mass_b.end();
    for (i32 i : w.rows) {
        const auto* c = cost.row(i);
        for (i32 j = 0; j < cost.m; j++)
            if (full || mass[j]) sizes.add(c[j]);
    }
    return sizes.gap();
}

}  // namespace otb
