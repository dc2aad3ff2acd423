// A batch of problems over threads that live no longer than the call.
#pragma once
#include <algorithm>
#include <atomic>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "solve.hpp"

namespace otb {

// make(k) -> a cost object, problem(k) -> Problem, output(k) -> Output; called from any thread. Which
// thread solves which problem doesn't matter: a solve depends on nothing but its inputs.
template <class Make, class GetProblem, class GetOutput>
void solve_batch(i64 count, int threads, const Options& options, bool (*interrupted)(), Make make,
                 GetProblem problem, GetOutput output) {
    const Clock::time_point begin = Clock::now();
    StopFlag flag;
    std::atomic<i64> next{0};
    auto work = [&](bool (*ask)()) {
        Stopper stopper(flag, options, begin, ask);
        Workspace w;
        for (i64 k; (k = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
            Output out = output(k);
            Status s = stopper.check();
            try {
                if (s == Status::optimal) {
                    auto cost = make(k);
                    solve(w, cost, problem(k), options, stopper, out);
                    continue;
                }
            } catch (const std::bad_alloc&) {
                s = Status::out_of_memory;
            }
            out.status[0] = static_cast<i32>(s), out.status[1] = out.status[2] = -1;
        }
    };
    std::vector<std::thread> helpers;
    const i64 wanted = std::min<i64>(threads, count);
    for (i64 k = 1; k < wanted; k++) {
        try {
            helpers.emplace_back(work, nullptr);
        } catch (const std::system_error&) {
            break;  // no more threads to be had: fewer do the same work
        }
    }
    work(interrupted);
    for (std::thread& t : helpers) t.join();
}

}  // namespace otb
