// The tree's invariants, checked after every pivot in builds with -DOTB_CHECK, nowhere else.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "layout.hpp"

namespace otb {

#ifdef OTB_CHECK
#define OTB_REQUIRE(condition)                                                              \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            std::fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition);    \
            std::abort();                                                                   \
        }                                                                                   \
    } while (0)

inline void check_tree(Workspace& w) {
    const Tree& t = w.tree;
    const i32 n = t.n, m = t.m, R = t.R;
    std::vector<i32> columns(R + 1, 0), depth(R + 1, -1);
    std::vector<i64> net(R + 1, 0);
    depth[R] = 0;
    // Every node with mass reaches R, over edges between a row and a column.
    for (i32 x = 0; x < R; x++) {
        i64 mass = x < n ? w.mass_a[x] : -w.mass_b[x - n];
        net[x] += mass;
        OTB_REQUIRE((t.node[x].parent == Tree::ABSENT) == (mass == 0));
        if (mass == 0) continue;
        i32 p = t.node[x].parent, steps = 0;
        OTB_REQUIRE(p >= 0 && p <= R && (p == R || (p < n) != (x < n)));
        for (i32 y = x; y != R; y = t.node[y].parent) OTB_REQUIRE(++steps <= R);
        for (i32 y = x; x >= n && y != R; y = t.node[y].parent) columns[y]++;
        // Flows are nonnegative, and go from rows to columns.
        OTB_REQUIRE(t.node[x].flow >= 0);
        OTB_REQUIRE(p == R || t.up(x) == (x < n));
        net[x] -= t.up(x) ? t.node[x].flow : -t.node[x].flow;
        net[p] += t.up(x) ? t.node[x].flow : -t.node[x].flow;
    }
    for (i32 x = 0; x < R; x++) {
        if (t.node[x].parent == Tree::ABSENT) continue;
        OTB_REQUIRE(std::llabs(net[x]) <= w.slack);
        OTB_REQUIRE(t.columns(x) == columns[x]);
        OTB_REQUIRE(t.node[x].key < t.node[t.node[x].parent].key);
        OTB_REQUIRE(w.joined || t.node[x].flow > 0 || t.up(x));  // strongly feasible
    }
    // The thread is a preorder: each subtree's columns are contiguous, its own first, and end at `last`.
    std::vector<i32> position(m + 1, -1);
    i32 count = 0;
    for (i32 j = m;;) {
        OTB_REQUIRE(position[j] < 0);
        position[j] = count++;
        OTB_REQUIRE(t.prev[t.next[j]] == j);
        j = t.next[j];
        if (j == m) break;
    }
    for (i32 x = 0; x <= R; x++) {
        if (x < R && (t.node[x].parent == Tree::ABSENT || t.columns(x) == 0)) continue;
        i32 size = x == R ? count : columns[x], f = t.first_column(x);
        OTB_REQUIRE(position[f] >= 0 && position[t.last[x]] == position[f] + size - 1);
    }
    for (i32 j = 0; j < m; j++)
        for (i32 x = t.n + j; x != R && t.node[x].parent >= 0; x = t.node[x].parent) {
            i32 f = position[t.first_column(x)];
            OTB_REQUIRE(position[j] >= f && position[j] < f + columns[x]);
        }
}
#else
inline void check_tree(Workspace&) {}
#endif

}  // namespace otb
