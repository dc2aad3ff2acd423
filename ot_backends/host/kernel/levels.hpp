// Costs of two or more levels, a gap apart (gap.hpp). Huge cells are first left out. If the plan needs
// them after all, two passes give the lexicographic optimum of (huge, small): first the huge costs alone,
// small ones being 0; then the small ones, over the cells that the first pass leaves tight. Either side
// may have a gap of its own. At last the simplex on the costs as they are starts from that tree: it
// certifies it, or mends what was not lexicographic.
#pragma once
#include "gap.hpp"
#include "simplex.hpp"

namespace otb {

// Units of mass that the rounding to integers may have unbalanced.
inline constexpr i64 INTEGERS = TOTAL_MASS / 1000000000000;
// Reduced costs under this share of their terms are 0.
inline constexpr double TIGHT = 1e-13;

template <class Cost> class Levels {
public:
    Levels(Workspace& w, const Cost& cost, const Options& options, Stopper& stopper, SimplexCounts& counts)
        : w_(w), cost_(cost), options_(options), stopper_(stopper), counts_(counts) {}

    // After a solve of the costs as they are. Leaves an optimal tree, the same one if there is no gap.
    Status run() {
        if (!tree_has_gap(w_)) return Status::optimal;
        const double gap = size_gap(w_, cost_);
        if (gap == 0 || few_small(gap)) return Status::optimal;
        save_basis();
        Cells all(static_cast<std::size_t>(cost_.n) * cost_.m, INF);
        for (i32 i : w_.rows)
            for (i32 j = 0; j < cost_.m; j++)
                if (w_.mass_b[j]) cell(all, i, j) = cost_.at(i, j);
        Status s = level(all, options_);
        return s == Status::optimal && w_.limit == INF ? simplex(cost_, options_) : s;
    }

private:
    using Cells = std::vector<double>;

    Workspace& w_;
    const Cost& cost_;
    const Options& options_;
    Stopper& stopper_;
    SimplexCounts& counts_;
    std::vector<i32> basis_;

    double& cell(Cells& M, i32 i, i32 j) const { return M[static_cast<std::size_t>(i) * cost_.m + j]; }

    // Some tiny costs beside the bulk, as between points that coincide up to rounding: too few to leave a
    // choice among themselves, so the bulk decides, and its rounding is larger than they are.
    bool few_small(double gap) const {
        i64 small = 0;
        for (i32 i : w_.rows) {
            const auto* c = cost_.row(i);
            for (i32 j = 0; j < cost_.m; j++) small += std::fabs(static_cast<double>(c[j])) < gap;
        }
        const i64 rows = static_cast<i64>(w_.rows.size());
        return small <= std::max<i64>(rows, cost_.m) && 64 * small <= rows * cost_.m;
    }

    // The parents of the tree as a basis for the next start; empty nodes hang anywhere.
    void save_basis() {
        const Tree& t = w_.tree;
        basis_.resize(t.R);
        const i32 row = w_.rows[0], column = t.n + t.next[t.m];
        for (i32 x = 0; x < t.R; x++) {
            i32 p = t.node[x].parent;
            basis_[x] = p == t.R ? -1 : p == Tree::ABSENT ? (t.is_row(x) ? column : row) : p;
        }
    }

    template <class C> Status simplex(const C& cost, Options options) {
        if (options.max_pivots > 0) {
            options.max_pivots -= counts_.pivots;
            if (options.max_pivots <= 0) return Status::iteration_limit;
        }
        Simplex<C> simplex(w_, cost, options, stopper_);
        Status s = simplex.run(basis_.data());
        counts_.pivots += simplex.counts.pivots;
        counts_.violation = simplex.counts.violation;
        if (s == Status::optimal) save_basis();
        return s;
    }

    // basis_ becomes an optimal tree of the costs M; +inf: not allowed.
    Status level(Cells& M, const Options& options) {
        const MatrixCost<double> cost{cost_.n, cost_.m, M.data()};
        const double gap = size_gap(w_, cost);
        if (gap == 0) return simplex(cost, options);
        Cells part = M;
        if (!carries(cost, gap, options.rounding)) {
            Options strict = options;
            strict.balance = std::min(strict.balance, options.rounding);
            for (double& x : part)
                if (std::fabs(x) >= gap) x = INF;
            Status s = level(part, strict);
            if (s == Status::optimal && w_.slack > INTEGERS) {
                // The rest is feasible but for rounding of the masses, which no huge cell is to carry.
                w_.limit = std::min(w_.limit, gap);
                return s;
            }
            if (s == Status::optimal) return simplex(cost, options);
            if (s != Status::infeasible) return s;
        }

        for (std::size_t k = 0; k < M.size(); k++) part[k] = std::fabs(M[k]) < gap ? 0.0 : M[k];
        if (Status s = level(part, options); s != Status::optimal) return s;
        keep_tight(M, part, gap);
        Status s = level(part, options);
        w_.limit = INF;  // what those two left out may be needed here
        return s;
    }

    // Whether the plan at hand needs huge cells: then it's no use leaving them out.
    template <class C> bool carries(const C& cost, double gap, double rounding) const {
        const Tree& t = w_.tree;
        const i64 leak = static_cast<i64>(rounding * static_cast<double>(TOTAL_MASS));
        for (i32 x = 0; x < t.R; x++) {
            i32 p = t.node[x].parent;
            if (p < 0 || p == t.R || t.node[x].flow <= leak) continue;
            if (std::fabs(t.is_row(x) ? cost.at(x, p - t.n) : cost.at(p, x - t.n)) >= gap) return true;
        }
        return false;
    }

    // huge: the costs of the first pass, whose tree is in w_; becomes those of the second.
    void keep_tight(Cells& M, Cells& huge, double gap) {
        const Tree& t = w_.tree;
        preorder(w_);
        all_potentials(w_, MatrixCost<double>{cost_.n, cost_.m, huge.data()});
        for (i32 i : w_.rows)
            for (i32 j = 0; j < cost_.m; j++) {
                double& h = cell(huge, i, j);
                if (h == INF) continue;
                const double u = w_.pot[i], q = w_.pot[t.n + j];
                const bool edge = t.node[i].parent == t.n + j || t.node[t.n + j].parent == i;
                const bool tight = h + q - u <= TIGHT * (std::fabs(h) + std::fabs(q) + std::fabs(u));
                const double small = cell(M, i, j);
                h = !tight && !edge ? INF : std::fabs(small) < gap ? small : 0.0;
            }
    }
};

}  // namespace otb
