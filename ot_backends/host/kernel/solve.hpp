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

// Sums, integer masses and the heaviest node, into w.
inline BadCell weigh(Workspace& w, const Problem& p, const Options& options) {
    Weights& s = w.weights;
    s = Weights{};
    bool negative;
    if (i32 i = bad_weight(p.a, p.n, &negative); i >= 0)
        return {negative ? Status::weight_a_negative : Status::weight_a_not_finite, i, -1};
    if (i32 j = bad_weight(p.b, p.m, &negative); j >= 0)
        return {negative ? Status::weight_b_negative : Status::weight_b_not_finite, -1, j};
    s.sum_a = compensated_sum(p.a, p.n), s.sum_b = compensated_sum(p.b, p.m);
    s.scale = s.sum_a / s.sum_b;
    if (!(s.sum_a > 0 && s.sum_b > 0 && s.sum_a < INF && s.sum_b < INF && s.scale > 0 && s.scale < INF))
        return {Status::no_mass};
    if (options.mass_tolerance >= 0 &&
        std::fabs(s.sum_a - s.sum_b) > options.mass_tolerance * std::max(s.sum_a, s.sum_b))
        return {Status::mass_mismatch};

    double most = -1;
    for (i32 i = 0; i < p.n; i++)
        if (p.a[i] > most) most = p.a[i], s.heaviest = i;
    for (i32 j = 0; j < p.m; j++)
        if (const double x = p.b[j] * s.scale; x > most) most = x, s.heaviest = p.n + j;
    w.mass_a.resize(p.n), w.mass_b.resize(p.m);
    integer_masses(p.a, p.n, s.sum_a, p.b, p.m, s.sum_b, w.mass_a.data(), w.mass_b.data(), w.index, w.rest);
    w.rows.clear();
    for (i32 i = 0; i < p.n; i++)
        if (w.mass_a[i]) w.rows.push_back(i);
    w.whole = static_cast<i32>(w.rows.size()) == p.n &&
              std::find(w.mass_b.begin(), w.mass_b.end(), 0) == w.mass_b.end();
    s.a = p.a, s.b = p.b;
    return {};
}

template <class Cost>
void solve(Workspace& w, const Cost& cost, const Problem& p, const Options& options, Stopper& stopper,
           const Output& out) {
    auto report = [&](const BadCell& b) {
        out.status[0] = static_cast<i32>(b.status), out.status[1] = b.row, out.status[2] = b.column;
    };
    *out.iterations = 0;
    BadCell bad;
    // The problems of a batch often share their weights. A workspace lives no longer than a call, so that
    // the same address means the same numbers.
    if (w.weights.a != p.a || w.weights.b != p.b) bad = weigh(w, p, options);
    out.mass[0] = w.weights.sum_a, out.mass[1] = w.weights.sum_b;
    if (bad.status != Status::optimal) return report(bad);

    w.limit = INF;
    w.tree.resize(p.n, p.m);
    Simplex<Cost> simplex(w, cost, options, stopper);
    Status s = simplex.run(p.basis);
    if (s == Status::optimal && Cost::CODED)
        s = Levels<Cost>(w, cost, options, stopper, simplex.counts).run();
    *out.iterations =
        static_cast<i32>(std::min<i64>(simplex.counts.pivots, std::numeric_limits<i32>::max()));
    if (s != Status::optimal) return report({s, simplex.bad.row, simplex.bad.column});
    Finish<Cost>(w, cost, p.a, p.b, w.weights, out).run();
    *out.violation = simplex.counts.violation;
    report({});
}

}  // namespace otb
