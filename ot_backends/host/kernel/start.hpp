// The cold start: dual potentials from row and column minima, then a greedy plan.
//
//     u_i = min_j M_ij,   v_j = min_i (M_ij - u_i)
//     rows in descending order of regret (second smallest - smallest M_ij - v_j), each takes its cheapest
//     columns by M_ij - v_j
//
// Every assignment closes the row or the column that it exhausts, so the assignments form a forest whose
// components have one open node each; those hang from R. Ties are broken as if every row had an
// infinitesimal mass more (the columns' share of it is the second number of the pairs below), which makes
// the tree strongly feasible.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>

#include "costs.hpp"
#include "layout.hpp"
#include "stop.hpp"

namespace otb {

struct BadCell {
    Status status = Status::optimal;
    i32 row = -1, column = -1;
};

// Finds the NaN or -inf that a row loop has met. Columns without mass (q = +inf) may hold anything.
template <class Cell> BadCell find_bad(i32 i, const Cell* c, const double* q, i32 m) {
    for (i32 j = 0; j < m; j++) {
        if (q[j] == INF) continue;
        if (std::isnan(c[j])) return {Status::cost_nan, i, j};
        if (static_cast<double>(c[j]) == -INF) return {Status::cost_minus_infinity, i, j};
    }
    return {};
}

template <class Cost> class GreedyStart {
public:
    GreedyStart(Workspace& w, const Cost& cost, Stopper& stopper)
        : w_(w), cost_(cost), stopper_(stopper), loops_(row_loops<typename Cost::Cell>()) {}

    BadCell run() {
        BadCell bad = column_potentials();
        if (bad.status != Status::optimal) return bad;
        bad.status = sort_rows();
        if (bad.status == Status::optimal) bad.status = assign();
        return bad;
    }

private:
    Workspace& w_;
    const Cost& cost_;
    Stopper& stopper_;
    RowLoops<typename Cost::Cell> loops_;
    std::vector<std::pair<i32, i32>> edges_;

    // Leaves q_j = -v_j in the tree, +inf for empty columns. Looks at every cell for NaN and -inf.
    BadCell column_potentials() {
        Tree& t = w_.tree;
        const i32 m = t.m;
        std::vector<double>& v = w_.sums;
        v.assign(m, INF);
        for (i32 j = 0; j < m; j++) t.q[j] = w_.mass_b[j] ? 0.0 : INF;
        for (i32 i : w_.rows) {
            if (Status s = stopper_.check_some(); s != Status::optimal) return {s};
            const auto* c = cost_.row(i);
            bool unordered;
            Best u = loops_.best_checked(c, t.q.data(), m, &unordered);
            if (unordered || u.value == -INF) {
                BadCell bad = find_bad(i, c, t.q.data(), m);
                if (bad.status != Status::optimal) return bad;
            }
            if (u.value < INF) loops_.lower(c, u.value, v.data(), m);
        }
        for (i32 j = 0; j < m; j++)
            if (w_.mass_b[j]) t.q[j] = v[j] < INF ? -v[j] : 0.0;
        return {};
    }

    Status sort_rows() {
        w_.rest.resize(w_.tree.n);
        for (i32 i : w_.rows) {
            if (Status s = stopper_.check_some(); s != Status::optimal) return s;
            TwoBest r = loops_.two_best(cost_.row(i), w_.tree.q.data(), w_.tree.m);
            w_.rest[i] = r.second < INF ? r.second - r.best.value : INF;
        }
        w_.index = w_.rows;
        std::stable_sort(w_.index.begin(), w_.index.end(),
                         [&](i32 s, i32 t) { return w_.rest[s] > w_.rest[t]; });
        return Status::optimal;
    }

    Status assign() {
        Tree& t = w_.tree;
        const i32 n = t.n, m = t.m;
        std::vector<i64>& left = w_.supply;  // what each node still has
        std::vector<i64> extra(n + m, 0);    // and how many infinitesimals
        std::copy(w_.mass_a.begin(), w_.mass_a.end(), left.begin());
        std::copy(w_.mass_b.begin(), w_.mass_b.end(), left.begin() + n);
        for (i32 i : w_.rows) extra[i] = 1;
        for (i32 j = m; j-- > 0;)
            if (w_.mass_b[j]) {
                extra[n + j] = static_cast<i64>(w_.rows.size());
                break;
            }
        std::vector<i32> open;
        Row q = t.q;  // +inf once closed
        edges_.clear();
        for (i32 i : w_.index) {
            if (Status s = stopper_.check_some(); s != Status::optimal) return s;
            const auto* c = cost_.row(i);
            for (;;) {
                Best b = loops_.best(c, q.data(), m);
                if (b.index < 0) {  // what is left of the row has nowhere to go
                    open.push_back(i);
                    break;
                }
                i32 y = n + b.index;
                edges_.push_back({i, y});
                if (left[i] < left[y] || (left[i] == left[y] && extra[i] <= extra[y])) {
                    left[y] -= left[i], extra[y] -= extra[i];
                    break;
                }
                left[i] -= left[y], extra[i] -= extra[y];
                q[b.index] = INF;
            }
        }
        for (i32 j = 0; j < m; j++)
            if (q[j] < INF) open.push_back(n + j);
        hang(open);
        return Status::optimal;
    }

    // Parents from the assignments, by a search from the open nodes.
    void hang(const std::vector<i32>& open) {
        Tree& t = w_.tree;
        const i32 N = t.R;
        std::vector<i32> begin(N + 2, 0), to(2 * edges_.size());
        for (auto [i, y] : edges_) begin[i + 1]++, begin[y + 1]++;
        for (i32 x = 0; x < N; x++) begin[x + 1] += begin[x];
        std::vector<i32> at(begin.begin(), begin.begin() + N);
        for (auto [i, y] : edges_) to[at[i]++] = y, to[at[y]++] = i;
        for (i32 x = 0; x < N; x++) t.node[x].parent = Tree::ABSENT;
        std::vector<i32>& stack = w_.index;
        stack = open;
        for (i32 x : open) t.node[x].parent = t.R;
        while (!stack.empty()) {
            i32 x = stack.back();
            stack.pop_back();
            for (i32 k = begin[x]; k < begin[x + 1]; k++)
                if (t.node[to[k]].parent == Tree::ABSENT) {
                    t.node[to[k]].parent = x;
                    stack.push_back(to[k]);
                }
        }
    }
};

}  // namespace otb
