// Leading (batch) dimensions: broadcasting, and which of an array's own problems belongs to problem k.
#pragma once
#include "types.hpp"

namespace otb {

inline constexpr int MAX_LEAD = 30;

struct Lead {
    int count = 0;
    i64 shape[MAX_LEAD];

    // Broadcasts with one more array's leading dimensions. False if they don't fit.
    bool include(const i64* other, int k) {
        if (k > MAX_LEAD) return false;
        if (k > count) {
            for (int d = count; d-- > 0;) shape[d + k - count] = shape[d];
            for (int d = 0; d < k - count; d++) shape[d] = 1;
            count = k;
        }
        for (int d = 0; d < k; d++) {
            i64& s = shape[d + count - k];
            if (s == 1) {
                s = other[d];
            } else if (other[d] != 1 && other[d] != s) {
                return false;
            }
        }
        return true;
    }

    i64 size() const {
        i64 s = 1;
        for (int d = 0; d < count; d++) s *= shape[d];
        return s;
    }
};

class Index {
public:
    Index(const Lead& lead, const i64* own, int k) : count_(lead.count) {
        i64 step = 1;
        for (int d = count_; d-- > 0;) {
            const int e = d - (count_ - k);
            const i64 size = e >= 0 ? own[e] : 1;
            shape_[d] = lead.shape[d];
            stride_[d] = size == 1 ? 0 : step;
            step *= size;
        }
    }

    i64 operator()(i64 k) const {
        i64 at = 0;
        for (int d = count_; d-- > 0; k /= shape_[d]) at += k % shape_[d] * stride_[d];
        return at;
    }

private:
    int count_;
    i64 shape_[MAX_LEAD], stride_[MAX_LEAD];
};

}  // namespace otb
