// Potentials of the tree: M_ij + q_j - u_i = 0 on every edge, q = -v. So the potential of a row is that of
// its parent plus the cost of the edge, the potential of a column that of its parent minus the cost. The
// cost of an artificial edge is whatever the potential of its lower end is to be.
#pragma once
#include <algorithm>
#include <cmath>

#include "layout.hpp"

namespace otb {

// The cost of a tree edge. Cells that are not finite are edges only where nothing else joins two blocks
// ("virtual edges"); they carry no flow and count as 0.
template <class Cost> double edge_cost(const Cost& cost, i32 i, i32 j) {
    double c = cost.at(i, j);
    return std::isfinite(c) ? c : 0.0;
}

inline double below(const Tree& t, i32 x, double parent_potential) {
    const double sign[2] = {-1, 1};  // no branch: rows and columns alternate at random
    return parent_potential + sign[t.is_row(x)] * t.cost[x];
}

inline i32 top_of(const Tree& t, i32 x) {
    while (t.node[x].parent != t.R) x = t.node[x].parent;
    return x;
}

// The child of R whose potential is to be 0: the one above most columns when the artificial costs were
// set, while it is one, else that above the first column. Without this, R would take every change of the
// larger side of a cut, and its potential could outgrow the differences that count.
inline i32 gauge(const Workspace& w) {
    const Tree& t = w.tree;
    if (w.main >= 0 && t.node[w.main].parent == t.R) return w.main;
    return top_of(t, t.n + t.next[t.m]);
}

// q afresh, in the order of the thread. Returns the largest potential on the way.
inline double refresh_potentials(Workspace& w) {
    Tree& t = w.tree;
    t.q[t.m] = -below(t, gauge(w), 0.0);
    double largest = std::fabs(t.q[t.m]);
    for (i32 j = t.next[t.m]; j != t.m; j = t.next[j]) {
        const i32 y = t.n + j, x = t.node[y].parent;
        const double above = x == t.R ? t.q[t.m] : t.row_potential(x);
        t.q[j] = above - t.cost[y];
        largest = std::max(largest, std::max(std::fabs(above), std::fabs(t.q[j])));
    }
    return largest;
}

}  // namespace otb
