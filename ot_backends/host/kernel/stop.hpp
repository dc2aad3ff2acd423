// Reasons to stop early: a time limit, an interrupt seen by the calling thread, another thread's stop.
#pragma once
#include <atomic>
#include <chrono>

#include "types.hpp"

namespace otb {

using Clock = std::chrono::steady_clock;

// Shared by the threads of one call.
struct StopFlag {
    std::atomic<i32> status{static_cast<i32>(Status::optimal)};
};

class Stopper {
public:
    // interrupted: returns true on Ctrl-C; null in the threads that can't ask
    Stopper(StopFlag& flag, const Options& options, Clock::time_point begin, bool (*interrupted)())
        : flag_(flag), limit_(options.time_limit), begin_(begin), asked_(begin),
          interrupted_(interrupted) {}

    // For loops over rows: looks at the clock now and then.
    Status check_some() { return (++calls_ & 15) == 0 ? check() : Status::optimal; }

    Status check() {
        if (i32 s = flag_.status.load(std::memory_order_relaxed)) return static_cast<Status>(s);
        Clock::time_point now = Clock::now();
        if (limit_ > 0 && std::chrono::duration<double>(now - begin_).count() > limit_)
            return Status::time_limit;
        if (interrupted_ && now - asked_ > std::chrono::milliseconds(100)) {
            asked_ = now;
            if (interrupted_()) {
                flag_.status.store(static_cast<i32>(Status::interrupted));
                return Status::interrupted;
            }
        }
        return Status::optimal;
    }

private:
    StopFlag& flag_;
    double limit_;
    unsigned calls_ = 0;
    Clock::time_point begin_, asked_;
    bool (*interrupted_)();
};

}  // namespace otb
