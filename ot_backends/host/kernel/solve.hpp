// One problem from weights to result.
#pragma once
#include "finish.hpp"
#include "levels.hpp"

namespace otb {

// Finds a weight that is negative, NaN or infinite.
inline i32 bad_weight(const double* x, i32 n, bool* negative) {
    for (i32 k = 0; k < n; k++)
        if (!(x[k] >= 0 && x[k] < INF)) {
            *negative = x[k] < 0;
            return k;
        }
    return -1;
}

template <class Cost>
void solve(Workspace& w, const Cost& cost, const Problem& p, const Options& options, Stopper& stopper,
           const Output& out) {
    auto fail = [&](Status s, i32 row, i32 column) {
        out.status[0] = static_cast<i32>(s), out.status[1] = row, out.status[2] = column;
    };
    *out.iterations = 0;
    out.mass[0] = out.mass[1] = 0;
    bool negative;
    if (i32 i = bad_weight(p.a, p.n, &negative); i >= 0)
        return fail(negative ? Status::weight_a_negative : Status::weight_a_not_finite, i, -1);
    if (i32 j = bad_weight(p.b, p.m, &negative); j >= 0)
        return fail(negative ? Status::weight_b_negative : Status::weight_b_not_finite, -1, j);
    const double sum_a = compensated_sum(p.a, p.n), sum_b = compensated_sum(p.b, p.m);
    const double scale = sum_a / sum_b;
    out.mass[0] = sum_a, out.mass[1] = sum_b;
    if (!(sum_a > 0 && sum_b > 0 && sum_a < INF && sum_b < INF && scale > 0 && scale < INF))
        return fail(Status::no_mass, -1, -1);

    if (options.mass_tolerance >= 0 &&
        std::fabs(sum_a - sum_b) > options.mass_tolerance * std::max(sum_a, sum_b))
        return fail(Status::mass_mismatch, -1, -1);

    w.limit = INF;
    w.tree.resize(p.n, p.m);
    w.mass_a.resize(p.n), w.mass_b.resize(p.m);
    integer_masses(p.a, p.n, sum_a, p.b, p.m, sum_b, w.mass_a.data(), w.mass_b.data(), w.index, w.rest);
    w.rows.clear();
    for (i32 i = 0; i < p.n; i++)
        if (w.mass_a[i]) w.rows.push_back(i);
    w.whole = static_cast<i32>(w.rows.size()) == p.n &&
              std::find(w.mass_b.begin(), w.mass_b.end(), 0) == w.mass_b.end();
    Simplex<Cost> simplex(w, cost, options, stopper);
    Status s = simplex.run(p.basis);
    if (s == Status::optimal && Cost::CODED)
        s = Levels<Cost>(w, cost, options, stopper, simplex.counts).run();
    *out.iterations =
        static_cast<i32>(std::min<i64>(simplex.counts.pivots, std::numeric_limits<i32>::max()));
    if (s != Status::optimal) return fail(s, simplex.bad.row, simplex.bad.column);
    Finish<Cost>(w, cost, p.a, p.b, scale, sum_b, out).run();
    *out.violation = simplex.counts.violation;
    fail(Status::optimal, -1, -1);
}

}  // namespace otb
