// From parents to everything else: preorder, and the tree's columns, thread and subtree ends.
#pragma once
#include <vector>

#include "tree.hpp"

namespace otb {

struct Links {
    i32 child, sibling;  // first child, next sibling; -1: none
};

// What follows from the weights of a problem, besides its masses.
struct Weights {
    const double *a = nullptr, *b = nullptr;  // where they are; null: not valid
    double sum_a = 0, sum_b = 0, scale = 0;   // scale = sum_a / sum_b
    i32 heaviest = 0;                         // node with the largest of a and b * scale, the first of several
};

// Scratch that one thread reuses from problem to problem.
struct Workspace {
    Tree tree;
    Weights weights;
    std::vector<i64> mass_a, mass_b;   // (n), (m); 0: empty
    std::vector<i64> supply;           // (N + 1)
    std::vector<i32> rows;             // the rows with mass
    std::vector<i32> order;            // nodes below (and with) R, parents first
    std::vector<Links> links;          // (N + 1) child lists
    std::vector<i32> stack;            // of walk()
    std::vector<double> pot;           // (N + 1) potentials of all nodes: u on rows, -v on columns
    std::vector<i32> index, parent, size;
    bool whole = false;                // no row or column is empty
    std::vector<double> rest, sums;
    double big = 0;                    // size of the artificial costs; 0: one child of R, no flow there
    std::vector<double> raised;        // (N + 1) how much of it each artificial edge has in its cost
    i32 main = -1;                     // the child of R whose potential is 0, see potentials.hpp
    bool joined = false;               // join.hpp ran: strong feasibility is no longer certain
    i64 slack = 0;                     // units of mass that join.hpp left out
    double limit = 0;                  // sizes from here on were left out for good (levels.hpp)
};

// Child lists: clear, then hang every node, last ones first.
inline void clear_links(Workspace& w, i32 count) { w.links.assign(count, {-1, -1}); }

inline void link_child(Workspace& w, i32 x, i32 parent) {
    w.links[x].sibling = w.links[parent].child, w.links[parent].child = x;
}

// Preorder of the nodes below `root` from the child lists. Nodes on cycles are not reached, so callers that
// don't know their parents compare order.size(). Without branches that a processor could mispredict; and as
// every step waits for the one before, what visit(x) does besides costs next to nothing.
template <class Visit> void walk(Workspace& w, i32 count, i32 root, Visit visit) {
    w.order.resize(count), w.stack.resize(count + 1);
    const Links* links = w.links.data();
    i32 *order = w.order.data(), *stack = w.stack.data();
    i32 reached = 0, depth = 1;
    stack[0] = -1;
    for (i32 x = root; x >= 0;) {
        order[reached++] = x;
        visit(x);
        const Links l = links[x];
        stack[depth] = l.sibling, depth += l.sibling >= 0;
        const i32 top = stack[depth - 1], leaf = l.child >> 31;  // all ones, or 0
        x = (l.child & ~leaf) | (top & leaf), depth += leaf;
    }
    w.order.resize(reached);
}

inline void preorder(Workspace& w) {
    const Tree& t = w.tree;
    clear_links(w, t.R + 1);
    for (i32 x = t.R - 1; x >= 0; x--)
        if (i32 p = t.node[x].parent; p >= 0) link_child(w, x, p);
    walk(w, t.R + 1, t.R, [](i32) {});
}

// Keys, thread, first and last in two steps. From the parents down, in preorder: the thread, and every node
// with its own column only. The lowest bit of the keys is left 0.
class LayoutDown {
public:
    explicit LayoutDown(Tree& t) : t_(t), tail_(t.m) {}

    void visit(i32 x) {
        if (t_.is_row(x)) {
            t_.node[x].key = 2, t_.last[x] = -1;
        } else {  // R too: it starts the thread as column m
            const i32 j = x - t_.n;
            t_.node[x].key = 4, t_.last[x] = j;
            t_.next[tail_] = j, t_.prev[j] = tail_, tail_ = j;
        }
    }
    void close() { t_.next[tail_] = t_.m, t_.prev[t_.m] = tail_; }

private:
    Tree& t_;
    i32 tail_;
};

// From the leaves up, children before parents and last children first. Leaf rows change nothing.
inline void layout_up(Tree& t, i32 x) {
    const i32 p = t.node[x].parent, c = t.columns(x), last = t.last[p];
    t.node[p].key += 4 * c;
    t.last[p] = (c != 0) & ((last < 0) | (last == p - t.n)) ? t.last[x] : last;
    t.first[p] = c ? x - t.n : t.first[p];  // means something only if p is a row
}

// Both, from w.order and the directions in the lowest bit of each key.
inline void lay_out(Workspace& w) {
    Tree& t = w.tree;
    LayoutDown down(t);
    for (i32 x : w.order) {
        const i32 up = t.node[x].key & 1;
        down.visit(x);
        t.node[x].key += up;
    }
    down.close();
    t.node[t.R].parent = -1, t.node[t.R].key = 4;
    for (std::size_t k = w.order.size(); k-- > 1;) layout_up(t, w.order[k]);
}

// Makes y the top of the tree that `top` was the top of: parents, flows, costs and directions
// (lowest bit of the key).
inline void reverse_path(Tree& t, i32 y, i32 top, i32 new_parent, i64 flow, double c,
                         bool goes_up) {
    for (i32 x = y, above = new_parent;;) {
        const Node old = t.node[x];
        const double old_cost = t.cost[x];
        t.node[x] = {flow, above, goes_up ? 1 : 0}, t.cost[x] = c;
        if (x == top) return;
        above = x, flow = old.flow, c = old_cost, goes_up = !(old.key & 1), x = old.parent;
    }
}

}  // namespace otb
