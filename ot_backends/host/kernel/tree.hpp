// The spanning tree of the simplex method, hung from an artificial root R.
//
// Nodes: rows 0..n-1, columns n..n+m-1, R = n+m. An edge is named by its lower node (its child). Edges
// between a row and a column always carry flow from the row to the column: upwards where the child is
// a row, downwards where it is a column. Edges to R carry flow either way.
//
// The tree is strongly feasible (Cunningham 1976): every edge with flow 0 points up, to the root. The
// last blocking edge of the cycle leaves, which keeps it so, and then no sequence of degenerate pivots
// can cycle.
//
// The preorder list ("thread") holds the columns only. Row potentials are not stored: u_i follows from
// the column above row i and the cost of the edge to it. So a pivot that moves a leaf row touches one node, and moving a
// subtree costs its number of columns. The columns of a subtree are contiguous in the thread, those of
// a row right after the column above it, and R is the list's sentinel, as column number m.
#pragma once
#include <vector>

#include "types.hpp"

namespace otb {

inline constexpr i64 NO_LIMIT = i64{1} << 62;

struct Node {
    i64 flow;    // on the edge to the parent, >= 0
    i32 parent;  // -1 at R, ABSENT for an empty row or column
    i32 key;     // 4 * columns in the subtree + 2 * is_row + (flow goes up); grows strictly upwards
};

class Tree {
public:
    static constexpr i32 ABSENT = -2;

    i32 n = 0, m = 0, R = 0;
    std::vector<Node> node;       // (N + 1)
    std::vector<double> cost;     // (N + 1) of the edge to the parent
    std::vector<i32> next, prev;  // (m + 1) the thread
    std::vector<i32> first;       // (N + 1) first column of a row's subtree; meaningless for other nodes
    std::vector<i32> last;        // (N + 1) last column of the subtree; meaningless for a leaf row
    Row q;                        // (m + 1) q_j = -v_j, and the potential of R; +inf: an empty column

    void resize(i32 rows, i32 columns) {
        n = rows, m = columns, R = n + m;
        node.resize(R + 1), cost.resize(R + 1), last.resize(R + 1), first.resize(R + 1);
        next.resize(m + 1), prev.resize(m + 1), q.resize(m + 1);
    }

    bool is_row(i32 x) const { return x < n; }
    bool up(i32 x) const { return node[x].key & 1; }
    i32 columns(i32 x) const { return node[x].key >> 2; }
    i32 first_column(i32 x) const { return x < n ? first[x] : x - n; }

    // u_i, from M_ij + q_j - u_i = 0 on the edge to the column above; R counts as a column.
    double row_potential(i32 i) const { return cost[i] + q[node[i].parent - n]; }

    // Brings the edge (i, j) with cost c and reduced cost r < 0 into the tree. Returns the flow moved, or -1 if
    // no edge of the cycle limits it (then the artificial costs are too small) and nothing was done.
    i64 pivot(i32 i, i32 j, double c, double r);

