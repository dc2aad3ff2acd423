// Potentials of the tree: M_ij + q_j - u_i = 0 on every edge, q = -v.
#pragma once
#include <cmath>

#include "layout.hpp"

namespace otb {

// The cost of a tree edge. Cells that are not finite are edges only where nothing else joins two blocks
// ("virtual edges"); they carry no flow and count as 0.
template <class Cost> double edge_cost(const Cost& cost, i32 i, i32 j) {
    double c = cost.at(i, j);
    return std::isfinite(c) ? c : 0.0;
}

// u_i, from the column above row i.
template <class Cost> double row_potential(const Workspace& w, const Cost& cost, i32 i) {
    const Tree& t = w.tree;
    i32 p = t.node[i].parent;
    if (p == t.R) return t.q[t.m] + w.offset[i];
    return edge_cost(cost, i, p - t.n) + t.q[p - t.n];
}

// q afresh from that of R, in the order of the thread. Returns the largest change relative to the size of the terms.
template <class Cost> double refresh_potentials(Workspace& w, const Cost& cost) {
    Tree& t = w.tree;
    double drift = 0;
    for (i32 j = t.next[t.m]; j != t.m; j = t.next[j]) {
        i32 x = t.node[t.n + j].parent;
        double q, size;
        if (x == t.R) {
            q = w.offset[t.n + j], size = std::fabs(q);
        } else {
            double u = row_potential(w, cost, x), c = edge_cost(cost, x, j);
            q = u - c, size = std::fabs(u) + std::fabs(c);
        }
        double change = std::fabs(q - t.q[j]);
        if (change > drift * size) drift = size > 0 ? change / size : INF;
        t.q[j] = q;
    }
    return drift;
}

}  // namespace otb
