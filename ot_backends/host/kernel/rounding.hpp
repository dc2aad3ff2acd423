// How far rounding may have moved a reduced cost. A path over an edge with cost 1e18 leaves an error of
// 1e2 in the potentials behind it, however small they are themselves; a pivot on such an error undoes
// an earlier one, and so on for ever. Cells enter only where their reduced cost is more than that: then
// every pivot improves the exact problem, and a strongly feasible tree never comes back.
#pragma once
#include <algorithm>
#include <cmath>

#include "potentials.hpp"

namespace otb {

// Reduced costs under this share of the largest number they came from are looked at more closely.
inline constexpr double SUSPECT = 0x1p-44;

// The error of M_ij + q_j - u_i with fresh potentials. Both come from that of the join of i and j by one
// addition per edge, so that only the potentials on the cycle count.
inline double cycle_rounding(const Tree& t, i32 i, i32 j) {
    auto potential = [&t](i32 x) { return t.is_row(x) ? t.row_potential(x) : t.q[x - t.n]; };
    double sum = 0;
    i32 x = i, y = t.n + j;
    while (x != y) {
        i32& lower = t.node[x].key < t.node[y].key ? x : y;
        sum += std::fabs(potential(lower));
        lower = t.node[lower].parent;
    }
    return std::numeric_limits<double>::epsilon() * (sum + std::fabs(potential(x)));
}

// The potentials' freshness, and the size of what went into them.
class Potentials {
public:
    explicit Potentials(Workspace& w) : w_(w) {}

    void refresh() { largest_ = refresh_potentials(w_), fresh_ = true; }
    void moved(double by) { largest_ = std::max(largest_, std::fabs(by)), fresh_ = false; }
    bool fresh() const { return fresh_; }
    bool suspect(double reduced) const { return !(std::fabs(reduced) >= SUSPECT * largest_); }

private:
    Workspace& w_;
    double largest_ = INF;
    bool fresh_ = false;
};

}  // namespace otb
