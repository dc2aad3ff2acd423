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
        x = std::fabs(x);
        if (x == 0) {
            zeros = true;
        } else if (x < INF) {
            i64 bits;
            std::memcpy(&bits, &x, sizeof bits);
            seen_[bits >> 52] = 1;
        }
    }

    // A size between the highest two that have a gap between them; 0: no gap.
    double gap() const {
        int above = -1;
        for (int e = 2047; e-- > 0;) {
            if (!seen_[e]) continue;
            if (above - e > GAP) return std::ldexp(1.0, e - 1022);  // numbers of exponent e are below
            above = e;
        }
        return 0;
    }

    bool zeros = false;

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
    double low = INF, high = 0;
    const i64* mass = w.mass_b.data();
    for (i32 i : w.rows) {
        const auto* c = cost.row(i);
        for (i32 j = 0; j < cost.m; j++) {
            double x = std::fabs(static_cast<double>(c[j]));
            double y = mass[j] != 0 && x < INF ? x : 0.0, z = y > 0 ? y : INF;
            high = y > high ? y : high;
            low = z < low ? z : low;
        }
    }
    if (high * 0x1p-20 <= low) return 0;
    Sizes sizes;
    for (i32 i : w.rows) {
        const auto* c = cost.row(i);
        for (i32 j = 0; j < cost.m; j++)
            if (mass[j]) sizes.add(c[j]);
    }
    return sizes.gap();
}

}  // namespace otb
