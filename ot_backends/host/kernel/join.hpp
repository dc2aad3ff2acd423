// Joins what still hangs from R separately, once no artificial edge carries flow, by edges with flow 0:
// Prim's algorithm on reduced costs. Among the cells between the joined part S and the rest, the one with
// the smallest reduced cost becomes an edge, and the potentials of the whole rest move so that it is 0
// there; no reduced cost becomes negative. Where no finite cell is left, a virtual edge joins.
#pragma once
#include <cmath>

#include "potentials.hpp"

namespace otb {

template <class Cost> class Join {
public:
    Join(Workspace& w, const Cost& cost) : w_(w), cost_(cost), t_(w.tree) {}

    // Leaves one child of R, with potential 0, and fresh potentials. False: nothing was to be done.
    bool run() {
        label();
        const i32 n = t_.n, m = t_.m, count = static_cast<i32>(tops_.size());
        if (count == 1 && below(t_, tops_[0], t_.q[m]) == 0) return false;
        into_.assign(m, {INF, -1}), out_.assign(n, {INF, -1});
        for (i32 c = 0, step = 1;; step++) {
            add(c);
            if (step == count) break;
            Edge e = cheapest();
            c = connect(e);
        }
        preorder(w_);
        lay_out(w_);
        for (i32 x : w_.order)
            if (x != t_.R && t_.node[x].parent == t_.R) t_.cost[x] = 0;
        w_.main = -1;
        refresh_potentials(w_);
        return true;
    }

private:
    struct Reach {
        double slack;  // the reduced cost without the shift, so that it stays when the rest moves
        i32 from;
    };
    struct Edge {
        i32 i, j;
    };
    Workspace& w_;
    const Cost& cost_;
    Tree& t_;
    std::vector<i32> tops_, part_;            // components; the component of each node, -1: none
    std::vector<std::vector<i32>> members_;
    std::vector<char> joined_;                // of each component
    std::vector<Reach> into_, out_;           // cells from S to column j, from row i to S
    double shift_ = 0;                        // what q and u of the rest have moved by, downwards

    void label() {
        part_.assign(t_.R + 1, -1);
        for (i32 x : w_.order) {
            if (x == t_.R) continue;
            i32 p = t_.node[x].parent;
            if (p == t_.R) part_[x] = static_cast<i32>(tops_.size()), tops_.push_back(x);
            else part_[x] = part_[p];
        }
        members_.resize(tops_.size());
        joined_.assign(tops_.size(), 0);
        for (i32 x : w_.order)
            if (x != t_.R) members_[part_[x]].push_back(x);
        w_.pot[t_.R] = 0;
        for (i32 i : w_.rows) w_.pot[i] = t_.row_potential(i);
    }

    bool outside(i32 x) const { return part_[x] >= 0 && !joined_[part_[x]]; }

    // Component c joins S; its potentials stay where the shift has brought them.
    void add(i32 c) {
        joined_[c] = 1;
        for (i32 x : members_[c]) {
            if (t_.is_row(x)) {
                const auto* row = cost_.row(x);
                double u = w_.pot[x] - shift_;
                for (i32 j = 0; j < t_.m; j++)
                    if (outside(t_.n + j)) {
                        double s = static_cast<double>(row[j]) + t_.q[j] - u;
                        if (s < into_[j].slack) into_[j] = {s, x};
                    }
            } else {
                i32 j = x - t_.n;
                double q = t_.q[j] - shift_;
                for (i32 i : w_.rows)
                    if (outside(i)) {
                        double s = cost_.at(i, j) + q - w_.pot[i];
                        if (s < out_[i].slack) out_[i] = {s, j};
                    }
            }
        }
    }

    // The smallest reduced cost: M + (q_j - shift) - u_i into the rest, M + q_j - (u_i - shift) out of it.
    Edge cheapest() {
        double low = INF;
        Edge e{-1, -1};
        for (i32 j = 0; j < t_.m; j++)
            if (outside(t_.n + j) && into_[j].slack - shift_ < low)
                low = into_[j].slack - shift_, e = {into_[j].from, j};
        bool entering = true;
        for (i32 i : w_.rows)
            if (outside(i) && out_[i].slack + shift_ < low)
                low = out_[i].slack + shift_, e = {i, out_[i].from}, entering = false;
        if (e.i >= 0) {
            shift_ += entering ? low : -low;
            return e;
        }
        return virtual_edge();
    }

    // Any row and column on different sides; S holds one of each kind, or one of them only.
    Edge virtual_edge() const {
        i32 row_in = -1, row_out = -1, col_in = -1, col_out = -1;
        for (i32 i : w_.rows) (outside(i) ? row_out : row_in) = i;
        for (i32 j = 0; j < t_.m; j++)
            if (part_[t_.n + j] >= 0) (outside(t_.n + j) ? col_out : col_in) = j;
        if (row_in >= 0 && col_out >= 0) return {row_in, col_out};
        return {row_out, col_in};
    }

    // Hangs the outside component at its end of the edge; returns it.
    i32 connect(Edge e) {
        bool row_joined = !outside(e.i);
        i32 x = row_joined ? t_.n + e.j : e.i, above = row_joined ? e.i : t_.n + e.j;
        reverse_path(t_, x, tops_[part_[x]], above, 0, edge_cost(cost_, e.i, e.j), t_.is_row(x));
        return part_[x];
    }
};

// Artificial edges with flow, apart from what rounding leaves between blocks that no finite cell joins.
inline i64 artificial_flow(const Workspace& w) {
    const Tree& t = w.tree;
    i64 in = 0, out = 0;
    for (i32 i : w.rows)
        if (t.node[i].parent == t.R) (t.up(i) ? in : out) += t.node[i].flow;
    for (i32 j = 0; j < t.m; j++)
        if (w.mass_b[j] && t.node[t.n + j].parent == t.R)
            (t.up(t.n + j) ? in : out) += t.node[t.n + j].flow;
    return in > out ? in : out;
}

}  // namespace otb
