// Names shared by the kernel's files: integer types, status codes, limits, and the arrays of one problem.
#pragma once
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

namespace otb {

using i32 = std::int32_t;
using i64 = std::int64_t;

inline constexpr double INF = std::numeric_limits<double>::infinity();

// Memory that starts with a cache line, for what the widest vectors read: half of theirs would cross one.
template <class T> struct LineAllocator {
    using value_type = T;
    static constexpr std::align_val_t LINE{64};
    LineAllocator() = default;
    template <class U> LineAllocator(const LineAllocator<U>&) {}
    T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), LINE)); }
    void deallocate(T* p, std::size_t) { ::operator delete(p, LINE); }
    template <class U> bool operator==(const LineAllocator<U>&) const { return true; }
    template <class U> bool operator!=(const LineAllocator<U>&) const { return false; }
};
using Row = std::vector<double, LineAllocator<double>>;

// What became of a problem. Everything but `optimal` leaves the numbers of the result undefined.
enum class Status : i32 {
    optimal = 0,
    cost_nan = 1,             // where = (row, column), both with mass
    cost_minus_infinity = 2,  // where = (row, column), both with mass
    weight_a_negative = 3,    // where = (row, -1)
    weight_a_not_finite = 4,  // where = (row, -1)
    weight_b_negative = 5,    // where = (-1, column)
    weight_b_not_finite = 6,  // where = (-1, column)
    no_mass = 7,              // sum(a) or sum(b) is 0, or overflows
    infeasible = 8,           // the finite cells of M cannot carry the masses
    iteration_limit = 9,
    time_limit = 10,
    interrupted = 11,
    out_of_memory = 12,
    mass_mismatch = 13,
    stalled = 14,
};

struct Options {
    i64 max_pivots = 0;        // 0: none
    double time_limit = 0;     // seconds for the whole call; 0: none
    double balance = 1e-9;     // share of the mass that blocks of allowed cells may lack
    double mass_tolerance = -1;  // how far sum(a) and sum(b) may differ, relative; < 0: not checked
    double rounding = 1e-12;     // share of the mass that is rounding: no reason to use a huge cell
};

// One problem: weights and, possibly, the parents of an earlier optimal tree.
struct Problem {
    i32 n, m;
    const double* a;
    const double* b;
    const i32* basis;  // (n + m), or null
};

// Where one result goes. N = n + m; nodes are rows 0..n-1 and columns n..N-1.
struct Output {
    i32* status;        // (3) Status, row, column
    double* value;      // () sum of flow * M over the tree
    double* u;          // (n)
    double* v;          // (m)
    double* flow;       // (N-1) flow of the edge above the node at preorder position k + 1
    i32* rows;          // (N-1) its row
    i32* cols;          // (N-1) its column
    i32* order;         // (N) nodes in preorder
    i32* size;          // (N) size of the subtree of the node at each preorder position
    bool* is_virtual;   // (N-1) whether the edge lies on a cell that is not finite: no flow, cost 0
    i32* parent;        // (N) parent of each node, -1 at the root: the `basis` of the next call
    double* dual;       // () <u, a> + <v, b'>
    double* violation;  // () the largest u_i + v_j - M_ij, at least 0
    i32* iterations;    // () pivots, at most 2^31 - 1
    double* mass;       // (2) sum(a), sum(b)

    // The arrays of problem k of a batch; *this points to those of the first.
    Output at(i64 k, i64 n, i64 m) const {
        const i64 N = n + m, E = N - 1;
        return {status + 3 * k, value + k,          u + k * n,  v + k * m,     flow + k * E,
                rows + k * E,   cols + k * E,       order + k * N, size + k * N, is_virtual + k * E,
                parent + k * N, dual + k,           violation + k, iterations + k, mass + 2 * k};
    }
};

}  // namespace otb