    // Makes y the top of the tree that `top`, a child of R whose edge carries nothing, was the top of.
    void turn(i32 y, i32 top) {
        cut(top);
        i32 head, tail = reroot(y, top, R, 0, 0.0, &head);
        node[y].key |= 1;
        insert(head, tail, R, false);
    }

private:
    struct Leaving {
        i32 child = -1;
        i64 flow = NO_LIMIT;
        bool row_side = false;
        i32 join = -1;  // -1: not searched for
    };
    Leaving find_leaving(i32 i, i32 j) const;
    void push_flow(i32 i, i32 j, i32 join, i64 d);
    void cut(i32 top);
    i32 reroot(i32 in, i32 top, i32 out, i64 flow, double c, i32* head);
    void insert(i32 head, i32 tail, i32 out, bool out_is_leaf);
    void move_columns(i32 x, i32 y, i32 count);
    void shift(i32 head, i32 tail, i32 count, double delta);
};

// The cycle goes down from the join to row i, over (i, j), and up from j. Edges against it limit the
// flow: those that point up on i's side, down on j's side. Of several, the last one in the cycle's
// direction leaves: on j's side the highest, else on i's side the lowest.
inline Tree::Leaving Tree::find_leaving(i32 i, i32 j) const {
    const Node* t = node.data();
    Leaving r;
    i32 u = i, v = n + j;
    while (u != v) {
        const Node &s = t[u], &w = t[v];
        bool row_side = s.key < w.key;  // the smaller subtree can't contain the other end: move it
        i32 x = row_side ? u : v;
        const Node& e = row_side ? s : w;
        bool blocks = row_side == ((e.key & 1) != 0);
        bool better = blocks && (e.flow < r.flow + (row_side ? 0 : 1));
        r.flow = better ? e.flow : r.flow;
        r.child = better ? x : r.child;
        r.row_side = better ? row_side : r.row_side;
        // On j's side edges with flow 0 point up and can't block: a 0 on i's side is final, and
        // most pivots of degenerate problems end here, without a search for the join.
        if (better && row_side && e.flow == 0) return r;
        u = row_side ? e.parent : u;
        v = row_side ? v : e.parent;
    }
    r.join = u;
    return r;
}

inline void Tree::push_flow(i32 i, i32 j, i32 join, i64 d) {
    Node* t = node.data();
    for (i32 x = i; x != join; x = t[x].parent) t[x].flow += t[x].key & 1 ? -d : d;
    for (i32 x = n + j; x != join; x = t[x].parent) t[x].flow += t[x].key & 1 ? d : -d;
}

// Takes the subtree of `top` (with at least one column) out of the thread.
inline void Tree::cut(i32 top) {
    i32 head = first_column(top), tail = last[top], before = prev[head], after = next[tail];
    next[before] = after, prev[after] = before;
    i32 p = node[top].parent;
    if (is_row(p) && first[p] == head) first[p] = after;
    for (i32 x = p; x >= 0 && last[x] == tail; x = node[x].parent) last[x] = before;
}

// Turns the cut-off subtree of `top` around so that `in` becomes its top and hangs it under `out`: each
// node of the path in .. top becomes the last child of the one before it. In the thread, what each of
// them had besides the one before follows in turn. Returns the last column, -1 if there is none.
inline i32 Tree::reroot(i32 in, i32 top, i32 out, i64 flow, double c, i32* head) {
    Node* t = node.data();
    const i32 total = columns(top);
    i32 x = in, above = out, inside = 0;  // inside: columns of the old subtree one step below
    bool goes_up = is_row(in);
    i32 x_columns = columns(x), x_first = -1, x_last = -1, x_prev = -1, x_next = -1;
    if (x_columns) {
        x_first = first_column(x), x_last = last[x], x_prev = prev[x_first], x_next = next[x_last];
    }
    i32 h = x_first, tail = x_last;
    for (;;) {
        const Node old = t[x];
        const double old_cost = cost[x];
        cost[x] = c;
        t[x] = {flow, above, 4 * (total - inside) + (is_row(x) ? 2 : 0) + (goes_up ? 1 : 0)};
        if (x == top) break;
        i32 y = old.parent, y_columns = columns(y);
        i32 y_first = x_first, y_last = x_last, y_prev = x_prev, y_next = x_next;
        if (y_columns == x_columns) {  // a row with nothing besides x; its new child column comes next
            if (y != top) first[y] = t[y].parent - n;
        } else {
            y_first = first_column(y), y_last = last[y];
            i32 rest_first = y_first, rest_last = y_last;
            if (x_columns == 0) {
                y_prev = prev[y_first], y_next = next[y_last];
            } else {
                y_prev = y_first == x_first ? x_prev : prev[y_first];
                y_next = y_last == x_last ? x_next : next[y_last];
                if (y_first == x_first) {
                    rest_first = x_next;
                } else if (y_last == x_last) {
                    rest_last = x_prev;
                } else {
                    next[x_prev] = x_next, prev[x_next] = x_prev;
                }
            }
            if (is_row(y)) first[y] = rest_first;
            if (tail < 0) {
                h = rest_first;
            } else {
                next[tail] = rest_first, prev[rest_first] = tail;
            }
            tail = rest_last;
        }
        if (x == in && x_columns == 0) first[x] = y - n;  // a leaf row now has the column y below it
        above = x, flow = old.flow, c = old_cost, goes_up = !(old.key & 1), inside = x_columns;
        x = y, x_columns = y_columns, x_first = y_first, x_last = y_last;
        x_prev = y_prev, x_next = y_next;
    }
    for (x = top;; x = t[x].parent) {
        last[x] = tail;
        if (x == in) break;
    }
    *head = h;
    return tail;
}

// Puts the columns head .. tail into the thread as the first below `out`.
inline void Tree::insert(i32 head, i32 tail, i32 out, bool out_is_leaf) {
    i32 after, x = out;  // x: where the ends of subtrees may change, upwards from here
    if (!is_row(out)) {
        after = out - n;
    } else {
        i32 p = node[out].parent - n;
        if (out_is_leaf) {
            after = p, last[out] = tail, x = p + n;
        } else {
            after = prev[first[out]], x = -1;
        }
        first[out] = head;
    }
    i32 before = next[after];
    next[after] = head, prev[head] = after;
    next[tail] = before, prev[before] = tail;
    for (; x >= 0 && last[x] == after; x = node[x].parent) last[x] = tail;
}

// `count` columns leave the ancestors x, .. of the cut edge and join those of the new one, y, ..
inline void Tree::move_columns(i32 x, i32 y, i32 count) {
    Node* t = node.data();
    const i32 d = 4 * count;
    while (x != y) {
        if (t[x].key < t[y].key) {
            t[x].key -= d, x = t[x].parent;
        } else {
            t[y].key += d, y = t[y].parent;
        }
    }
}

// Adds delta to the potentials of `count` columns of the thread. From both ends, because each step
// of a linked list waits for the one before.
inline void Tree::shift(i32 head, i32 tail, i32 count, double delta) {
    double* p = q.data();
    const i32 *f = next.data(), *b = prev.data();
    i32 x = head, y = tail;
    for (i32 k = count >> 1; k > 0; k--) {
        p[x] += delta, p[y] += delta;
        x = f[x], y = b[y];
    }
    if (count & 1) p[x] += delta;
}

inline i64 Tree::pivot(i32 i, i32 j, double c, double r) {
    Leaving leaving = find_leaving(i, j);
    if (leaving.child < 0) return -1;
    const i64 d = leaving.flow;
    const i32 top = leaving.child;
    const i32 in = leaving.row_side ? i : n + j, out = leaving.row_side ? n + j : i;
    if (d > 0) push_flow(i, j, leaving.join, d);
    const i32 moved = columns(top), old_parent = node[top].parent;
    if (moved == 0) {  // a leaf row changes the column it hangs on
        node[top] = {d, out, 3};
        cost[top] = c;
        return d;
    }
    // out's columns without those of the cut subtree: 0 if that was all it had
    const i32 out_columns = columns(out) - (leaving.join == out ? moved : 0);
    cut(top);
    i32 head;
    i32 tail = reroot(in, top, out, d, c, &head);
    insert(head, tail, out, out_columns == 0);
    move_columns(old_parent, out, moved);
    // r = M_ij + q_j - u_i becomes 0: the cut-off side moves by r, or the other one by -r.
    double delta = leaving.row_side ? r : -r;
    if (2 * moved <= m) {
        shift(head, tail, moved, delta);
    } else {
        shift(next[tail], prev[head], m + 1 - moved, -delta);
    }
    return d;
}

}  // namespace otb
