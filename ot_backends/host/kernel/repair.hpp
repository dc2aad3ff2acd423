// From parents to a feasible tree: flows from the masses, and an artificial edge to R wherever an edge
// would have to carry flow the wrong way. Used after both starts.
#pragma once
#include <algorithm>
#include <cmath>

#include "potentials.hpp"

namespace otb {

// Reads the parents of an earlier tree. False if they are not one spanning tree of rows and columns.
inline bool read_basis(Workspace& w, const i32* basis) {
    Tree& t = w.tree;
    const i32 n = t.n, N = t.R;
    i32 root = -1;
    for (i32 x = 0; x < N; x++) {
        i32 p = basis[x];
        if (p == -1) {
            if (root >= 0) return false;
            root = x;
        } else if (p < 0 || p >= N || (p < n) == (x < n)) {
            return false;
        }
    }
    if (root < 0) return false;
    preorder(N, root, [basis](i32 x) { return basis[x]; }, w);
    if (static_cast<i32>(w.order.size()) != N) return false;
    for (i32 x = 0; x < N; x++) t.node[x].parent = basis[x] < 0 ? t.R : basis[x];
    w.order.insert(w.order.begin(), t.R);
    return true;
}

// Takes empty nodes out of the tree, and hangs what was below them, and below cells that are no longer
// finite, from R. w.pot continues the potentials over what was cut; w.order follows.
template <class Cost> void prune_basis(Workspace& w, const Cost& cost) {
    Tree& t = w.tree;
    bool changed = static_cast<i32>(w.rows.size()) < t.n;
    auto empty = [&](i32 x) {
        return x != t.R && (t.is_row(x) ? w.mass_a[x] : w.mass_b[x - t.n]) == 0;
    };
    auto edge = [&](i32 x, i32 p) { return t.is_row(x) ? cost.at(x, p - t.n) : cost.at(p, x - t.n); };
    for (i32 j = 0; j < t.m; j++) changed |= w.mass_b[j] == 0;
    double largest = 0;  // of the costs that count: empty nodes may have any
    if (changed)
        for (i32 x : w.order) {
            i32 p = x == t.R ? t.R : t.node[x].parent;
            if (p == t.R || empty(x) || empty(p)) continue;
            double c = std::fabs(edge(x, p));
            if (c < INF && c > largest) largest = c;
        }
    w.pot[t.R] = 0;
    for (i32 x : w.order) {  // parents first
        if (x == t.R) continue;
        i32 p = t.node[x].parent;
        if (p == t.R) {
            w.pot[x] = 0;
            continue;
        }
        double c = edge(x, p);
        bool finite = std::isfinite(c);
        t.cost[x] = finite && !((empty(x) || empty(p)) && std::fabs(c) > largest) ? c : 0.0;
        w.pot[x] = below(t, x, w.pot[p]);
        if (!finite) t.node[x].parent = t.R, changed = true;
    }
    if (!changed) return;
    for (i32 x = 0; x < t.R; x++)
        if (empty(t.node[x].parent)) t.node[x].parent = t.R;
    for (i32 x = 0; x < t.R; x++)
        if (empty(x)) t.node[x].parent = Tree::ABSENT;
    preorder(w);
}

inline void load_supply(Workspace& w) {
    const Tree& t = w.tree;
    std::copy(w.mass_a.begin(), w.mass_a.end(), w.supply.begin());
    for (i32 j = 0; j < t.m; j++) w.supply[t.n + j] = -w.mass_b[j];
    w.supply[t.R] = 0;
}

// A tree that was rooted elsewhere has edges with flow 0 that point away from the root. Moves the root
// of a balanced component to where the fewest do; one of the simplex's own trees has a root with none.
inline void choose_roots(Workspace& w) {
    Tree& t = w.tree;
    load_supply(w);
    for (std::size_t k = w.order.size(); k-- > 1;) {
        i32 x = w.order[k];
        w.supply[t.node[x].parent] += w.supply[x];
    }
    std::vector<i32>& score = w.index;  // edges with flow 0 that point to x, less those to its top
    score.assign(t.R + 1, 0);
    w.parent.clear();  // pairs (new top, old top)
    i32 best = -1, top = -1;
    auto finish = [&] {
        if (best != top && w.supply[top] == 0) w.parent.push_back(best), w.parent.push_back(top);
    };
    for (i32 x : w.order) {
        if (x == t.R) continue;
        i32 p = t.node[x].parent;
        if (p == t.R) {
            if (top >= 0) finish();
            best = top = x;
        } else {
            score[x] = score[p] + (w.supply[x] ? 0 : t.is_row(x) ? -1 : 1);
            if (score[x] > score[best]) best = x;
        }
    }
    if (top >= 0) finish();
    for (std::size_t k = 0; k < w.parent.size(); k += 2)
        reverse_path(t, w.parent[k], w.parent[k + 1], t.R, 0, 0.0, true);
    if (!w.parent.empty()) preorder(w);
}

// Flows from the leaves up. Where the edge above x can't carry its flow, x hangs from R instead.
inline void hang_infeasible(Workspace& w) {
    Tree& t = w.tree;
    load_supply(w);
    bool moved = false;
    for (std::size_t k = w.order.size(); k-- > 1;) {
        i32 x = w.order[k];
        Node& e = t.node[x];
        i64 f = w.supply[x];  // to the parent
        // upwards from a row; downwards, and not 0, to a column
        if (e.parent != t.R && (t.is_row(x) ? f < 0 : f >= 0)) e.parent = t.R, moved = true;
        if (e.parent != t.R) w.supply[e.parent] += f;
        e.flow = f < 0 ? -f : f;
        e.key = f < 0 ? 0 : 1;
    }
    if (moved) preorder(w);
}

// Brings the part of x's artificial edge that speaks against its flow up to `w.big`. False: it was there.
inline bool raise_artificial(Workspace& w, i32 x) {
    Tree& t = w.tree;
    const double amount = w.big - w.raised[x];
    if (!(amount > 0) || x == w.main) return false;  // only differences count: one edge stays as it is
    t.cost[x] += t.up(x) == t.is_row(x) ? amount : -amount;
    w.raised[x] = w.big;
    return true;
}

// The same for all artificial edges that carry flow. False: all were there.
inline bool raise_artificials(Workspace& w) {
    const Tree& t = w.tree;
    bool any = false;
    for (i32 x = 0; x < t.R; x++)
        if (t.node[x].parent == t.R && t.node[x].flow > 0) any |= raise_artificial(w, x);
    return any;
}

template <class Cost> double largest_cost(const Workspace& w, const Cost& cost) {
    double largest = 0;
    for (i32 i : w.rows) {
        const auto* c = cost.row(i);
        for (i32 j = 0; j < w.tree.m; j++) {
            double x = std::fabs(static_cast<double>(c[j]));
            if (x < INF && x > largest && w.mass_b[j]) largest = x;
        }
    }
    return largest;
}

// Artificial edges keep the potentials below them where they were, plus `big` against their flow: first
// of the order of what the potentials span, which mostly suffices; the driver raises it where not.
template <class Cost> void price_artificials(Workspace& w, const Cost& cost) {
    Tree& t = w.tree;
    i32 tops = 0;
    double low = INF, high = -INF;
    w.main = -1, w.big = 0;
    for (i32 x : w.order) {
        if (x == t.R) continue;
        low = std::min(low, w.pot[x]), high = std::max(high, w.pot[x]);
        if (t.node[x].parent != t.R) continue;
        tops++, t.cost[x] = t.is_row(x) ? w.pot[x] : -w.pot[x];
        if (w.main < 0 || t.columns(x) > t.columns(w.main)) w.main = x;
    }
    if (tops < 2) return;
    w.raised.assign(t.R + 1, 0.0);
    w.big = 2 * (high - low);
    if (!(w.big > 0)) w.big = largest_cost(w, cost);
    if (!(w.big > 0)) w.big = 1;
    raise_artificials(w);
}

// Costs of the edges and potentials of all nodes along the tree; every component starts from 0.
template <class Cost> void all_potentials(Workspace& w, const Cost& cost) {
    Tree& t = w.tree;
    w.pot[t.R] = 0;
    for (i32 x : w.order) {
        if (x == t.R) continue;
        i32 p = t.node[x].parent;
        t.cost[x] = p == t.R       ? 0.0
                    : t.is_row(x) ? edge_cost(cost, x, p - t.n)
                                  : edge_cost(cost, p, x - t.n);
        w.pot[x] = below(t, x, w.pot[p]);
    }
}

// Everything between "the parents are set" and the first pivot.
template <class Cost> void settle(Workspace& w, const Cost& cost, bool warm) {
    Tree& t = w.tree;
    if (warm) {
        choose_roots(w);
    } else {
        preorder(w);
        all_potentials(w, cost);
    }
    hang_infeasible(w);
    lay_out(w);
    price_artificials(w, cost);
    for (i32 j = 0; j < t.m; j++) t.q[j] = w.mass_b[j] ? 0.0 : INF;
    refresh_potentials(w);
}

}  // namespace otb
