// From parents to a feasible tree: flows from the masses, and an artificial edge to R wherever an edge
// would have to carry flow the wrong way. Used after both starts.
#pragma once
#include <algorithm>
#include <cmath>

#include "potentials.hpp"

namespace otb {

// Reads the parents of an earlier tree, and begins to lay it out. False if they are not one spanning tree of rows and columns.
inline bool read_basis(Workspace& w, const i32* basis) {
    Tree& t = w.tree;
    const i32 n = t.n, N = t.R;
    i32 root = -1;
    clear_links(w, N + 1);
    auto read = [&](i32 x, i32 low, i32 high) {  // parents of x lie from low to high - 1
        i32 p = basis[x];
        if (p < low || p >= high) {
            if (p != -1 || root >= 0) return false;
            root = x, p = t.R;
        }
        t.node[x].parent = p;
        link_child(w, x, p);
        return true;
    };
    for (i32 x = N - 1; x >= n; x--)
        if (!read(x, 0, n)) return false;
    for (i32 x = n - 1; x >= 0; x--)
        if (!read(x, n, N)) return false;
    if (root < 0) return false;
    t.node[N].parent = -1;
    LayoutDown down(t);
    walk(w, N + 1, N, [&](i32 x) { down.visit(x); });
    down.close();
    return static_cast<i32>(w.order.size()) == N + 1;
}

// The costs of the edges of a tree with all rows and columns. False if one is not finite.
template <class Cost> bool read_costs(Workspace& w, const Cost& cost) {
    Tree& t = w.tree;
    double finite = 0;  // 0, or NaN once there was one that isn't
    auto read = [&](i32 x, i32 i, i32 j) {
        const double c = cost.at(i, j);
        t.cost[x] = c, finite += c - c;
    };
    for (i32 i = 0; i < t.n; i++)
        if (i32 p = t.node[i].parent; p != t.R) read(i, i, p - t.n);
    for (i32 j = 0; j < t.m; j++)
        if (i32 p = t.node[t.n + j].parent; p != t.R) read(t.n + j, p, j);
    return finite == 0;
}

// w.pot from the costs of the edges; every component starts from 0.
inline void tree_potentials(Workspace& w) {
    const Tree& t = w.tree;
    w.pot[t.R] = 0;
    for (i32 x : w.order)
        if (x != t.R) w.pot[x] = t.node[x].parent == t.R ? 0.0 : below(t, x, w.pot[t.node[x].parent]);
}

// Takes empty nodes out of the tree, and hangs what was below them, and below cells that are no longer
// finite, from R. w.pot continues the potentials over what was cut; w.order follows.
template <class Cost> void prune_basis(Workspace& w, const Cost& cost) {
    Tree& t = w.tree;
    bool changed = !w.whole;
    auto empty = [&](i32 x) {
        return x != t.R && (t.is_row(x) ? w.mass_a[x] : w.mass_b[x - t.n]) == 0;
    };
    auto edge = [&](i32 x, i32 p) { return t.is_row(x) ? cost.at(x, p - t.n) : cost.at(p, x - t.n); };
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

// Flows from the leaves up, whichever way they go. Edges that point away from the root with flow 0, which
// a strongly feasible tree doesn't have, are counted in `down`; edges against their direction set `wrong`.
// Ends what read_basis began to lay out.
struct Feasibility {
    bool wrong = false;
    i32 down = 0;
};
inline Feasibility set_flows(Workspace& w) {
    Tree& t = w.tree;
    load_supply(w);
    Feasibility r;
    const i32* order = w.order.data();
    i64* supply = w.supply.data();
    for (std::size_t k = w.order.size(); k-- > 1;) {
        const i32 x = order[k];
        Node& e = t.node[x];
        const i64 f = supply[x];  // to the parent
        const bool row = t.is_row(x), real = e.parent != t.R;
        r.wrong |= real & (row ? f < 0 : f > 0);
        r.down += real & !row & (f == 0);
        supply[e.parent] += real ? f : 0;
        e.flow = f < 0 ? -f : f;
        e.key += real ? row : f >= 0;
        layout_up(t, x);
    }
    return r;
}

// A tree that was rooted elsewhere has edges with flow 0 that point away from the root. Finds, for each
// balanced component, the top for which the fewest do; one of the simplex's own trees has one with none.
// Leaves pairs (new top, old top) in w.parent; returns how many such edges turn.
inline i32 choose_roots(Workspace& w) {
    const Tree& t = w.tree;
    std::vector<i32>& score = w.index;  // edges with flow 0 that point to x, less those to its top
    score.resize(t.R + 1);
    w.parent.clear();
    i32 best = -1, top = -1, gained = 0;
    auto finish = [&] {
        if (top < 0 || best == top || t.node[top].flow != 0) return;
        w.parent.push_back(best), w.parent.push_back(top);
        gained += score[best];
    };
    for (i32 x : w.order) {
        if (x == t.R) continue;
        i32 p = t.node[x].parent;
        if (p == t.R) {
            finish();
            best = top = x, score[x] = 0;
        } else {
            score[x] = score[p] + (t.node[x].flow ? 0 : t.is_row(x) ? -1 : 1);
            if (score[x] > score[best]) best = x;
        }
    }
    finish();
    return gained;
}

// Where the edge above x can't carry its flow, x hangs from R instead; its artificial edge takes over.
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

// The only child of R, -1 if there are more.
inline i32 only_top(const Workspace& w) {
    const Tree& t = w.tree;
    const i32 x = w.links[t.R].child;  // the last preorder was before settle_warm turned the tree, if it did
    if (w.links[x].sibling >= 0) return -1;
    return t.node[x].parent == t.R ? x : w.parent[0];
}

// Artificial edges keep the potentials below them where they were, plus `big` against their flow: first
// of the order of what the potentials span, which mostly suffices; the driver raises it where not.
template <class Cost> void price_artificials(Workspace& w, const Cost& cost) {
    Tree& t = w.tree;
    i32 tops = 0;
    double low = INF, high = -INF;
    w.main = -1, w.big = 0;
    if (const i32 x = only_top(w); x >= 0) {  // there is nothing to be artificial
        t.cost[x] = 0, w.main = x;
        return;
    }
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

// From an earlier tree, read and pruned, to one with strongly feasible flows, laid out. Most often turning
// it to another root is all that it needs. intact: prune_basis, which sets w.pot, was not needed.
inline void settle_warm(Workspace& w, bool intact) {
    Tree& t = w.tree;
    const Feasibility found = set_flows(w);
    w.parent.clear();
    const i32 turned = found.down ? choose_roots(w) : 0;
    if (!found.wrong && turned == found.down) {
        if (!intact) lay_out(w);
        for (std::size_t k = 0; k < w.parent.size(); k += 2) t.turn(w.parent[k], w.parent[k + 1]);
        return;
    }
    if (intact) tree_potentials(w);
    for (std::size_t k = 0; k < w.parent.size(); k += 2)
        reverse_path(t, w.parent[k], w.parent[k + 1], t.R, 0, 0.0, true);
    if (!w.parent.empty()) preorder(w);
    hang_infeasible(w);
    lay_out(w);
}

// Everything between "the parents are set" and the first pivot, except the potentials.
template <class Cost> void settle(Workspace& w, const Cost& cost, bool warm) {
    Tree& t = w.tree;
    if (warm) {
        const bool intact = w.whole && read_costs(w, cost);
        if (!intact) prune_basis(w, cost);
        settle_warm(w, intact);
    } else {
        preorder(w);
        all_potentials(w, cost);
        hang_infeasible(w);
        lay_out(w);
    }
    price_artificials(w, cost);
    for (i32 j = 0; j < t.m; j++) t.q[j] = w.mass_b[j] ? 0.0 : INF;
}

}  // namespace otb
