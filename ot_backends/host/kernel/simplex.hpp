// The driver: price row by row, pivot on the best cell of a row, until a whole round finds nothing.
#pragma once
#include <cmath>

#include "check.hpp"
#include "join.hpp"
#include "masses.hpp"
#include "repair.hpp"
#include "rounding.hpp"
#include "start.hpp"
#include "stop.hpp"

namespace otb {

// A cell enters if its reduced cost is under -tolerance * (|M_ij| + |q_j| + |u_i|): relative to its own
// terms, because forbidden cells are often coded as 1e30. A few roundings of those terms.
inline constexpr double TOLERANCE = 1e-15;
// With proper bounds on rounding the simplex method ends by itself. If it doesn't within this many
// pivots, potentials are computed afresh after each, then the tolerance doubles: at last it gives up.
inline constexpr int DOUBLINGS = 20;

struct SimplexCounts {
    i64 pivots = 0, priced = 0;
    double violation = 0;  // the largest v_j + u_i - M_ij of the last round
};

template <class Cost> class Simplex {
public:
    Simplex(Workspace& w, const Cost& cost, const Options& options, Stopper& stopper)
        : w_(w), cost_(cost), options_(options), stopper_(stopper),
          loops_(row_loops<typename Cost::Cell>()), potentials_(w) {}

    SimplexCounts counts;
    BadCell bad;  // set where run() says that a cell is bad

    // The masses are in w, and what follows from them; basis may be null.
    Status run(const i32* basis) {
        Tree& t = w_.tree;
        const i32 N = t.R;
        w_.supply.resize(N + 1), w_.pot.resize(N + 1);
        w_.joined = false, w_.slack = 0;
        bool warm = basis && read_basis(w_, basis);
        if (!warm) {
            GreedyStart<Cost> start(w_, cost_, stopper_);
            bad = start.run();
            if (bad.status != Status::optimal) return bad.status;
        }
        settle(w_, cost_, warm);
        check_tree(w_);
        checked_ = warm ? 0 : w_.rows.size();
        return improve();
    }

private:
    Workspace& w_;
    const Cost& cost_;
    const Options& options_;
    Stopper& stopper_;
    RowLoops<typename Cost::Cell> loops_;
    std::size_t checked_ = 0;  // rows looked through for NaN
    Potentials potentials_;
    double factor_ = 1;  // of the tolerances
    int stalls_ = 0;     // how often patience ended
    i64 patience_ = 0;   // pivots until it ends next

    Status improve() {
        bool limit_known = false;
        double limit = 0;
        patience_ = patience();
        potentials_.refresh();
        for (;;) {
            Status s = price_rounds();
            if (s != Status::optimal) return s;
            if (w_.big == 0) return s;
            i64 flow = artificial_flow(w_);
            if (flow > 0) {
                // No finite plan needs artificial edges once they cost more than any path.
                if (!limit_known) limit = 4.0 * (w_.tree.R + 1) * largest_cost(w_, cost_), limit_known = true;
                bool raised = raise_artificials(w_);
                if (!raised && w_.big < limit) w_.big *= 8, raised = raise_artificials(w_);
                if (raised) {
                    potentials_.refresh();
                    continue;
                }
                if (static_cast<double>(flow) > options_.balance * static_cast<double>(TOTAL_MASS))
                    return Status::infeasible;
            }
            preorder(w_);
            w_.big = 0;
            if (!Join<Cost>(w_, cost_).run()) return s;
            w_.joined = true, w_.slack = flow;
            potentials_.refresh();
            check_tree(w_);
        }
    }

    // Full rounds until one finds no cell to enter; after each, rounds over the rows where one did, while
    // any still does. Potentials are computed afresh before every full round, which costs far less.
    Status price_rounds() {
        std::vector<i32> hot, rest;
        for (;;) {
            const i64 before = counts.pivots;
            counts.violation = 0;
            hot.clear();
            if (Status s = price(w_.rows, hot, true); s != Status::optimal) return s;
            if (counts.pivots == before) return Status::optimal;
            while (!hot.empty()) {
                rest.clear();
                if (Status s = price(hot, rest, false); s != Status::optimal) return s;
                std::swap(hot, rest);
            }
            potentials_.refresh();
        }
    }

    // One round over the given rows; those that had a cell to enter are appended to `hot`.
    Status price(const std::vector<i32>& rows, std::vector<i32>& hot, bool full) {
        bool quiet = full;  // no cell of the row before entered
        for (std::size_t k = 0; k < rows.size();) {
            if (quiet) {
                if (Status s = stopper_.check_some(); s != Status::optimal) return s;
                if (pass_quiet_rows(rows, &k)) continue;
            }
            const i32 i = rows[k++];
            counts.priced++;
            if (Status s = stopper_.check_some(); s != Status::optimal) return s;
            double c, r;
            i32 j = entering(i, &c, &r);
            quiet = full && j == NONE;
            if (j == BAD) return bad.status;
            if (j == NONE) continue;
            hot.push_back(i);
            potentials_.moved(r);
            if (w_.tree.pivot(i, j, c, r) < 0 && !raise_between(i, w_.tree.n + j)) return Status::stalled;
            check_tree(w_);
            if (++counts.pivots == options_.max_pivots) return Status::iteration_limit;
            if (counts.pivots > patience_) {
                patience_ += patience();
                if (stalls_++ > DOUBLINGS) return Status::stalled;
                if (stalls_ > 1) factor_ *= 2;
            }
            if (stalls_) potentials_.refresh();
        }
        return Status::optimal;
    }

    i64 patience() const { return 200 * static_cast<i64>(w_.tree.R) + 10000; }

    // A cycle through R that nothing limits: its artificial edges are too cheap. False: no price is enough.
    bool raise_between(i32 x, i32 y) {
        x = top_of(w_.tree, x), y = top_of(w_.tree, y);
        if (!(raise_artificial(w_, x) | raise_artificial(w_, y))) {
            w_.big *= 8;
            raise_artificial(w_, x), raise_artificial(w_, y);
        }
        potentials_.refresh();
        return w_.big < INF;
    }

    static constexpr i32 NONE = -1, BAD = -2, BLOCK = 8;

    // Moves k past the rows that have neither a cell to enter nor a NaN, up to the end of a block. False if
    // one was met.
    bool pass_quiet_rows(const std::vector<i32>& rows, std::size_t* k) {
        const Tree& t = w_.tree;
        double u[BLOCK];
        const i32 i = rows[*k];
        i32 count = Cost::MATRIX && static_cast<i32>(rows.size()) == t.n ? std::min(BLOCK, t.n - i) : 1;
        for (i32 l = 0; l < count; l++) u[l] = t.row_potential(i + l);
        const i32 quiet = loops_.quiet_rows(cost_.row(i), t.q.data(), t.m, u, count);
        counts.priced += quiet, *k += quiet;
        checked_ = std::min(w_.rows.size(), checked_ + quiet);
        return quiet == count;
    }

    // The best cell of row i, if it is to enter; with its cost and reduced cost.
    i32 entering(i32 i, double* cell, double* r) {
        const Tree& t = w_.tree;
        const auto* c = cost_.row(i);
        const double* q = t.q.data();
        const double u = t.row_potential(i);
        Best b;
        bool unordered = false;
        if (checked_ < w_.rows.size()) {
            checked_++;
            b = loops_.best_checked(c, q, t.m, &unordered);
        } else {
            b = loops_.best(c, q, t.m);
        }
        if (unordered || b.value == -INF) {
            bad = find_bad(i, c, q, t.m);
            if (bad.status != Status::optimal) return BAD;
        }
        *r = b.value - u;
        if (!(*r < 0)) return NONE;
        if (-*r <= tolerance() * std::fabs(u)) return passed_over(*r);
        if (!potentials_.suspect(*r) &&
            -*r > tolerance() * (std::fabs(c[b.index]) + std::fabs(q[b.index]) + std::fabs(u)))
            return *cell = c[b.index], b.index;
        if (!potentials_.fresh()) potentials_.refresh();
        return entering_closely(i, c, cell, r);
    }

    double tolerance() const { return TOLERANCE * factor_; }

    i32 passed_over(double r) {
        if (-r > counts.violation) counts.violation = -r;
        return NONE;
    }

    // The best cell of row i that rounding can't explain, neither that of its terms nor that of its cycle.
    template <class Cell> i32 entering_closely(i32 i, const Cell* c, double* cell, double* r) {
        const Tree& t = w_.tree;
        const double u = t.row_potential(i);
        i32 found = NONE;
        double best = 0, lowest = 0;
        for (i32 j = 0; j < t.m; j++) {
            const double cost = c[j], x = cost + t.q[j] - u;
            if (x < lowest) lowest = x;
            if (x < best && -x > tolerance() * (std::fabs(cost) + std::fabs(t.q[j]) + std::fabs(u)) &&
                -x > factor_ * cycle_rounding(t, i, j))
                best = x, found = j;
        }
        if (found == NONE) return passed_over(lowest);
        *r = best, *cell = c[found];
        return found;
    }
};

}  // namespace otb
