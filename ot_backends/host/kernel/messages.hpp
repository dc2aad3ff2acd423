// What went wrong, in words: the same from Python and from XLA.
#pragma once
#include <cstdio>
#include <string>

#include "types.hpp"

namespace otb {

inline std::string message(Status status, i32 row, i32 column, double sum_a, double sum_b) {
    const std::string cell = "M[" + std::to_string(row) + ", " + std::to_string(column) + "]";
    const std::string ai = "a[" + std::to_string(row) + "]", bj = "b[" + std::to_string(column) + "]";
    const char* weights = ": weights must be finite and nonnegative";
    switch (status) {
        case Status::optimal:
            return "optimal";
        case Status::cost_nan:
            return cell + " is NaN: costs must be numbers where both weights are positive (+inf forbids a cell)";
        case Status::cost_minus_infinity:
            return cell + " is -inf: costs must be above -inf (+inf forbids a cell)";
        case Status::weight_a_negative:
            return ai + " is negative" + weights;
        case Status::weight_a_not_finite:
            return ai + " is NaN or infinite" + weights;
        case Status::weight_b_negative:
            return bj + " is negative" + weights;
        case Status::weight_b_not_finite:
            return bj + " is NaN or infinite" + weights;
        case Status::no_mass:
            return "the weights have no mass: sum(a) and sum(b) must be positive and finite";
        case Status::infeasible:
            return "the finite cells of M cannot carry the masses: allow more cells (fewer +inf in M), or "
                   "balance the weights of the blocks they form";
        case Status::iteration_limit:
            return "the solver stopped at its iteration limit: raise numItermax (max_iterations)";
        case Status::time_limit:
            return "the solver stopped at its time limit";
        case Status::interrupted:
            return "interrupted";
        case Status::out_of_memory:
            return "out of memory";
        case Status::stalled:
            return "the solver made no progress: the costs in M differ too much in size for float64; "
                   "write +inf for forbidden cells, or rescale M";
        case Status::mass_mismatch: {
            char text[200];
            std::snprintf(text, sizeof text,
                          "sum(a) = %.17g and sum(b) = %.17g differ: rescale one of them, or pass "
                          "check_marginals=False",
                          sum_a, sum_b);
            return text;
        }
    }
    return "unknown status";
}

}  // namespace otb
