// From the optimal tree to the result: empty rows and columns as leaves, the root at the heaviest node,
// and flows, potentials and value in float64 from the caller's own weights.
#pragma once
#include <algorithm>
#include <cmath>

#include "simplex.hpp"

namespace otb {

template <class Cost> class Finish {
public:
    // a, b: the weights; scale = sum(a) / sum(b), so that b' = b * scale
    Finish(Workspace& w, const Cost& cost, const double* a, const double* b, double scale,
           double sum_b, const Output& out)
        : w_(w), cost_(cost), t_(w.tree), n_(t_.n), N_(t_.R), a_(a), b_(b), scale_(scale),
          sum_b_(sum_b), out_(out) {}

    void run() {
        w_.parent.resize(N_), w_.size.resize(N_);
        for (i32 x = 0; x < N_; x++) w_.parent[x] = t_.node[x].parent == t_.R ? -1 : t_.node[x].parent;
        hang_empty_rows();
        hang_empty_columns();
        for (i32 x = 0; x < N_; x++)
            if (t_.node[x].parent == Tree::ABSENT) t_.cost[x] = edge_cost(cost_, row_of(x), column_of(x));
        root_at_heaviest();
        write_tree();
        write_flows();
        write_potentials();
    }

private:
    Workspace& w_;
    const Cost& cost_;
    Tree& t_;
    const i32 n_, N_;
    const double *a_, *b_;
    const double scale_, sum_b_;
    const Output& out_;

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
            w_.parent[i] = n_ + (b.index >= 0 ? b.index : t_.next[t_.m]);
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
        for (i32 j : empty) w_.parent[n_ + j] = w_.rows[0];
        for (i32 i : w_.rows) {
            const auto* c = cost_.row(i);
            const double u = t_.row_potential(i);
            for (std::size_t k = 0; k < empty.size(); k++) {
                double x = static_cast<double>(c[empty[k]]) - u;
                if (x < low[k] && x > -INF) low[k] = x, w_.parent[n_ + empty[k]] = i;
            }
        }
    }

    void root_at_heaviest() {
        i32 heaviest = 0;
        double most = -1;
        for (i32 x = 0; x < N_; x++) {
            double weight = x < n_ ? a_[x] : b_[x - n_] * scale_;
            if (weight > most) most = weight, heaviest = x;
        }
        double c = 0;
        for (i32 x = heaviest, above = -1; x >= 0;) {
            std::swap(c, t_.cost[x]);
            std::swap(above, w_.parent[x]);
            std::swap(above, x);
        }
        clear_links(w_, N_);
        for (i32 x = N_; x-- > 0;)
            if (x != heaviest) link_child(w_, x, w_.parent[x]);
        walk(w_, N_, heaviest);
    }

    i32 row_of(i32 x) const { return x < n_ ? x : w_.parent[x]; }
    i32 column_of(i32 x) const { return (x < n_ ? w_.parent[x] : x) - n_; }

    void write_tree() {
        std::copy(w_.parent.begin(), w_.parent.end(), out_.parent);
        std::copy(w_.order.begin(), w_.order.end(), out_.order);
        std::fill(w_.size.begin(), w_.size.end(), 1);
        for (i32 k = N_ - 1; k > 0; k--) {
            i32 x = w_.order[k];
            w_.size[w_.parent[x]] += w_.size[x];
            const i32 i = row_of(x), j = column_of(x);
            out_.rows[k - 1] = i, out_.cols[k - 1] = j;
            const double c = cost_.at(i, j);
            out_.is_virtual[k - 1] = !std::isfinite(c) || std::fabs(c) >= w_.limit;
        }
        for (i32 k = 0; k < N_; k++) out_.size[k] = w_.size[w_.order[k]];
    }

    // flow on the edge above x = the net supply of the subtree below it; value = <flow, M>. What the
    // blocks on both sides of a virtual edge lack or have too much ends at their own top nodes.
    void write_flows() {
        std::vector<double>& net = w_.sums;
        net.resize(N_);
        for (i32 x = 0; x < N_; x++) net[x] = x < n_ ? a_[x] : -(b_[x - n_] * scale_);
        double value = 0;
        for (i32 k = N_ - 1; k > 0; k--) {
            i32 x = w_.order[k];
            if (out_.is_virtual[k - 1]) {
                out_.flow[k - 1] = 0;
                continue;
            }
            net[w_.parent[x]] += net[x];
            double f = x < n_ ? net[x] : -net[x];
            f = f > 0 ? f : 0.0;  // under 0 only by rounding
            out_.flow[k - 1] = f;
            value += f * t_.cost[x];
        }
        *out_.value = value;
    }

    // u_i + v_j = M_ij on the tree, with <v, b'> = 0; 0 for empty nodes without a finite cell.
    void write_potentials() {
        std::vector<double>& p = w_.pot;
        p[w_.order[0]] = 0;
        double mean = 0;  // <v, b> / sum(b)
        auto weigh = [&](i32 x) {
            if (x >= n_) mean -= p[x] * (b_[x - n_] / sum_b_);
        };
        weigh(w_.order[0]);
        for (i32 k = 1; k < N_; k++) {
            i32 x = w_.order[k];
            p[x] = below(t_, x, p[w_.parent[x]]);
            weigh(x);
        }
        double dual = 0;
        for (i32 i = 0; i < n_; i++) {
            bool loose = !w_.mass_a[i] && !std::isfinite(cost_.at(i, w_.parent[i] - n_));
            out_.u[i] = loose ? 0.0 : p[i] + mean;
            dual += out_.u[i] * a_[i];
        }
        for (i32 j = 0; j < t_.m; j++) {
            bool loose = !w_.mass_b[j] && !std::isfinite(cost_.at(w_.parent[n_ + j], j));
            out_.v[j] = loose ? 0.0 : -p[n_ + j] - mean;
            dual += out_.v[j] * (b_[j] * scale_);
        }
        *out_.dual = dual;
    }
};

}  // namespace otb
