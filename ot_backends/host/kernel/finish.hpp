// From the optimal tree to the result: empty rows and columns as leaves, the root at the heaviest node,
// and flows, potentials and value in float64 from the caller's own weights.
#pragma once
#include <algorithm>
#include <cmath>

#include "simplex.hpp"

namespace otb {

template <class Cost> class Finish {
public:
    // a, b: the weights; their scale = sum(a) / sum(b), so that b' = b * scale
    Finish(Workspace& w, const Cost& cost, const double* a, const double* b, const Weights& s,
           const Output& out)
        : w_(w), cost_(cost), t_(w.tree), n_(t_.n), N_(t_.R), a_(a), b_(b), scale_(s.scale),
          sum_b_(s.sum_b), heaviest_(s.heaviest), out_(out), parent_(out.parent) {}

    void run() {
        const i32 R = t_.R;
        for (i32 x = 0; x < N_; x++) {
            const i32 p = t_.node[x].parent;
            parent_[x] = p == R ? -1 : p;
        }
        if (!w_.whole) {
            hang_empty_rows();
            hang_empty_columns();
            for (i32 x = 0; x < N_; x++)
                if (t_.node[x].parent == Tree::ABSENT)
                    t_.cost[x] = edge_cost(cost_, row_of(x), column_of(x));
        }
        root_at_heaviest();
        write_tree_and_flows();
        write_potentials();
    }

private:
    Workspace& w_;
    const Cost& cost_;
    Tree& t_;
    const i32 n_, N_;
    const double *a_, *b_;
    const double scale_, sum_b_;
    const i32 heaviest_;
    const Output& out_;
    i32* const parent_;  // where the result's parents go

    // On the column with mass that minimises M_ij - v_j, so that u_i is that minimum; on any of them if
    // no cell is finite.
    void hang_empty_rows() {
        if (static_cast<i32>(w_.rows.size()) == n_) return;
        auto loops = row_loops<typename Cost::Cell>();
        for (i32 i = 0; i < n_; i++) {
            if (w_.mass_a[i]) continue;
            const auto* c = cost_.row(i);
            Best b = loops.best(c, t_.q.data(), t_.m);
            if (b.value == -INF) b = best_finite(c);
            parent_[i] = n_ + (b.index >= 0 ? b.index : t_.next[t_.m]);
        }
    }

    template <class Cell> Best best_finite(const Cell* c) const {
        Best b;
        for (i32 j = 0; j < t_.m; j++) {
            double x = static_cast<double>(c[j]) + t_.q[j];
            if (x < b.value && x > -INF) b = {x, j};
        }
        return b;
    }

    // The same for columns, in one pass over the rows.
    void hang_empty_columns() {
        std::vector<i32>& empty = w_.index;
        empty.clear();
        for (i32 j = 0; j < t_.m; j++)
            if (!w_.mass_b[j]) empty.push_back(j);
        if (empty.empty()) return;
        std::vector<double> low(empty.size(), INF);
        for (i32 j : empty) parent_[n_ + j] = w_.rows[0];
        for (i32 i : w_.rows) {
            const auto* c = cost_.row(i);
            const double u = t_.row_potential(i);
            for (std::size_t k = 0; k < empty.size(); k++) {
                double x = static_cast<double>(c[empty[k]]) - u;
                if (x < low[k] && x > -INF) low[k] = x, parent_[n_ + empty[k]] = i;
            }
        }
    }

    // And the potentials, 0 at the root.
    void root_at_heaviest() {
        double c = 0;
        for (i32 x = heaviest_, above = -1; x >= 0;) {
            std::swap(c, t_.cost[x]);
            std::swap(above, parent_[x]);
            std::swap(above, x);
        }
        clear_links(w_, N_);
        for (i32 x = N_; x-- > 0;)
            if (x != heaviest_) link_child(w_, x, parent_[x]);
        double* p = w_.pot.data();
        p[heaviest_] = 0;
        walk(w_, N_, heaviest_, [&](i32 x) {
            if (x != heaviest_) p[x] = below(t_, x, p[parent_[x]]);
        });
    }

    i32 row_of(i32 x) const { return x < n_ ? x : parent_[x]; }
    i32 column_of(i32 x) const { return (x < n_ ? parent_[x] : x) - n_; }

    // From the leaves up. The flow on the edge above x is the net supply of the subtree below it; value =
    // <flow, M>. What the blocks on both sides of a virtual edge lack or have too much ends at their own
    // top nodes.
    void write_tree_and_flows() {
        const i32* order = w_.order.data();
        std::vector<double>& net = w_.sums;
        net.resize(N_), w_.size.assign(N_, 1);
        i32* sizes = w_.size.data();
        double* nets = net.data();
        const Output out = out_;
        const i32* parent = parent_;
        for (i32 i = 0; i < n_; i++) net[i] = a_[i];
        for (i32 j = 0; j < t_.m; j++) net[n_ + j] = -(b_[j] * scale_);
        const double limit = w_.limit;
        double value = 0;
        for (i32 k = N_ - 1; k > 0; k--) {
            const i32 x = order[k], p = parent[x], size = sizes[x];
            const bool row = x < n_;
            const i32 i = row ? x : p, j = (row ? p : x) - n_;
            const double c = cost_.at(i, j);
            const bool is_virtual = !(std::fabs(c) < limit);  // the limit is at most +inf
            sizes[p] += size;
            const double kept = is_virtual ? 0.0 : nets[x];
            nets[p] += kept;
            double f = row ? kept : -kept;
            f = f > 0 ? f : 0.0;  // under 0 only by rounding
            value += f * t_.cost[x];
            out.order[k] = x, out.size[k] = size;
            out.rows[k - 1] = i, out.cols[k - 1] = j;
            out.is_virtual[k - 1] = is_virtual, out.flow[k - 1] = f;
        }
        out.order[0] = order[0], out.size[0] = N_;
        *out.value = value;
    }

    // u_i + v_j = M_ij on the tree, with <v, b'> = 0; 0 for empty nodes without a finite cell.
    void write_potentials() {
        const double* p = w_.pot.data();
        double mean = 0;  // <v, b> / sum(b)
        for (i32 j = 0; j < t_.m; j++) mean -= p[n_ + j] * b_[j];
        mean /= sum_b_;
        double dual = 0, dual_b = 0;
        for (i32 i = 0; i < n_; i++) {
            bool loose = !w_.whole && !w_.mass_a[i] && !std::isfinite(cost_.at(i, parent_[i] - n_));
            out_.u[i] = loose ? 0.0 : p[i] + mean;
            dual += out_.u[i] * a_[i];
        }
        for (i32 j = 0; j < t_.m; j++) {
            bool loose = !w_.whole && !w_.mass_b[j] && !std::isfinite(cost_.at(parent_[n_ + j], j));
            out_.v[j] = loose ? 0.0 : -p[n_ + j] - mean;
            dual_b += out_.v[j] * (b_[j] * scale_);
        }
        *out_.dual = dual + dual_b;
    }
};

}  // namespace otb
